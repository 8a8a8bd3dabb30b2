"""Text columns, encoded as sentences."""
