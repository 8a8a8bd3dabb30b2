"""Sources: named data sets, downloads, and files that users bring."""
