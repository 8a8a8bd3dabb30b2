"""Self-adaptive training in other people's training loops. Each module needs the package it is named after."""
