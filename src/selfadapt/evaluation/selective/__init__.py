"""Selective classification: selectors, risk-coverage curves, and risk guarantees."""
