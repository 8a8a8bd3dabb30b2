"""Backbones: networks from images to features."""
