"""Runs: what a command does with one, from data to the finished run folder. Names no method."""
