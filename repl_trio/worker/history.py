"""Sources of the runs of a generation: for tracebacks, `inspect`, `repl_history` and `repl_source`.

`linecache` must know a cell's source before the cell runs, but importing it costs a third of a worker's start (it
brings `re` and `tokenize`), and most cells never need it. So the sources wait here until `hooks` says that somebody has
imported it.
"""

from __future__ import annotations

import sys

from .origin import cell_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class History:
    """The newest sources, at most `runs` of them and at most `size` bytes; the oldest go first."""

    def __init__(self, runs: int, size: int) -> None:
        self._runs = runs
        self._size = size
        self._held = 0
        self._sources: dict[str, str] = {}

    def add(self, run_id: str, source: str) -> None:
        """Remember one run's source and show it to `linecache`. A source over the whole bound is kept alone."""
        self._sources[run_id] = source
        self._held += len(source.encode("utf-8", "surrogatepass"))
        cache = getattr(sys.modules.get("linecache"), "cache", None)
        while len(self._sources) > 1 and (len(self._sources) > self._runs or self._held > self._size):
            oldest = next(iter(self._sources))
            self._held -= len(self._sources.pop(oldest).encode("utf-8", "surrogatepass"))
            if cache is not None:
                cache.pop(cell_file(oldest), None)
        if cache is not None:
            self._show(cache, run_id, source)

    def sources(self) -> list[tuple[str, str]]:
        """(run id, source) of each remembered run, oldest first."""
        return list(self._sources.items())

    def source(self, run_id: str | None) -> str:
        """The source of one run, or of the one before the newest. Raises LookupError."""
        if run_id is None:
            earlier = self.sources()[:-1]
            if not earlier:
                raise LookupError("there is no earlier cell")
            return earlier[-1][1]
        if run_id not in self._sources:
            raise LookupError(f"no cell {run_id!r} is remembered; repl_history() lists those that are")
        return self._sources[run_id]

    def fill(self, linecache: Any) -> None:
        """Enter all remembered sources into the freshly imported `linecache`."""
        for run_id, source in self._sources.items():
            self._show(linecache.cache, run_id, source)

    @staticmethod
    def _show(cache: dict[str, Any], run_id: str, source: str) -> None:
        name = cell_file(run_id)
        # No modification time: `linecache.checkcache` then never drops the entry for want of a file.
        # The compiler's lines end at these two and nowhere else; str.splitlines knows more ends, such as form feeds.
        lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        cache[name] = (len(source), None, [line + "\n" for line in lines], name)
