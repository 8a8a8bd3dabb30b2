"""Targets: one row for each training sample, and the only place that moves them."""
