"""The project's other MCP servers: which are configured, what may be called on them, and the calls themselves."""
