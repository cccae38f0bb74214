"""What cells ask of the peers, as the session layer sees it: over real workers, and over a pipe where frames count."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from repl_trio.limits import Limits
from repl_trio.machines.ladder import WORKER
from repl_trio.process.pipes import PipeReader, PipeWriter
from repl_trio.session.rpc import Calls, Kept
from repl_trio.session.run import Run
from repl_trio.session.session import Session
from repl_trio.values import CANCELLED, CLEARED, PRESERVED, TIMEOUT, WORKER_DIED, Origin
from repl_trio.wire import frames
from repl_trio.wire.frames import FrameError
from tests.fakes.generation import FakeGeneration, Workshop
from tests.fakes.peers import FakeCommands, FakePeers, rpc
from tests.fakes.session import ENDLESS, INT, finish, on_signal, open_session
from tests.session.test_generation import accept, died, open_fake

HANG = 60.0
"""seconds. Beyond every wait of a test here."""


# -- frames over a pipe ----------------------------------------------------------------------------------------


class Wire:
    """The RPCs of one run, and the worker's end of what they answer."""

    def __init__(self, calls: Calls, reader: PipeReader) -> None:
        self.calls = calls
        self._reader = reader
        self._lines: list[bytes] = []

    def ask(self, number: int, tool: str, **arguments: object) -> None:
        self.calls.ask(rpc("r1", number, tool, **arguments))

    def cancel(self, number: int) -> None:
        self.calls.cancel({"frame": "rpc_cancel", "id": number, "run_id": "r1"})

    async def answer(self) -> Any:
        """The next `rpc_result`."""
        held = b""
        while not self._lines:
            held += await self._reader.receive()
            *self._lines, held = held.split(b"\n")
        frame: Any = frames.decode(self._lines.pop(0), frames.TO_WORKER)
        assert (frame["result"] is None) == (frame["error"] is not None)
        return frame


@asynccontextmanager
async def open_wire(peers: FakePeers | None, **limits: str) -> AsyncIterator[Wire]:
    """An open pipe with `Calls` at one end. None of its tasks is left afterwards."""
    numbers = Limits.overridden(limits)
    read, write = os.pipe()
    for descriptor in (read, write):
        os.set_blocking(descriptor, False)
    writer, reader = PipeWriter(write, frames=numbers.frames_queued), PipeReader(read)
    try:
        with trio.fail_after(HANG):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.run)
                calls = Calls(peers, Origin("r1", "s1", "/p", lambda _line: None), writer, Kept(None, []), numbers)
                nursery.start_soon(calls.serve)
                yield Wire(calls, reader)
                calls.halt()
                await calls.ended.wait()
                assert not calls.active
                nursery.cancel_scope.cancel()
    finally:
        writer.close()
        reader.close()


async def test_as_many_as_the_limit_are_taken_and_one_more_is_told_so() -> None:
    peers = FakePeers()
    async with open_wire(peers, rpc_pending="3") as wire:
        for number in range(1, 5):
            wire.ask(number, "held", n=number)
        refused = await wire.answer()
        assert refused["id"] == 4
        assert (refused["error"]["code"], refused["error"]["sent"]) == ("LIMIT_REACHED", "no")
        assert "3 requests" in refused["error"]["message"]
        assert "limit `rpc_pending` is 3" in refused["error"]["message"]
        peers.go.set()
        assert {(await wire.answer())["id"] for _ in range(3)} == {1, 2, 3}
        wire.ask(5, "echo")
        assert (await wire.answer())["id"] == 5
    assert len(peers.begun) == 4


async def test_the_next_may_be_asked_in_the_moment_in_which_an_answer_comes() -> None:
    async with open_wire(FakePeers(), rpc_pending="1") as wire:
        for number in range(100):
            wire.ask(number, "echo", n="x" * 100_000)  # more than the pipe holds: its last part comes late
            answer = await wire.answer()
            assert (answer["id"], answer["error"]) == (number, None)


