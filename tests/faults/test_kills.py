"""SIGKILL to worker, guardian, root or server right after each frame: runs are answered, nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
import trio.testing

from repl_trio.limits import Limits
from repl_trio.session.run import Run
from repl_trio.session.session import Session
from repl_trio.values import CLEARED, PRESERVED, WORKER_DIED, Cell
from tests.fakes import worker as fake
from tests.faults.stage import (
    HANG_ON,
    RESULT,
    Step,
    begin,
    finish,
    goes_on,
    kill,
    kill_part,
    open_default,
    open_ready,
    running,
)

WHOM = ["worker", "guardian", "root"]
NAMES: dict[str, Any] = {"id": "1", "names": [["a", "int"]], "total": 1}
SPEAK: Step = ["write", 1, "x"]


@pytest.mark.parametrize("whom", WHOM)
async def test_after_execute(tmp_path: Path, whom: str) -> None:
    async with open_default(tmp_path) as session:
        await finish(await begin(session, RESULT))
        # In the same scheduler step: the frame is in the pipe, nobody has read it.
        run = await begin(session, SPEAK, RESULT)
        kill(session, whom)
        await finish(run)
        assert run.result is not None
        if whom == "root":
            assert run.result.success
        elif run.result.state == CLEARED and not run.result.success:  # the result may have come with the death
            assert run.result.error_code == WORKER_DIED
            assert "guardian" in str(run.result.error) if whom == "guardian" else "SIGKILL" in str(run.result.error)
        if whom == "root" or run.result.state == CLEARED:
            await goes_on(session, run)


@pytest.mark.parametrize("whom", WHOM)
async def test_while_the_cell_runs(tmp_path: Path, whom: str) -> None:
    async with open_default(tmp_path) as session:
        run = await begin(session, SPEAK, ["wait"], RESULT)
        await running(run)
        kill(session, whom)
        if whom == "root":
            run.cancel("the test says so")
        await finish(run)
        assert run.result is not None
        assert run.result.state == (PRESERVED if whom == "root" else CLEARED)
        assert run.stdout.total == 1
        await goes_on(session, run)


@pytest.mark.parametrize("whom", WHOM)
async def test_after_inspect(tmp_path: Path, whom: str) -> None:
    async with open_default(tmp_path, limits={"guardian_ack": "20"}) as session:
        run = await begin(session, SPEAK, HANG_ON)
        await running(run)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_names_of_nobody, session)
                await trio.testing.wait_all_tasks_blocked()
                kill(session, whom)
                if whom == "root":
                    kill(session, "worker")
        await finish(run)
        await goes_on(session, run)


async def _names_of_nobody(session: Session) -> None:
    assert await session.names() is None


@pytest.mark.parametrize("whom", WHOM)
async def test_after_namespace(tmp_path: Path, whom: str) -> None:
    async with open_default(tmp_path) as session:
        await finish(await begin(session, RESULT))
        run = await begin(session, ["frame", NAMES, "namespace"], HANG_ON)
        assert await session.names() == ([("a", "int")], 1)
        kill(session, whom)
        if whom == "root":
            kill(session, "worker")
        await finish(run)
        await goes_on(session, run)


@pytest.mark.parametrize("whom", WHOM)
async def test_after_shutdown(tmp_path: Path, whom: str) -> None:
    async with open_default(tmp_path) as session:
        run = await finish(await begin(session, RESULT))
        assert session.generation is not None
        session.generation.leave()
        kill(session, whom)
        await session.generation.over.wait()
        assert session.generation.gone.is_set()
        again = await finish(await begin(session, RESULT))
        assert again.result is not None
        assert (again.generation, again.result.state_reset) == (run.generation + 1, True)


@pytest.mark.parametrize("whom", WHOM)
async def test_after_ready(tmp_path: Path, whom: str) -> None:
    """The frame has been read, the cell is sent to a worker that nobody knows to be dead."""
    async with open_ready(tmp_path) as generation:
        assert generation.problem is None
        kill_part(generation, whom)
        run = Run("r1", "s1", Cell(fake.script(RESULT), 60.0), Limits())
        generation.begin(run)
        await run.arrived.wait()
        if whom == "root":
            assert run.reply is not None
        elif run.reply is None:
            await generation.gone.wait()
            assert not generation.alive


@pytest.mark.parametrize("whom", ["guardian", "root"])
async def test_after_refused(tmp_path: Path, whom: str) -> None:
    async with open_default(tmp_path, ["frame", {"reason": "Tuesday"}, "refused"], HANG_ON) as session:
        run = await begin(session, RESULT)
        root = await _root()
        for victim in [root] if whom == "root" else root.children():
            victim.kill()
        await finish(run)
        assert run.result is not None
        assert run.result.error_code in ("INTERPRETER_BROKEN", "WORKER_START_FAILED")
        assert run.generation == 0


async def _root() -> psutil.Process:
    """The root guardian once it has forked a guardian."""
    while True:
        for child in psutil.Process().children():
            if child.children():
                return child
        await trio.sleep(0.005)


@pytest.mark.parametrize("whom", WHOM)
async def test_after_result(tmp_path: Path, whom: str) -> None:
    """What was answered stays answered; only the next cell meets the loss."""
    async with open_default(tmp_path) as session:
        first = await finish(await begin(session, ["result", {"return_value": "'good'"}]))
        kill(session, whom)
        second = await finish(await begin(session, RESULT))
        assert first.result is not None
        assert second.result is not None
        assert (first.result.return_value, first.result.state) == ("'good'", PRESERVED)
        if second.result.success:
            assert second.result.state_reset is (second.generation != first.generation)
            assert second.result.lost or second.generation == first.generation
        else:
            assert (second.result.error_code, second.result.state) == (WORKER_DIED, CLEARED)


# -- the server ------------------------------------------------------------------------------------------------

GONE = 10.0
"""seconds. For everything below a killed server; it takes a few hundred milliseconds."""


@pytest.mark.parametrize(
    "moment", ["launch", "ready", "execute", "inspect", "namespace", "result", "interrupt", "shutdown", "reset"]
)
def test_server_killed_after(tmp_path: Path, moment: str) -> None:
    command = [sys.executable, "-m", "tests.faults.doomed", str(tmp_path), moment]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert ended.returncode == -9, ended.stderr
    pids = json.loads(ended.stdout)
    assert pids
    deadline = time.monotonic() + GONE
    while left := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < deadline, f"{left} of {pids} left after {moment}"
        os.sched_yield()


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
