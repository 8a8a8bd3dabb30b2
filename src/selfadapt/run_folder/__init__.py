"""The run folder: which files it holds, and how they are written and read."""
