"""Experiment trackers that follow the metrics of a run."""
