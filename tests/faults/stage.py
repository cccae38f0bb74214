"""A session over a real guardian and a worker that does what it is told, and what faults are done to them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import trio

from repl_trio.limits import Limits
from repl_trio.process.launch import Root
from repl_trio.process.root import open_root
from repl_trio.process.start import start_worker
from repl_trio.session.generation import Generation
from repl_trio.session.lifetime import open_generation
from repl_trio.session.run import Run
from repl_trio.session.session import Session
from repl_trio.session.sessions import open_sessions
from repl_trio.settings import Settings
from repl_trio.values import CLEARED, PRESERVED, Cell
from tests.fakes import worker as fake

HANG = 60.0
"""seconds. Beyond every wait of a test here."""
SHORT = {"worker_start": "10", "write_stall": "0.5", "guardian_ack": "1", "stop_grace": "0.3", "stop_kill": "0.2"}
Step = list[Any]

READY: Step = ["frame", {}, "ready"]
RESULT: Step = ["result"]
HANG_ON: Step = ["hang"]


def settings(folder: Path, *start: Step, limits: dict[str, str] | None = None) -> Settings:
    """Settings whose interpreter is a fake worker that takes the steps `start` instead of being ready."""
    made = Settings("serve")
    made.project = str(folder)
    made.python = fake.install(folder)
    made.limits = Limits.overridden({**SHORT, **(limits or {})})
    made.environment = {"FAKE_START": json.dumps(start)} if start else {}
    return made


@asynccontextmanager
async def open_default(folder: Path, *start: Step, limits: dict[str, str] | None = None) -> AsyncIterator[Session]:
    """The default session of a server's session layer. Afterwards no worker, guardian or task is left."""
    before = psutil.Process().children(recursive=True)
    with trio.fail_after(HANG):
        async with open_sessions(settings(folder, *start, limits=limits)) as sessions:
            session = sessions.default
            yield session
    assert not session.alive
    assert session.generation is None or session.generation.gone.is_set()
    assert psutil.Process().children(recursive=True) == before


async def begin(session: Session, *steps: Step, seconds: float = 60.0) -> Run:
    """Accept a cell that makes the worker take these steps."""
    return await session.start(Cell(fake.script(*steps), seconds))


async def finish(run: Run) -> Run:
    """Wait for the answer to a run; it must be complete and consistent."""
    await run.answered.wait()
    assert run.finished
    assert run.result is not None
    assert run.result.state in (PRESERVED, CLEARED)
    assert run.result.success is (run.result.error_code is None)
    return run


async def goes_on(session: Session, after: Run) -> None:
    """The session runs the next cell, in the namespace that the answer to the run before has promised."""
    run = await finish(await begin(session, RESULT))
    assert run.result is not None
    assert after.result is not None
    assert run.result.success, run.result.error
    assert run.result.state_reset is (after.result.state == CLEARED or not after.generation)
    if run.result.state_reset:
        assert run.generation > after.generation
    else:
        assert run.generation == after.generation


@asynccontextmanager
async def open_ready(folder: Path) -> AsyncIterator[Generation]:
    """A generation without a session, whose worker has just become ready."""
    root, numbers = Root(), Limits.overridden(SHORT)
    with trio.fail_after(HANG):
        async with open_root(root, numbers) as watch:
            start = start_worker(root, fake.install(folder), str(folder), {}, numbers)
            async with open_generation(1, start, watch, numbers) as generation:
                yield generation


def kill(session: Session, whom: str) -> None:
    """SIGKILL to the session's `worker`, to its `guardian`, or to the `root` guardian."""
    assert session.generation is not None
    kill_part(session.generation, whom)


def kill_part(generation: Generation, whom: str) -> None:
    """The same for a generation."""
    guard = generation.guard
    assert guard.pid is not None
    pids = {"worker": guard.child_pid, "guardian": guard.pid, "root": psutil.Process(guard.pid).ppid()}
    assert pids[whom] not in (None, 0, 1, os.getpid())
    os.kill(pids[whom] or 0, signal.SIGKILL)


async def running(run: Run) -> None:
    """Wait until the worker has been given the cell of a run and has printed something."""
    while not run.stdout.total:  # noqa: ASYNC110 - output is no event
        await trio.sleep(0.002)
