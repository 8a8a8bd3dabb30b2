"""What can be asked of a trained run."""
