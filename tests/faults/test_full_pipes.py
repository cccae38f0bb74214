"""Full pipes in both directions: nobody waits for a reader that does not come, and everything still ends."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import psutil
import pytest
import trio
import trio.testing

from repl_trio.session.session import Session
from repl_trio.values import CANCELLED, CLEARED, PRESERVED, WORKER_DIED, Cell
from tests.fakes import worker as fake
from tests.faults.stage import HANG_ON, READY, RESULT, Step, begin, finish, goes_on, open_default

LARGE = 250_000
"""bytes. More than a pipe holds, and no more than a cell may have."""
FLOOD: Step = ["write", 1, "0123456789" * 1_000, 200]


class Stuck:
    """A `Tap` that never has room again."""

    def __init__(self) -> None:
        self.taken = 0

    def write(self, stream: str, chunk: bytes) -> None:
        self.taken += len(chunk)

    async def drained(self) -> None:
        await trio.sleep_forever()


async def _large(session: Session) -> Cell:
    return Cell(fake.script(["nothing", "x" * LARGE], RESULT), 60.0)


async def test_a_worker_that_does_not_read_its_cell(tmp_path: Path) -> None:
    async with open_default(tmp_path, READY, HANG_ON) as session:
        run = await finish(await session.start(await _large(session)))
        assert run.result is not None
        assert (run.result.error_code, run.result.state) == (WORKER_DIED, CLEARED)
        assert "0.5 s" in str(run.result.error)


async def test_a_cancel_while_the_cell_is_not_read(tmp_path: Path) -> None:
    async with open_default(tmp_path, READY, HANG_ON, limits={"write_stall": "30"}) as session:
        run = await session.start(await _large(session))
        while not run.generation:  # noqa: ASYNC110 - being sent is no event
            await trio.sleep(0.005)
        assert session.generation is not None
        assert session.generation.undelivered
        run.cancel("the test says so")
        await finish(run)
        assert run.result is not None
        assert (run.result.error_code, run.result.state) == (CANCELLED, CLEARED)


async def test_questions_to_a_worker_that_reads_nothing(tmp_path: Path) -> None:
    """Each is answered with nothing within its bound, however many there are."""
    limits = {"guardian_ack": "0.5", "write_stall": "30"}
    async with open_default(tmp_path, READY, HANG_ON, limits=limits) as session:
        run = await session.start(await _large(session))
        while not run.generation:  # noqa: ASYNC110 - being sent is no event
            await trio.sleep(0.005)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(_nothing, session)
        assert session.alive
        run.cancel("the test says so")
        await finish(run)


async def _nothing(session: Session) -> None:
    assert await session.names() is None


async def test_closing_a_session_whose_worker_reads_nothing(tmp_path: Path) -> None:
    async with open_default(tmp_path, READY, HANG_ON, limits={"write_stall": "30"}) as session:
        run = await session.start(await _large(session))
        while not run.generation:  # noqa: ASYNC110 - being sent is no event
            await trio.sleep(0.005)
        with trio.fail_after(20):
            await session.close("the test closes it")
        assert run.finished
        assert not session.alive


@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("ending", ["cancel", "close", "kill"])
async def test_output_that_nobody_takes(tmp_path: Path, ending: str, stream: int) -> None:
    """The worker blocks in its own write; it is stopped all the same, and what the pipe held is kept."""
    tap = Stuck()
    async with open_default(tmp_path) as session:
        session.tap = tap
        flood = ["write", stream, *FLOOD[2:]]
        run = await begin(session, flood, RESULT)
        while tap.taken < 65_536:  # noqa: ASYNC110 - output is no event
            await trio.sleep(0.005)
        await trio.testing.wait_all_tasks_blocked()
        if ending == "cancel":
            run.cancel("the test says so")
        elif ending == "close":
            await session.close("the test closes it")
        else:
            assert session.generation is not None
            os.kill(session.generation.guard.child_pid or 0, signal.SIGKILL)
        await finish(run)
        assert run.result is not None
        assert run.result.state == CLEARED
        assert (run.stdout.total, run.stderr.total)[stream - 1] >= 65_536


async def test_a_flood_between_runs_blocks_nothing(tmp_path: Path) -> None:
    async with open_default(tmp_path) as session:
        run = await finish(await begin(session, RESULT, FLOOD))
        again = await finish(await begin(session, RESULT))
        assert again.generation == run.generation
        assert again.result is not None
        assert again.result.state == PRESERVED


async def test_a_guardian_whose_socket_is_full(tmp_path: Path) -> None:
    """Stopped, it takes no orders: half an order ends the lifeline, and the guardian is given up with its worker."""
    async with open_default(tmp_path, limits={"guardian_ack": "0.5", "guardian_clean": "1"}) as session:
        run = await begin(session, ["write", 1, "x"], HANG_ON)
        while not run.stdout.total:  # noqa: ASYNC110 - output is no event
            await trio.sleep(0.005)
        assert session.generation is not None
        guard = session.generation.guard
        assert guard.pid is not None
        os.kill(guard.pid, signal.SIGSTOP)
        for _ in range(20_000):
            guard.stop()
        run.cancel("the test says so")
        await finish(run)
        assert run.result is not None
        assert (run.result.error_code, run.result.state) == (CANCELLED, CLEARED)
        await goes_on(session, run)


async def test_a_root_whose_socket_is_full(tmp_path: Path) -> None:
    """Stopped, it takes no orders: continued by the next one, it takes that in time or is given up for another root."""
    async with open_default(tmp_path, limits={"guardian_ack": "0.5", "guardian_clean": "1"}) as session:
        first = await finish(await begin(session, RESULT))
        root = session._surroundings.watch.root
        pid = root.lives[-1].pid
        os.kill(pid, signal.SIGSTOP)
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.005)
        while root.send({"op": "kill", "id": 10**9, "padding": "x" * 1_000}):
            pass
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # Nobody comes to serve it: it is closed at once.
            session._surroundings.watch.forget(root.fork(theirs))
        run = await finish(await session.start(Cell(fake.script(RESULT), 60.0), reset=True))
        if run.result is not None and not run.result.success:
            run = await finish(await begin(session, RESULT))
        assert run.result is not None
        assert (run.result.success, run.result.state_reset) == (True, True)
        assert run.generation == first.generation + 1
        assert len(root.lives) == 1
