"""Attacks on trained networks; they know nothing of training."""
