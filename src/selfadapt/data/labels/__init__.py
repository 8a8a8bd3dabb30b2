"""Labels: class names, label noise, and labels from files."""
