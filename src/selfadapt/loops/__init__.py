"""Losses for your own training loop: each keeps the targets of one method and counts its epochs."""
