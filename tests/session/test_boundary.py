"""A bug of ours in the task that owns a worker: it costs that worker, and nobody else anything."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
from trio.testing import MockClock

from repl_trio.session import session as session_module
from repl_trio.session.generation import Generation
from repl_trio.session.sessions import open_sessions
from repl_trio.settings import Settings
from repl_trio.values import CLEARED, Cell
from tests.fakes import worker as fake
from tests.fakes.generation import Workshop
from tests.fakes.session import answering, finish, open_session

HANG = 60.0
"""seconds."""


async def test_before_the_worker_is_there_the_run_is_told(
    autojump_clock: MockClock, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def buggy(*_arguments: object) -> NoReturn:
        raise RuntimeError("a bug")

    answering(workshop)
    async with open_session() as (session, _):
        with monkeypatch.context() as patched:
            patched.setattr(session_module, "open_generation", buggy)
            run = await finish(session)
        assert run.result is not None
        assert (run.result.success, run.result.error_code) == (False, "WORKER_START_FAILED")
        assert "bug in repl-trio" in (run.result.error or "")
        assert "a bug" in caplog.text
        again = await finish(session)
        assert again.result is not None
        assert again.result.success


async def test_under_a_cell_the_run_is_answered_and_other_sessions_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    framed = Generation._frame

    def buggy(self: Generation, frame: dict[str, Any]) -> None:
        if frame.get("error") == "bug":
            raise RuntimeError("a bug")
        framed(self, frame)

    monkeypatch.setattr(Generation, "_frame", buggy)
    settings = Settings("serve")
    settings.project, settings.python = str(tmp_path), fake.install(tmp_path)
    with trio.fail_after(HANG):
        async with open_sessions(settings) as sessions:
            other = await sessions.open("other", None, None)
            await finish(other, Cell(fake.script(["result"]), 30.0))
            run = await finish(sessions.default, Cell(fake.script(["result", {"error": "bug"}]), 30.0))
            assert run.result is not None
            assert (run.result.success, run.result.state, run.result.error_code) == (False, CLEARED, "WORKER_DIED")
            assert "bug in repl-trio" in (run.result.error or "")
            again = await finish(sessions.default, Cell(fake.script(["result"]), 30.0))
            assert again.result is not None
            assert (again.result.success, again.result.generation) == (True, 2)
            assert "bug in repl-trio" in (again.result.lost or "")
            assert (await finish(other, Cell(fake.script(["result"]), 30.0))).generation == 1
    assert "a bug" in caplog.text
