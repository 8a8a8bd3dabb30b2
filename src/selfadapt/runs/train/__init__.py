"""Training runs, with labels or without."""
