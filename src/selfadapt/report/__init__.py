"""Report: the run folder's format, and the figures and pages made from run folders alone."""
