"""counterproof: the harness that records a baseline, changes one thing and says what moved."""

__version__ = "0.1.0"
