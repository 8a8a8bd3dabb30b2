"""The paper's algorithm and its uses, one file each: initial targets, normalised prediction, loss."""
