"""Prompts become a sealed list of requests: token ids, sampling parameters and arrival times."""
