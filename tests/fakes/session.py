"""A session over fake generations, and the little that tests of its rules share."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import trio

from repl_trio.limits import Limits
from repl_trio.process.launch import Root
from repl_trio.process.root import RootWatch
from repl_trio.session.run import Run
from repl_trio.session.session import Session, Surroundings
from repl_trio.values import Cell
from tests.fakes.generation import FakeGeneration, Workshop

INT, TERM, KILL, USR1, URG = signal.SIGINT, signal.SIGTERM, signal.SIGKILL, 10, 23
ENDLESS = Cell("while True: pass", 10.0)
QUICK = Cell("1 + 1", 10.0)
HANG = 100.0
"""seconds on the mocked clock. Beyond every limit of a session."""


@asynccontextmanager
async def open_session(limits: Limits | None = None) -> AsyncIterator[tuple[Session, Surroundings]]:
    numbers = count(1)
    numbers_in_force = limits or Limits()
    watch = RootWatch(Root(), numbers_in_force)
    with trio.fail_after(HANG):
        async with trio.open_nursery() as nursery:
            surroundings = Surroundings(nursery, watch, numbers_in_force, {}, lambda letter: f"{letter}{next(numbers)}")
            session = Session("s1", "one", str(Path.cwd()), None, surroundings)
            await trio.lowlevel.checkpoint()
            try:
                yield session, surroundings
            finally:
                nursery.cancel_scope.cancel()


def answering(workshop: Workshop) -> None:
    """Every worker made from now on answers each cell at once."""

    def prepare(generation: FakeGeneration) -> None:
        generation.on_begin = lambda run: trio.lowlevel.current_trio_token().run_sync_soon(generation.answer)

    workshop.on_made = prepare


async def finish(session: Session, cell: Cell = QUICK, *, reset: bool = False) -> Run:
    run = await session.start(cell, reset=reset)
    await run.answered.wait()
    return run


def on_signal(generation: FakeGeneration, number: int, target: str, reaction: Callable[[], None]) -> None:
    """Make the worker react to the first such signal."""

    def react(got: int, where: str) -> None:
        if (got, where) == (number, target) and generation.runs[-1].reply is None:
            reaction()

    generation.guard.on_signal = react
