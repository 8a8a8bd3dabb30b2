"""Core: what every room may use. It imports from no other room."""
