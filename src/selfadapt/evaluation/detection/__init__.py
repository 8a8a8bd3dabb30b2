"""Average precision of object detectors, by the rules of COCO and of VOC 2007."""
