"""Evaluation: pure functions of tensors."""
