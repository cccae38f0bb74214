"""Which servers a project has: its configuration, read, checked and expanded. Decided without an event loop."""
