"""Pretrained networks: architectures, weights, frozen features."""
