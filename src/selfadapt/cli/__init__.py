"""The command line: one file for each command. A command parses, calls and prints."""
