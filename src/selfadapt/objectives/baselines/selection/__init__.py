"""Baselines that train on a selection of the samples."""
