"""Features of a pretrained network, written as a file or as shards."""
