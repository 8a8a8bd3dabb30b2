"""What a user asked for, and the settings of the run that follow from it."""
