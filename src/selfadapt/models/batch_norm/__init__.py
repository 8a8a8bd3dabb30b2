"""Variants of batch normalisation."""
