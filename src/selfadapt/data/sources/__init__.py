"""Sources of data: built-in data sets, downloads, and users' files."""