async def test_a_cancelled_one_makes_room_at_once_and_is_not_answered() -> None:
    peers = FakePeers()
    peers.farewell = 0.05
    async with open_wire(peers, rpc_pending="1") as wire:
        wire.ask(1, "hang")
        await peers.has_begun(1)
        wire.cancel(1)
        wire.ask(2, "echo")
        assert (await wire.answer())["id"] == 2
        await peers.has_left(1)
        wire.cancel(1)
        wire.cancel(77)
        wire.ask(3, "echo")
        assert (await wire.answer())["id"] == 3


async def test_what_takes_its_leave_for_long_is_bounded_as_well() -> None:
    peers = FakePeers()
    peers.farewell = inf
    async with open_wire(peers, rpc_pending="2") as wire:
        for number in range(8):
            wire.ask(number, "hang")
            await peers.has_begun(number + 1)
            wire.cancel(number)
        wire.ask(8, "echo")
        refused = await wire.answer()
        assert (refused["id"], refused["error"]["code"]) == (8, "LIMIT_REACHED")
        peers.released.set()
        await peers.has_left(8)
        wire.ask(9, "echo")
        assert (await wire.answer())["error"] is None


async def test_an_id_that_is_in_use_breaks_the_link() -> None:
    async with open_wire(FakePeers()) as wire:
        wire.ask(1, "hang")
        with pytest.raises(FrameError, match="the id of another"):
            wire.ask(1, "hang")


async def test_refusals_that_nobody_reads_break_the_link() -> None:
    async with open_wire(FakePeers(), rpc_pending="1") as wire:
        wire.ask(0, "hang")

        def flood() -> None:
            for number in range(1, 1_000_000):
                wire.ask(number, "hang")

        with pytest.raises(FrameError, match="takes no answers"):
            flood()


@pytest.mark.parametrize(
    ("tool", "code", "sent", "server"),
    [
        ("refuse", "NOT_GRANTED", "no", "s"),
        ("bug", "INTERNAL_ERROR", "unknown", "s"),
        ("odd", "PROTOCOL_ERROR", "done", "s"),
    ],
)
async def test_what_goes_wrong_is_an_answer(
    tool: str, code: str, sent: str, server: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "repl_trio.session"):
        async with open_wire(FakePeers()) as wire:
            wire.ask(1, tool)
            error = (await wire.answer())["error"]
            wire.ask(2, "echo")
            assert (await wire.answer())["error"] is None
    assert (error["code"], error["sent"], error["server"], error["tool"]) == (code, sent, server, tool)
    assert "secret" not in error["message"]
    if tool == "bug":
        # The place and the kind; the message may quote what only the broker could redact.
        assert "LookupError" in caplog.text
        assert "do_bug" in caplog.text
    assert "secret" not in caplog.text


async def test_without_peers_everything_is_refused() -> None:
    async with open_wire(None) as wire:
        wire.ask(1, "echo")
        error = (await wire.answer())["error"]
        assert (error["code"], error["sent"]) == ("UNSUPPORTED", "no")


async def test_at_the_end_what_waits_is_told_so_and_nothing_is_begun_any_more() -> None:
    peers = FakePeers()
    async with open_wire(peers) as wire:
        wire.ask(1, "hang")
        await peers.has_begun(1)
        wire.calls.halt()
        first = await wire.answer()
        wire.ask(2, "echo")
        second = await wire.answer()
        told = [(one["id"], one["error"]["code"], one["error"]["sent"]) for one in (first, second)]
        assert told == [(1, "CALL_CANCELLED", "unknown"), (2, "CALL_CANCELLED", "no")]
    assert (peers.begun, peers.left) == (["hang"], ["hang"])


# -- the run they belong to ------------------------------------------------------------------------------------


@asynccontextmanager
async def open_asking(workshop: Workshop, peers: FakePeers) -> AsyncIterator[tuple[Session, FakeGeneration, Run]]:
    """A session whose cell runs, and has asked for `hang`."""
    async with open_session() as (session, surroundings):
        surroundings.peers = peers
        run = await session.start(ENDLESS)
        with trio.move_on_after(1.0):
            await run.answered.wait()
        run.ask(rpc(run.id, 1, "hang"), FakeCommands())  # type: ignore[arg-type]
        await peers.has_begun(1)
        yield session, workshop.newest, run


