"""Data: samples with stable ids, where they come from, what corrupts them, and how they become batches."""
