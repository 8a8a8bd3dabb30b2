"""Features in shards: a folder of files that is read in blocks, so that its size does not matter."""
