"""Backbones: networks that map images to features."""
