"""Reports: figures and HTML pages, made from run folders alone."""
