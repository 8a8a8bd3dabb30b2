"""Learning without labels: what the methods share, and one file for each."""
