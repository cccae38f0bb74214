"""A generation without a process: a test says when its worker answers or dies, and reads which signals it got when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from repl_trio.errors import ReplError
from repl_trio.process.moment import Moment
from repl_trio.session.memory import MemoryWatch
from repl_trio.session.run import Run
from tests.fakes.worker import RESULT

BEGUN = Moment(7, 7)
"""When every run begins: a signal that goes to a run must name it."""


class FakeGuard:
    """Notes every signal with the seconds since the run began. `on_signal` is the worker's reaction."""

    def __init__(self) -> None:
        self.signals: list[tuple[float, int, str]] = []
        self.on_signal: Callable[[int, str], None] = lambda _number, _target: None
        self.child_pid = 1
        self.subreaper = True
        self.since = 0.0
        self.met = 1  # processes that each signal finds

    async def signal(self, number: int, target: str, *, since: Moment | None = None) -> int:
        assert since is BEGUN
        await trio.lowlevel.checkpoint()
        self.signals.append((round(trio.current_time() - self.since, 6), number, target))
        self.on_signal(number, target)
        return self.met


class FakeGeneration:
    """What a session needs of a generation."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.guard = FakeGuard()
        self.memory = MemoryWatch(0, 1.0)
        self.python_version = "3.10.99"
        self.problem: ReplError | None = None
        self.dead = trio.Event()
        self.ending = trio.Event()
        self.over = trio.Event()
        self.death = ""
        self.words = ""
        self.ordered = False
        self.runs: list[Run] = []
        self.stops: list[str] = []
        self.delivery = 0.0  # seconds that the worker takes to read its next cell
        self.on_begin: Callable[[Run], None] = lambda _run: None

    @property
    def alive(self) -> bool:
        return not self.dead.is_set()

    def begin(self, run: Run) -> None:
        run.generation = self.number
        run.state_reset = not self.runs
        run.since = BEGUN
        self.guard.since = trio.current_time()
        self.runs.append(run)
        self.on_begin(run)

    @property
    def undelivered(self) -> bool:
        return self.delivery > 0

    async def deliver(self) -> None:
        await trio.sleep(self.delivery)
        self.delivery = 0.0

    def answer(self, **changes: Any) -> None:
        """The worker's result for its newest run."""
        run = self.runs[-1]
        run.take({**RESULT, "id": run.id, **changes})

    def die(self, death: str) -> None:
        """The worker is gone."""
        if not self.dead.is_set():
            self.death = death
            self.dead.set()
            self.ending.set()
        if self.runs and self.runs[-1].reply is None:
            self.runs[-1].arrived.set()

    def leave(self) -> None:
        self.ordered = self.ordered or self.alive
        self.die("its session left it")

    async def stop(self) -> None:
        self.stops.append("stop")
        self.ordered = self.ordered or self.alive
        await trio.lowlevel.checkpoint()
        self.die("stopped")

    async def kill(self) -> None:
        self.stops.append("kill")
        await trio.lowlevel.checkpoint()
        self.die("The worker was ended by SIGKILL")

    def last_words(self) -> str:
        return self.words

    def drain(self) -> None:
        """A fake worker writes nothing by itself."""


class Workshop:
    """Stands in for `start_worker` and `open_generation`: every launch takes `delay` seconds, and may fail."""

    def __init__(self) -> None:
        self.made: list[FakeGeneration] = []
        self.delay = 0.0
        self.problem: ReplError | None = None
        self.fault: OSError | None = None
        self.on_made: Callable[[FakeGeneration], None] = lambda _generation: None

    def start_worker(self, *_arguments: object) -> object:
        if self.fault is not None:
            raise self.fault
        return object()

    @asynccontextmanager
    async def open_generation(
        self, number: int, _start: object, _watch: object, _limits: object, _tap: object, _background: object
    ) -> AsyncIterator[FakeGeneration]:
        generation = FakeGeneration(number)
        self.made.append(generation)
        self.on_made(generation)
        generation.problem = self.problem
        try:
            await trio.sleep(self.delay)
            yield generation
        finally:
            generation.die("its owner left")
            generation.over.set()

    @property
    def newest(self) -> FakeGeneration:
        return self.made[-1]
