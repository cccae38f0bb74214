"""What is waited for from another process, and since when: a stuck thing can be seen while it is stuck."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Pending:
    """The waits of one owner, each with the moment it began, on trio's clock."""

    def __init__(self) -> None:
        self._waits: dict[int, tuple[str, float]] = {}
        self._number = 0

    @contextmanager
    def wait(self, what: str) -> Iterator[None]:
        """Inside the context `what` is waited for."""
        self._number += 1
        number = self._number
        self._waits[number] = (what, trio.current_time())
        try:
            yield
        finally:
            del self._waits[number]

    def oldest(self) -> tuple[str, float] | None:
        """What has been waited for longest, and since when; None when nothing is."""
        return next(iter(self._waits.values()), None)
