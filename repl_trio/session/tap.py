"""Who follows output while it comes."""

from __future__ import annotations

from typing import Protocol


class Tap(Protocol):
    """Somebody who follows a generation's output live and whole, between its runs as well, as a terminal does."""

    def write(self, stream: str, chunk: bytes) -> None:
        """Take bytes of `stdout` or `stderr` without waiting."""

    async def drained(self) -> None:
        """Wait until there is room again; meanwhile the worker's pipe fills and the cell waits."""
