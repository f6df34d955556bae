"""The review: who does what in which order, what each signs, and what follows from it."""
