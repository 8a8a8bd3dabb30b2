"""Linear models on fixed features, fitted to the minimum."""
