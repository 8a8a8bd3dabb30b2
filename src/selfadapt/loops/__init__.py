"""Losses for a training loop of your own: each keeps the targets of one method and counts its epochs."""
