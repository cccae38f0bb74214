"""The only layer that starts, signals and waits for processes or duplicates descriptors."""
