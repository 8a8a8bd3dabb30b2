"""Attacks on trained networks, independent of how they were trained."""
