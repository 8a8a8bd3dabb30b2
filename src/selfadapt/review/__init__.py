"""Review of labels by people: the journal of decisions, random samples and bounds, and the server of the page."""
