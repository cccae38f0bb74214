"""A persistent Python REPL for coding agents, served over stdio MCP and structured with Trio."""

__version__ = "0.1.0"
