"""The end of the worker's link, of the worker and of its guardian, in each state of a run and of a generation."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import trio

from repl_trio.machines import generation as generation_table
from repl_trio.machines import run as run_table
from repl_trio.session.run import Run
from repl_trio.session.session import Session
from repl_trio.values import CANCELLED, CLEARED, PRESERVED, TIMEOUT, UNFINISHED_WORK, WORKER_DIED
from tests.faults.stage import HANG_ON, READY, RESULT, Step, begin, finish, goes_on, kill, open_default

#: How a worker's link or the worker itself ends, by its own steps.
ENDS: dict[str, list[Step]] = {
    "link closed": [["close", 3], HANG_ON],
    "commands closed": [["close", 0], ["exit", 0]],
    "exit": [["exit", 0]],
    "SIGKILL": [["kill", signal.SIGKILL]],
    "SIGSEGV": [["kill", signal.SIGSEGV]],
    "half a frame": [["raw", '{"frame":"res'], ["exit", 3]],
}


@pytest.mark.parametrize("end", ENDS)
async def test_starting(tmp_path: Path, end: str) -> None:
    async with open_default(tmp_path, *ENDS[end]) as session:
        run = await begin(session, RESULT)
        assert run.machine.state == run_table.ACCEPTED
        await finish(run)
        assert run.result is not None
        # Nothing was lost: there has never been a namespace.
        assert (run.result.error_code, run.result.state, run.generation) == ("WORKER_START_FAILED", PRESERVED, 0)


@pytest.mark.parametrize("whom", ["worker", "guardian"])
async def test_accepted(tmp_path: Path, whom: str) -> None:
    """The idle worker is gone, and the server has not heard of it when the cell comes."""
    async with open_default(tmp_path) as session:
        await finish(await begin(session, RESULT))
        kill(session, whom)
        run = await finish(await begin(session, RESULT))
        assert run.result is not None
        assert run.result.error_code == WORKER_DIED or run.result.success
        if run.result.state == CLEARED:
            await goes_on(session, run)


@pytest.mark.parametrize("end", ENDS)
async def test_running(tmp_path: Path, end: str) -> None:
    async with open_default(tmp_path) as session:
        run = await finish(await begin(session, ["write", 1, "before"], *ENDS[end]))
        assert run.result is not None
        assert (run.result.error_code, run.result.state) == (WORKER_DIED, CLEARED)
        assert run.stdout.render()[0] == "before"
        await goes_on(session, run)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("why", [TIMEOUT, CANCELLED])
async def test_interrupting(tmp_path: Path, why: str, end: str) -> None:
    async with open_default(tmp_path) as session:
        await finish(await begin(session, RESULT))
        run = await begin(session, ["wait"], *ENDS[end], seconds=0.2 if why == TIMEOUT else 60.0)
        if why == CANCELLED:
            run.cancel("the test says so")
        await finish(run)
        assert run.result is not None
        assert (run.result.error_code, run.result.state) == (why, CLEARED)
        await goes_on(session, run)


@pytest.mark.parametrize("end", ENDS)
async def test_clearing(tmp_path: Path, end: str) -> None:
    """The result of an interrupted run is there, the kill of what it had started is not yet acknowledged."""
    async with open_default(tmp_path) as session:
        await finish(await begin(session, RESULT))
        run = await begin(session, ["wait"], ["result", {"interrupted": True, "success": False}], *ENDS[end])
        run.cancel("the test says so")
        await finish(run)
        assert run.result is not None
        assert run.result.error_code == CANCELLED
        assert session.generation is not None
        await session.generation.over.wait()
        again = await finish(await begin(session, RESULT))
        assert again.result is not None
        assert again.result.state_reset
        # Either the answer to the first has told the loss, or that to the next cell does.
        assert (run.result.state == CLEARED) is not bool(again.result.lost) or run.result.state == CLEARED


@pytest.mark.parametrize("end", ENDS)
async def test_killing(tmp_path: Path, end: str) -> None:
    """The worker has said that it must not be kept, and ends by itself as well."""
    async with open_default(tmp_path) as session:
        run = await finish(await begin(session, ["result", {"keep": False, "success": False}], *ENDS[end]))
        assert run.result is not None
        assert (run.result.error_code, run.result.state) == (UNFINISHED_WORK, CLEARED)
        await goes_on(session, run)


@pytest.mark.parametrize("end", ENDS)
async def test_finished(tmp_path: Path, end: str) -> None:
    """The result was the last word: it stands, and the next answer tells the loss."""
    async with open_default(tmp_path) as session:
        run = await finish(await begin(session, ["result", {"return_value": "7"}], *ENDS[end]))
        assert session.generation is not None
        await session.generation.over.wait()
        again = await finish(await begin(session, RESULT))
        assert run.result is not None
        assert again.result is not None
        assert (run.result.success, run.result.return_value, run.result.state) == (True, "7", PRESERVED)
        assert (again.result.success, again.result.state_reset) == (True, True)
        assert again.result.lost


# -- the generation --------------------------------------------------------------------------------------------


def _of_guardian(session: Session) -> None:
    kill(session, "guardian")


def _of_worker(session: Session) -> None:
    kill(session, "worker")


def _of_socket(session: Session) -> None:
    """The lifeline is cut, as by a server that is gone."""
    assert session.generation is not None
    session.generation.guard._shut()


CUTS: dict[str, Callable[[Session], None]] = {
    "guardian": _of_guardian,
    "worker": _of_worker,
    "lifeline": _of_socket,
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("state", [generation_table.IDLE, generation_table.BUSY, generation_table.STOPPING])
async def test_a_cut_in_each_state_of_a_generation(tmp_path: Path, state: str, cut: str) -> None:
    async with open_default(tmp_path) as session:
        run = await finish(await begin(session, RESULT))
        generation = session.generation
        assert generation is not None
        if state == generation_table.BUSY:
            run = await begin(session, HANG_ON)
        elif state == generation_table.STOPPING:
            generation.leave()
        assert generation.machine.state == state
        CUTS[cut](session)
        await generation.over.wait()
        assert generation.machine.state == generation_table.GONE
        assert generation.gone.is_set()
        await _answered_and_replaced(session, run)


async def _answered_and_replaced(session: Session, run: Run) -> None:
    await finish(run)
    again = await finish(await begin(session, RESULT))
    assert again.result is not None
    assert (again.result.success, again.result.state_reset) == (True, True)
    assert again.generation == run.generation + 1


@pytest.mark.parametrize("cut", CUTS)
async def test_a_cut_while_it_launches(tmp_path: Path, cut: str) -> None:
    mark = tmp_path / "up"
    async with open_default(tmp_path, ["touch", str(mark)], ["wait"], READY) as session:
        run = await begin(session, RESULT)
        while not mark.exists():  # noqa: ASYNC110 - another process announces nothing
            await trio.sleep(0.005)
        # The session learns of a generation when it is ready: the parts are found by their parents.
        await _cut_launching(cut)
        await finish(run)
        assert run.result is not None
        assert (run.result.error_code, run.generation) == ("WORKER_START_FAILED", 0)
        assert not session.alive


async def _cut_launching(cut: str) -> None:
    root = next(child for child in psutil.Process().children() if child.children())
    guardian = root.children()[0]
    worker = guardian.children()[0]
    victim = {"guardian": guardian, "worker": worker, "lifeline": guardian}[cut]
    os.kill(victim.pid, signal.SIGTERM if cut == "lifeline" else signal.SIGKILL)
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("cut", CUTS)
async def test_a_cut_after_it_is_gone_changes_nothing(tmp_path: Path, cut: str) -> None:
    async with open_default(tmp_path) as session:
        run = await finish(await begin(session, RESULT))
        generation = session.generation
        assert generation is not None
        await generation.stop()
        if cut == "lifeline":
            generation.guard.give_up()
            generation.guard.stop()
        generation.leave()
        generation.end("again")
        assert generation.machine.state == generation_table.GONE
        assert generation.death != "again"
        await _answered_and_replaced(session, run)
