"""Commands that train several runs."""
