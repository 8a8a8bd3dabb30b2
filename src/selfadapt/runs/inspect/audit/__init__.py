"""The audit of features, and the figures of every audit."""
