"""Labels: class names, noise for experiments, and labels from a file."""
