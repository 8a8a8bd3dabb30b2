"""A person decides about labels: the journal of decisions, what was drawn to measure by, and the page to work on."""
