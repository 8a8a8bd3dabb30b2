"""Duplicates: found by content, verified on aligned pixels, grouped around a member."""
