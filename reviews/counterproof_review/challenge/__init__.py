"""Looking for inputs that overturn a claim: the space, the search, confirmation and shrinking."""