@pytest.mark.parametrize(("farewell", "late"), [(0.0, 0.0), (0.05, 0.05), (30.0, 0.1)])
async def test_the_peers_are_told_before_the_first_signal(
    autojump_clock: MockClock, workshop: Workshop, farewell: float, late: float
) -> None:
    peers = FakePeers()
    peers.farewell = farewell
    async with open_asking(workshop, peers) as (_session, generation, run):
        left_at_signal: list[list[str]] = []

        def interrupt() -> None:
            left_at_signal.append(list(peers.left))
            generation.answer(success=False, interrupted=True)

        on_signal(generation, INT, WORKER, interrupt)
        await run.answered.wait()
        (seconds, number, _target), *_ = generation.guard.signals
        assert number == INT
        assert seconds == pytest.approx(ENDLESS.timeout + late)
        assert left_at_signal == [["hang"] if farewell < 1 else []]
        assert run.result is not None
        assert (run.result.error_code, run.result.state) == (TIMEOUT, PRESERVED)
        assert run.elapsed_ms == pytest.approx(1000 * (ENDLESS.timeout + (late if farewell < 1 else 1.1)), abs=2)


async def test_a_run_whose_cell_has_ended_takes_its_calls_along(autojump_clock: MockClock, workshop: Workshop) -> None:
    peers = FakePeers()
    async with open_asking(workshop, peers) as (session, generation, run):
        generation.answer(return_value="7")
        assert not run.answered.is_set()
        await run.answered.wait()
        assert run.result is not None
        assert (run.result.success, run.result.return_value, run.result.state) == (True, "7", PRESERVED)
        assert peers.left == ["hang"]
        assert generation.guard.signals == []
        generation.on_begin = lambda run: trio.lowlevel.current_trio_token().run_sync_soon(generation.answer)
        assert (await finish(session)).calls is None


async def test_a_worker_that_dies_takes_its_calls_along(autojump_clock: MockClock, workshop: Workshop) -> None:
    peers = FakePeers()
    async with open_asking(workshop, peers) as (_session, generation, run):
        generation.die("The worker was ended by SIGSEGV")
        await run.answered.wait()
        assert run.result is not None
        assert (run.result.error_code, run.result.state) == (WORKER_DIED, CLEARED)
        assert peers.left == ["hang"]


async def test_a_cancel_while_the_calls_of_an_ended_cell_take_their_leave_is_no_success(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    peers = FakePeers()
    peers.farewell = 0.5
    async with open_asking(workshop, peers) as (_session, generation, run):
        generation.answer(success=False, error="KeyError")
        await trio.testing.wait_all_tasks_blocked()
        run.cancel("python_cancel")
        await run.answered.wait()
        assert run.result is not None
        assert run.result.error_code == CANCELLED


async def test_a_line_of_progress_is_shown_until_the_cell_says_something(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    peers = FakePeers()
    async with open_asking(workshop, peers) as (_session, _generation, run):
        run.write("stdout", b"begun\n")
        run.ask(rpc(run.id, 2, "progress"), FakeCommands())  # type: ignore[arg-type]
        await peers.has_begun(2)
        await trio.testing.wait_all_tasks_blocked()
        assert run.last_line() == "half way"
        run.write("stdout", b"done\n")
        assert run.last_line() == "done"
        assert (peers.origins[-1].run_id, peers.origins[-1].session_id) == (run.id, "s1")


# -- frames of a worker ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rpc", "rpc_cancel"])
async def test_a_request_of_no_run_breaks_the_link(tmp_path: Path, kind: str) -> None:
    more = {"op": "servers", "params": {}} if kind == "rpc" else {}
    async with open_fake(tmp_path) as generation:
        run = accept(generation, ["frame", {"id": 1, "run_id": "other", **more}, kind], ["hang"])
        assert "broke its protocol" in await died(generation, run)


async def test_a_late_request_of_the_run_before_is_dropped(tmp_path: Path) -> None:
    late = ["frame", {"id": 1, "run_id": "r1", "op": "servers", "params": {}}, "rpc"]
    async with open_fake(tmp_path) as generation:
        first = accept(generation, ["result"], late, ["frame", {"id": 1, "run_id": "r1"}, "rpc_cancel"])
        await first.answered.wait()
        second = accept(generation, ["result"])
        await second.answered.wait()
        assert generation.alive
