"""Loads planted in the sessions of one server, and what is left of each after an ending, told by the kernel."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from tests.e2e.client import Client, Message
from tests.e2e.loads import LEFT, LOADS, POOL_WORK, Load, cell, then
from tests.e2e.watch import carriers, content

BOUND = 5.0
"""seconds. From the end of the one that is named to that of the last survivor; 1 is promised, on a machine at rest."""


class Ends:
    """The moments at which processes end, each watched by a pidfd from before the ending: no look comes too late."""

    def __init__(self) -> None:
        self.moments: dict[int, float] = {}
        self._pids: dict[int, int] = {}  # by pidfd
        self._poll = select.poll()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._pids:
            os.close(fd)

    def watch(self, pids: Iterable[int]) -> None:
        """Watch processes that run now."""
        for pid in pids:
            fd = os.pidfd_open(pid)
            self._pids[fd] = pid
            self._poll.register(fd, select.POLLIN)

    def look(self, seconds: float = 0) -> None:
        """Note who has ended, waiting so long for the first."""
        ready = self._poll.poll(seconds * 1000)
        now = time.monotonic()
        for fd, _events in ready:
            self.moments[self._pids.pop(fd)] = now
            self._poll.unregister(fd)
            os.close(fd)

    def wait(self, pids: set[int], bound: float) -> set[int]:
        """Wait until all of these have ended; those that have not within `bound` seconds."""
        deadline = time.monotonic() + bound
        self.look()
        while (left := pids - self.moments.keys()) and (seconds := deadline - time.monotonic()) > 0:
            self.look(seconds)
        return left


@dataclass(slots=True, eq=False)
class Row:
    """One load in one session: the processes that are there because of it, and what became of them.

    `seconds`: from the end of the one that is named until nothing was left. `faults` is empty when all is as it should
    be.
    """

    name: str
    state: str
    load: Load
    session: str
    run: str = ""
    worker: int = 0
    guardian: int = 0
    members: set[int] = field(default_factory=set)
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


class Planted:
    """A server in whose sessions every load is planted in every state it can be in, before it or they are ended."""

    def __init__(self, client: Client, how: str, ends: Ends) -> None:
        self.client = client
        self.how = how
        self.ends = ends
        self.rows: list[Row] = []

    def plant(self, names: Iterable[str]) -> None:
        """Open the sessions, run the cells, and learn who belongs to each."""
        (self.client.cwd / "pool_work.py").write_text(POOL_WORK)
        kinds = [(name, state, LOADS[name]) for name in names for state in LOADS[name].states]
        opened = self.each([("python_session_open", {"name": f"{state} {name}"}) for name, state, _ in kinds])
        self.rows = [
            Row(name, state, load, answer["session_id"])
            for (name, state, load), answer in zip(kinds, opened, strict=True)
        ]
        for row, answer in zip(self.rows, self.each([self._cell(row) for row in self.rows]), strict=True):
            assert row.state != LEFT or answer["success"], (row.name, answer["error"])
            row.run = answer["run_id"]
        for row in self.rows:
            self._learn(row)

    def each(self, calls: list[tuple[str, dict[str, Any]]]) -> list[Message]:
        """Call tools, all at the same time; the structuredContent of each answer."""
        requests = [self.client.start_call(tool, **arguments) for tool, arguments in calls]
        return [self.client.result(request)["structuredContent"] for request in requests]

    def path(self, row: Row, what: str) -> Path:
        """A file of the row in the server's folder."""
        return self.client.cwd / f"{what} {row.session}"

    def _cell(self, row: Row) -> tuple[str, dict[str, Any]]:
        code = cell(row.load, self.path(row, "told"))
        if row.state == LEFT:
            return "execute_python", {"code": code, "session_id": row.session}
        order = self.path(row, "order")
        os.mkfifo(order)
        return "python_start", {"code": code + then(row.load, self.how, order), "session_id": row.session}

    def _learn(self, row: Row) -> None:
        row.worker, *told = map(int, content(self.path(row, "told")).split())
        guardian = psutil.Process(row.worker).parent()
        assert guardian is not None
        row.guardian = guardian.pid
        below = {process.pid for process in guardian.children(recursive=True)}
        # Without its processes a row would hold whatever happened.
        assert {row.worker, *told} <= below, row
        assert len(below) > row.load.count, row
        row.members = {row.guardian} | below
        self.ends.watch(row.members)

    def judge(self, row: Row, named: int) -> None:
        """Wait until nothing of a row is left after the process `named` has ended."""
        ended = self.ends.moments[named]
        left = self.ends.wait(row.members, ended + BOUND - time.monotonic())
        row.seconds = max(0.0, *(self.ends.moments.get(pid, ended) - ended for pid in row.members))
        row.faults += [f"outlived it: {word}" for word in kill(left)]

    def strangers(self, known: set[int]) -> list[str]:
        """Wait until nobody else than `known` has this server's cookie; those that do not go are killed."""
        deadline = time.monotonic() + BOUND
        while others := carriers(self.client.cookie) - known:
            if time.monotonic() > deadline:
                return [f"outlived it, unknown: {word}" for word in kill(others)]
            self.ends.look(0.01)
        return []


def kill(pids: Iterable[int]) -> list[str]:
    """SIGKILL to each; what they were."""
    described = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            described.append(f"{pid} {process.status()} below {process.ppid()}: {' '.join(process.cmdline())[:120]}")
            process.send_signal(signal.SIGKILL)
    return described
