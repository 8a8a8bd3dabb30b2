"""The paper's algorithm and its applications, one file each: initial targets, normalised prediction, loss."""
