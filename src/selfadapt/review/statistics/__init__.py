"""What decisions of people say about labels that nobody looked at."""
