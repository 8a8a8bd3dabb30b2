"""Networks for detection and segmentation."""
