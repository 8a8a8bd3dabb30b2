"""Estimates from decisions of people, for labels that nobody reviewed."""
