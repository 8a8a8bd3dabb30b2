"""The engine: the only training loop, its optimisers, checkpoints and processes."""
