"""Evaluation metrics: pure functions of tensors."""
