"""The target store: one row per training sample, and the only code that writes targets."""
