"""Tables and vectors: reading, encoding, and data sets made from them."""
