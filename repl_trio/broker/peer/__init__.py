"""One peer: its process, its connection, what is sent and what it asks."""
