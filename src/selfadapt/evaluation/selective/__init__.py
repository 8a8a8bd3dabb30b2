"""Selective classification: selectors, risk at each coverage, and a guarantee."""
