"""Start, resume and open runs."""
