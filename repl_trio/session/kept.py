"""The processes that cells have left running below a worker, each with the run that started it: for reports."""

from __future__ import annotations

from collections import deque

from ..process.descent import Descendant, below
from ..process.guard import Guard
from ..process.moment import Moment


class Kept:
    """Remembers when the newest `runs` runs began, so that what still lives can be told apart."""

    def __init__(self, runs: int) -> None:
        self._begun: deque[tuple[str, Moment]] = deque(maxlen=runs)

    def begin(self, run_id: str, since: Moment) -> None:
        """A run begins: what starts from here on is its own."""
        self._begun.append((run_id, since))

    def look(self, guard: Guard, most: int) -> tuple[list[tuple[Descendant, str | None]], int]:
        """(the first `most` processes below the worker, each with its run if that is known; how many there are).

        Read from the kernel, without asking the guardian: quick, and true also while that is busy.
        """
        if guard.pid is None:
            return [], 0
        found, total = below(guard.pid, most + 1)
        others = [process for process in found if process.pid != guard.child_pid]
        return [(process, self._starter(process)) for process in others[:most]], max(total - 1, 0)

    def _starter(self, process: Descendant) -> str | None:
        for run_id, since in reversed(self._begun):
            if since.before(process.start, process.pid):
                return run_id
        return None
