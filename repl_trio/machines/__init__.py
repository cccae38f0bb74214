"""Sans-IO state tables: (state, event) -> state. Code, tests and the pages in `docs/` read the same tables."""
