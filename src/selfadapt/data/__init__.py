"""Data sets with stable sample ids: sources, splits, label noise, duplicates, and batches."""
