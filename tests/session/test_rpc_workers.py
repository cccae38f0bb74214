"""What cells of real workers ask of the peers: cancelled, killed, too large, and while the GIL is held."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import trio

from repl_trio.limits import Limits
from repl_trio.session.session import Session
from repl_trio.session.sessions import open_sessions
from repl_trio.settings import Settings
from repl_trio.values import CANCELLED, CLEARED, PRESERVED, WORKER_DIED, Cell, ExecutionResult
from repl_trio.wire import frames
from tests.fakes.peers import FakePeers

HANG = 60.0
"""seconds. Beyond every wait of a test here."""


@asynccontextmanager
async def open_real(folder: Path, peers: FakePeers, **limits: str) -> AsyncIterator[Session]:
    """The default session with the interpreter of the tests. No process is left afterwards."""
    settings = Settings("serve")
    settings.project = str(folder)
    settings.python = sys.executable
    settings.limits = Limits.overridden(limits)
    settings.environment = dict(os.environ)
    before = psutil.Process().children(recursive=True)
    with trio.fail_after(HANG):
        async with open_sessions(settings) as sessions:
            sessions.reach(peers)
            yield sessions.default
    assert psutil.Process().children(recursive=True) == before


async def cell(session: Session, code: str) -> ExecutionResult:
    run = await session.start(Cell(code, 50.0))
    await run.answered.wait()
    assert run.result is not None
    return run.result


async def test_a_cell_calls_and_its_origin_is_known(tmp_path: Path) -> None:
    peers = FakePeers()
    async with open_real(tmp_path, peers) as session:
        result = await cell(session, "mcp.call('s', 'echo', a=[1]).data")
        assert (result.success, result.value) == (True, {"a": [1]})
        origin = peers.origins[0]
        assert (origin.run_id, origin.session_id, origin.project) == (result.run_id, session.id, str(tmp_path))


async def test_a_cancel_with_many_calls_in_flight_cancels_each_and_keeps_the_namespace(tmp_path: Path) -> None:
    peers = FakePeers()
    async with open_real(tmp_path, peers) as session:
        await cell(session, "kept = 1; import asyncio")
        run = await session.start(Cell("await asyncio.gather(*(mcp.acall('s', 'hang') for i in range(32)))", 50.0))
        await peers.has_begun(32)
        run.cancel("the test")
        await run.answered.wait()
        assert run.result is not None
        assert (run.result.error_code, run.result.state) == (CANCELLED, PRESERVED)
        assert peers.left == ["hang"] * 32
        assert (await cell(session, "[kept, mcp.call('s', 'echo', a=1).data['a']]")).value == [1, 1]


async def test_cancels_at_any_moment_leave_no_request_behind(tmp_path: Path) -> None:
    chance = random.Random(11)
    peers = FakePeers()
    async with open_real(tmp_path, peers) as session:
        for number in range(40):
            code = "while True: mcp.call('s', 'echo', n=[1] * 20)"
            if number % 2:
                code = "import asyncio\nwhile True: await asyncio.gather(*(mcp.acall('s', 'echo') for i in range(8)))"
            run = await session.start(Cell(code, 50.0))
            await peers.has_begun(len(peers.begun) + 1)
            await trio.sleep(chance.random() * 0.01)
            run.cancel("the test")
            await run.answered.wait()
            assert run.result is not None
            assert (run.result.error_code, run.result.state) == (CANCELLED, PRESERVED), run.result.error
            told = await cell(session, "[mcp._turn.exchange().pending, mcp.call('s', 'echo', a=1).data['a']]")
            assert told.value == [0, 1], told.error


async def test_a_call_that_swallows_its_end_is_refused_until_the_interrupt_comes(tmp_path: Path) -> None:
    peers = FakePeers()
    async with open_real(tmp_path, peers) as session:
        code = (
            "caught = []\nwhile True:\n    try: mcp.call('s', 'hang')\n    except Exception as e: caught.append(e.code)"
        )
        run = await session.start(Cell(code, 50.0))
        await peers.has_begun(1)
        run.cancel("the test")
        await run.answered.wait()
        assert run.result is not None
        assert run.result.state == PRESERVED
        assert peers.begun == ["hang"]
        assert (await cell(session, "sorted(set(caught))")).value in (["CALL_CANCELLED"], [])


async def test_a_worker_that_is_killed_in_a_call_ends_it(tmp_path: Path) -> None:
    peers = FakePeers()
    async with open_real(tmp_path, peers) as session:
        run = await session.start(Cell("mcp.call('s', 'hang')", 50.0))
        await peers.has_begun(1)
        assert session.generation is not None
        assert session.generation.guard.child_pid is not None
        os.kill(session.generation.guard.child_pid, signal.SIGKILL)
        await run.answered.wait()
        assert run.result is not None
        assert (run.result.error_code, run.result.state) == (WORKER_DIED, CLEARED)
        assert peers.left == ["hang"]
        assert (await cell(session, "mcp.call('s', 'echo').data")).value == {}


DEAF = "signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGURG, signal.SIGUSR1))"
GIL = "ctypes.PyDLL(None).usleep({})"
"""Holds the GIL for so many microseconds; in a cell that is `DEAF`, whatever signals come."""


async def test_answers_wait_for_a_cell_that_holds_the_gil(tmp_path: Path) -> None:
    peers = FakePeers()
    code = (
        "import asyncio, ctypes\n"
        "ts = [asyncio.create_task(mcp.acall('s', 'held', n='x' * 900_000)) for i in range(8)]\n"
        f"await asyncio.sleep(0)\n{GIL.format(300_000)}\n"
        "[len(r.data['n']) for r in await asyncio.gather(*ts)]"
    )
    async with open_real(tmp_path, peers, write_stall="0.1") as session:
        run = await session.start(Cell(code, 50.0))
        await peers.has_begun(8)
        peers.go.set()
        await run.answered.wait()
        assert run.result is not None
        assert run.result.value == [900_000] * 8, run.result.error


async def test_a_gil_that_is_never_given_back_is_no_reason_to_hang(tmp_path: Path) -> None:
    peers = FakePeers()
    code = (
        f"{DEAF}\nts = [asyncio.create_task(mcp.acall('s', 'held', n='x' * 900_000)) for i in range(8)]\n"
        f"await asyncio.sleep(0)\n{GIL.format(50_000_000)}"
    )
    ladder = {"ladder_again": "0.35", "ladder_dump": "0.4", "ladder_term": "0.45", "ladder_kill": "0.5"}
    async with open_real(tmp_path, peers, **ladder) as session:
        await cell(session, "import asyncio, ctypes, signal")
        run = await session.start(Cell(code, 50.0))
        await peers.has_begun(8)
        peers.go.set()
        run.cancel("the test")
        await run.answered.wait()
        assert run.result is not None
        assert (run.result.error_code, run.result.state) == (CANCELLED, CLEARED)
        assert (await cell(session, "mcp.call('s', 'echo').data")).value == {}


async def test_a_cell_after_large_answers_that_nobody_took_finds_room(tmp_path: Path) -> None:
    peers = FakePeers()
    code = (
        "import asyncio\nts = [asyncio.create_task(mcp.acall('s', 'held', n='x' * 900_000)) for i in range(16)]\n"
        "await asyncio.sleep(0)\nwhile True: await asyncio.sleep(1)"
    )
    async with open_real(tmp_path, peers) as session:
        for _again in range(5):
            peers.go = trio.Event()
            begun = len(peers.begun)
            run = await session.start(Cell(code, 50.0))
            await peers.has_begun(begun + 16)
            peers.go.set()
            await trio.lowlevel.checkpoint()
            run.cancel("the test")
            await run.answered.wait()
            assert run.result is not None
            assert run.result.state == PRESERVED, run.result.error
            assert (await cell(session, "1 + 1")).value == 2


async def test_an_answer_over_the_frame_limit_is_an_artifact_and_an_error_that_says_so(tmp_path: Path) -> None:
    peers = FakePeers()
    async with open_real(tmp_path, peers) as session:
        code = "try: mcp.call('s', 'large', size=1_500_000)\nexcept mcp.Error as e: got = e\n"
        result = await cell(session, code + "[got.code, got.sent, got.artifact, str(got)]")
        assert isinstance(result.value, list), result.error
        code_, sent, artifact_id, message = result.value
        (artifact,) = result.artifacts
        assert (code_, sent, artifact_id) == ("LIMIT_REACHED", "done", artifact.id)
        assert (artifact.name, artifact.kind, artifact.complete) == ("s.large.json", "result", True)
        assert "limit `frame_bytes` is 1,048,576" in message
        assert artifact.id in message
        whole = json.loads(session.artifacts.read(artifact.id, 0, artifact.size))
        assert whole == {"content": [{"type": "text", "text": "x" * 1_500_000}]}


async def test_one_that_just_fits_comes_as_it_is(tmp_path: Path) -> None:
    peers = FakePeers()
    empty = len(frames.encode({"frame": "rpc_result", "id": 1, "result": _envelope(""), "error": None}, 10_000))
    most = Limits().frame_bytes - empty
    async with open_real(tmp_path, peers) as session:
        assert (await cell(session, f"len(mcp.call('s', 'large', size={most}).text)")).value == most
        over = await cell(session, f"mcp.call('s', 'large', size={most + 1})")
        assert "frame_bytes" in str(over.error)


def _envelope(words: str) -> str:
    return json.dumps({"content": [{"type": "text", "text": words}]}, separators=(",", ":"))


async def test_another_sessions_call_goes_on(tmp_path: Path) -> None:
    peers = FakePeers()
    async with open_real(tmp_path, peers) as session:
        sessions = session._surroundings
        other = Session("s9", "other", str(tmp_path), sys.executable, sessions)
        try:
            run = await session.start(Cell("mcp.call('s', 'hang')", 50.0))
            kept = await other.start(Cell("mcp.call('s', 'held', a=1).data", 50.0))
            await peers.has_begun(2)
            run.cancel("the test")
            await run.answered.wait()
            assert peers.left == ["hang"]
            peers.go.set()
            await kept.answered.wait()
            assert kept.result is not None
            assert kept.result.value == {"a": 1}
        finally:
            with trio.CancelScope(shield=True):
                await other.close("the test is over")
