"""The tables and figures of the paper as frozen data, one module for each, beside the published numbers."""
