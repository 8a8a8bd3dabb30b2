"""Self-adaptive training of linear heads, with cross-validation and a noise model."""
