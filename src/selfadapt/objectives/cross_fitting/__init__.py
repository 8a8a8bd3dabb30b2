"""Self-adaptive training of linear heads by folds, with a noise model."""
