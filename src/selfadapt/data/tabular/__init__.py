"""Tables and vectors: rows, how they are encoded, and data sets made from them."""
