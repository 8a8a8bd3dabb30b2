"""Images: decoding, storage, headers, caching, crops and augmentation."""
