"""Label errors: P(wrong) of every label, the likely errors among them, and what that list is worth."""
