"""Each `open_x`, cancelled at every scheduler step: no process, descriptor or task is left, and claims are true."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import trio

from repl_trio.console.streams import open_streams
from repl_trio.limits import Limits
from repl_trio.machines import generation as table
from repl_trio.process.guard import Guard, open_guard
from repl_trio.process.launch import Root
from repl_trio.process.root import open_root
from repl_trio.process.start import WorkerStart, start_worker
from repl_trio.process.stdio import Outputs
from repl_trio.session.generation import Generation
from repl_trio.session.lifetime import open_generation
from repl_trio.session.run import Run
from repl_trio.session.sessions import Sessions, open_sessions
from repl_trio.settings import Settings
from repl_trio.values import CLEARED, PRESERVED, Cell
from tests.fakes import worker as fake
from tests.faults.sweep import Story, play, sweep

LIMITS = Limits.overridden({"stop_grace": "0.3", "stop_kill": "0.2"})
CELL = fake.script(["write", 1, "out\n"], ["child", "/dev/null"], ["result"])
SAMPLE = 8
"""steps of each story that are cancelled in an ordinary run of the tests; `-m slow` takes all."""

Claims = Callable[[], None]


class Stage:
    """What the stories need: a folder with a worker that does as it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = fake.install(folder)

    def start(self, root: Root) -> WorkerStart:
        return start_worker(root, self.python, str(self.folder), {}, LIMITS)

    async def root(self, scope: trio.CancelScope) -> Claims:
        """A root guardian that forks one guardian, which nobody adopts."""
        root = Root()
        with scope:
            async with open_root(root, LIMITS) as watch:
                start = self.start(root)
                assert start.guardian.number is not None
                try:
                    await watch.forked(start.guardian.number)
                finally:
                    start.abandon()
                await watch.ended(start.guardian.number, None)

        def claims() -> None:
            assert root.lives == []

        return claims

    async def guard(self, scope: trio.CancelScope) -> Claims:
        """A guardian that starts a worker, signals it, lists it and stops it."""
        root, guards = Root(), list[Guard]()
        async with open_root(root, LIMITS) as watch:
            start = self.start(root)
            with scope:
                async with open_guard(start.guardian, watch, LIMITS) as guard:
                    guards.append(guard)
                    await guard.started.wait()
                    await guard.signal(2, "child")
                    await guard.descendants()
            start.close()
            left = set(watch.guardians)

        def claims() -> None:
            assert left == set()
            for guard in guards:
                assert guard.gone.is_set()
                assert guard.exited.is_set()

        return claims

    async def generation(self, scope: trio.CancelScope) -> Claims:
        """A worker that runs a cell and is then ended in order."""
        root, made = Root(), list[tuple[Generation, Run]]()
        async with open_root(root, LIMITS) as watch:
            start = self.start(root)
            with scope:
                async with open_generation(1, start, watch, LIMITS) as generation:
                    run = Run("r1", "s1", Cell(CELL, 60.0), LIMITS)
                    made.append((generation, run))
                    assert generation.problem is None
                    generation.begin(run)
                    run.machine.advance("ready")
                    await run.arrived.wait()

        def claims() -> None:
            for generation, run in made:
                assert generation.machine.state == table.GONE
                assert not generation.alive
                assert generation.gone.is_set()
                assert generation.over.is_set()
                assert generation.dead.is_set()
                assert run.reply is not None or generation.current is None or run.arrived.is_set()

        return claims

    async def sessions(self, scope: trio.CancelScope) -> Claims:
        """Two cells in one session, the second after a reset, and a second session that is opened and closed."""
        settings = Settings("serve")
        settings.python, settings.project, settings.limits = self.python, str(self.folder), LIMITS
        settings.environment = {}
        kept, runs = list[Sessions](), list[Run]()
        with scope:
            async with open_sessions(settings) as sessions:
                kept.append(sessions)
                for reset in (False, True):
                    runs.append(await sessions.default.start(Cell(CELL, 60.0), reset=reset))
                    await runs[-1].answered.wait()
                await sessions.close(await sessions.open("other", None, None))

        def claims() -> None:
            for run in runs:
                assert run.finished
                assert run.result is not None
                assert run.result.state in (PRESERVED, CLEARED)
            for sessions in kept:
                for session in sessions.all:
                    assert not session.alive
                    assert session.active is None or session.active.finished
                    assert session.generation is None or session.generation.over.is_set()

        return claims

    async def streams(self, scope: trio.CancelScope) -> Claims:
        """The console's streams, one of them full."""
        full, other = os.pipe(), os.pipe()
        for end in (*full, other[1]):
            os.set_blocking(end, False)
        outputs = cast("Outputs", _Outputs(full[1], other[1]))
        try:
            with scope:
                async with open_streams(outputs) as streams:
                    streams.write("stdout", b"x" * 200_000)
                    streams.say("stderr", "a line")
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(streams.drained)
                        await _read(full[0], 200_000)
        finally:
            for fd in (*full, *other):
                os.close(fd)
        return lambda: None


async def _read(fd: int, size: int) -> None:
    while size > 0:
        await trio.lowlevel.wait_readable(fd)
        size -= len(os.read(fd, 65_536))


class _Outputs:
    """Two descriptors in the place of this process's own."""

    def __init__(self, stdout: int, stderr: int) -> None:
        self.stdout = stdout
        self.stderr = stderr


STORIES = {
    "open_root": Stage.root,
    "open_guard": Stage.guard,
    "open_generation": Stage.generation,
    "open_sessions": Stage.sessions,
    "open_streams": Stage.streams,
}


def bound(stage: Stage, name: str) -> Story:
    return partial(STORIES[name], stage)


@pytest.mark.parametrize("name", STORIES)
def test_some_steps(name: str, tmp_path: Path) -> None:
    sweep(bound(Stage(tmp_path), name), SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
def test_every_step(name: str, tmp_path: Path) -> None:
    sweep(bound(Stage(tmp_path), name))


def test_the_stories_reach_their_end(tmp_path: Path) -> None:
    """A story that failed by itself at its first step would be swept in vain."""
    stage = Stage(tmp_path)
    assert {name: play(bound(stage, name), 0) > 5 for name in STORIES} == dict.fromkeys(STORIES, True)


def test_a_sweep_sees_what_is_left() -> None:
    opened: list[int] = []

    async def careless(scope: trio.CancelScope) -> Claims:
        with scope:
            opened.append(os.open(os.devnull, os.O_RDONLY))
            await trio.lowlevel.checkpoint()
            os.close(opened.pop())
        return lambda: None

    play(careless, 0)
    with pytest.raises(AssertionError, match="descriptors left"):
        sweep(careless)
    os.close(opened.pop())
