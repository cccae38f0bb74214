"""Measures a Python MCP server over stdio beside its floors: what the same work costs with nothing around it.

Every figure and its floors are measured in the same run, in interleaved rounds, by the same code, whosever server it
is. This process waits on pipes and reads clocks; it imports neither trio nor the server.
"""
