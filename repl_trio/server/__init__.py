"""The MCP server: tools, the opening exchange before trio, and the runtime that answers everything else."""
