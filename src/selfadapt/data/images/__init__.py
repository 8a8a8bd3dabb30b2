"""Images: storage, metadata, decoding ahead of time, crops and augmentation."""
