"""Baselines that estimate what is wrong with each label."""
