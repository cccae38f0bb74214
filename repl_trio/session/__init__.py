"""Sessions, generations and runs: who may run what, where, and how it ends."""
