"""Cross-fitting for data that does not fit in memory: closed-form heads from sums, and sparse predictions."""
