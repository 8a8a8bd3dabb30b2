"""Self-supervised pre-training: the shared encoder, and one file for each method."""
