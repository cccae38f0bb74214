"""The Python names of what has a name elsewhere: one rule for servers and for tools."""

from __future__ import annotations


def identifier(name: str) -> str:
    """The name with underscores for what no identifier has; it may still begin with a digit, or be empty."""
    return "".join(letter if f"_{letter}".isidentifier() else "_" for letter in name)
