"""Engine: the only training loop, and what it needs to stop and go on."""
