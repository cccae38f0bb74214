"""Torn, oversized, unknown, foreign and doubled frames, in each state of a worker: it is ended, and replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from repl_trio.machines import generation as table
from repl_trio.session.session import Session
from repl_trio.values import CLEARED, PRESERVED, WORKER_DIED
from tests.fakes.worker import RESULT as WHOLE
from tests.faults.stage import HANG_ON, READY, RESULT, Step, begin, finish, goes_on, open_default

FRAME_BYTES = 8_192
FOREIGN = json.dumps({**WHOLE, "id": "r99-abcdef"}) + "\n"
OUTPUT = {"id": "r99-abcdef", "stream": "display", "item": 1, "name": "", "media_type": "text/plain"}

BAD: dict[str, list[Step]] = {
    "torn by the next frame": [["raw", '{"frame":"resul'], RESULT],
    "torn inside a character": [["raw", '{"frame":"\udcc3"}\n']],
    "empty": [["raw", "\n"]],
    "no JSON": [["raw", "result\n"]],
    "no object": [["raw", '["frame","result"]\n']],
    "no kind": [["raw", "{}\n"]],
    "kind of a wrong type": [["raw", '{"frame":["result"]}\n']],
    "unknown kind": [["raw", '{"frame":"rezult"}\n']],
    "kind of the other direction": [["raw", '{"frame":"shutdown"}\n']],
    "missing keys": [["raw", '{"frame":"result","id":"r1"}\n']],
    "key twice, the second wrong": [["result", {"id": 7}]],
    "NaN": [["raw", '{"frame":"refused","reason":NaN}\n']],
    "nested too deep": [["raw", "[", 5_000], ["raw", "\n"]],
    "oversized": [["raw", "x" * 64, FRAME_BYTES // 32], ["raw", "\n"]],
    "oversized without an end": [["raw", "x" * 64, FRAME_BYTES // 16]],
    "result of another run": [["raw", FOREIGN]],
    "output of another run": [["frame", {**OUTPUT, "data": "", "last": True, "complete": True}, "output"]],
    "ready twice": [READY, READY],
}


@pytest.mark.parametrize("name", [name for name in BAD if name != "oversized without an end"])
async def test_instead_of_ready(tmp_path: Path, name: str) -> None:
    limits = {"frame_bytes": str(FRAME_BYTES)}
    async with open_default(tmp_path, *BAD[name], HANG_ON, limits=limits) as session:
        run = await finish(await begin(session, RESULT))
        assert run.result is not None
        assert not run.result.success
        if run.generation:  # `ready` came first, and the cell with it
            assert run.result.error_code == WORKER_DIED
        else:
            assert run.result.error_code == "WORKER_START_FAILED"
            assert "protocol" in str(run.result.error)
        assert not session.alive


@pytest.mark.parametrize("name", BAD)
async def test_under_a_run(tmp_path: Path, name: str) -> None:
    async with open_default(tmp_path, limits={"frame_bytes": str(FRAME_BYTES)}) as session:
        first = await finish(await begin(session, RESULT))
        run = await finish(await begin(session, *BAD[name], HANG_ON, seconds=2.0))
        assert run.result is not None
        assert (run.result.success, run.result.state, run.generation) == (False, CLEARED, first.generation)
        if name != "oversized without an end":
            assert run.result.error_code == WORKER_DIED
            assert "protocol" in str(run.result.error)
        await goes_on(session, run)


@pytest.mark.parametrize("name", [name for name in BAD if name != "oversized without an end"])
async def test_from_an_idle_worker(tmp_path: Path, name: str) -> None:
    """Right behind a result: that one stands, and the next cell gets a new namespace and is told why."""
    async with open_default(tmp_path, limits={"frame_bytes": str(FRAME_BYTES)}) as session:
        first = await finish(await begin(session, ["result", {"return_value": "'good'"}], *BAD[name], HANG_ON))
        assert session.generation is not None
        await session.generation.over.wait()
        second = await finish(await begin(session, RESULT))
        assert first.result is not None
        assert second.result is not None
        assert (first.result.return_value, first.result.state) == ("'good'", PRESERVED)
        assert (second.result.success, second.result.state_reset) == (True, True)
        assert "protocol" in str(second.result.lost)


@pytest.mark.parametrize("name", BAD)
async def test_from_a_worker_that_is_leaving(tmp_path: Path, name: str) -> None:
    """During a stop: whatever it says, it leaves, and the next generation comes."""
    async with open_default(tmp_path, limits={"frame_bytes": str(FRAME_BYTES)}) as session:
        run = await finish(await begin(session, RESULT, ["wait"], *BAD[name], HANG_ON))
        await _interrupt(session)
        assert session.generation is not None
        await session.generation.stop()
        assert session.generation.machine.state == table.GONE
        await _next_namespace(session, run.generation)


async def _interrupt(session: Session) -> None:
    generation = session.generation
    assert generation is not None
    generation.leave()
    await generation.guard.signal(2, "child")


async def _next_namespace(session: Session, before: int) -> None:
    run = await finish(await begin(session, RESULT))
    assert run.result is not None
    assert (run.result.success, run.result.state_reset, run.generation) == (True, True, before + 1)


async def test_a_result_that_comes_twice_counts_once(tmp_path: Path) -> None:
    async with open_default(tmp_path) as session:
        good, evil = ["result", {"return_value": "'good'"}], ["result", {"return_value": "'evil'"}]
        run = await finish(await begin(session, good, evil, HANG_ON))
        assert run.result is not None
        assert run.result.return_value == "'good'"
        assert session.generation is not None
        with trio.fail_after(20):
            await session.generation.over.wait()
        await _next_namespace(session, run.generation)
