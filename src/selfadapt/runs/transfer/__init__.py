"""Detection and segmentation with the backbone of a run."""
