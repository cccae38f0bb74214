"""`python_health` with detail, over sessions that never start a worker: what it says, and that it stays in bounds."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import jsonschema
import pytest
import trio
import trio.testing

from repl_trio.limits import DEFAULT, Limits
from repl_trio.process.launch import Root
from repl_trio.process.named import named
from repl_trio.process.pipes import PipeWriter
from repl_trio.process.root import RootWatch
from repl_trio.server import schemas
from repl_trio.server.detail import Detail
from repl_trio.server.request import Request
from repl_trio.session.sessions import Sessions
from repl_trio.settings import Settings
from repl_trio.wire.jsonrpc import Params, RequestId
from repl_trio.wire.mcp import Call

BOUND = 30.0
"""seconds. A hang bound."""
ROOM = 30_000
"""bytes. More than `detail_bytes`."""


def size(report: Params, lines: list[str]) -> int:
    """Bytes of JSON of both forms, as compact as the wire has them."""
    return len(json.dumps(report, separators=(",", ":"))) + len(json.dumps("\n".join(lines)))


@asynccontextmanager
async def open_idle_sessions() -> AsyncIterator[Sessions]:
    async with trio.open_nursery() as nursery:
        sessions = Sessions(nursery, RootWatch(Root(), DEFAULT), Settings("serve"))
        try:
            yield sessions
        finally:
            for session in sessions.all:
                session.artifacts.close()


@contextmanager
def client_pipe() -> Iterator[PipeWriter]:
    """The writing end of a pipe that nobody reads."""
    theirs, ours = os.pipe()
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_NONBLOCK)
    writer = PipeWriter(ours)
    try:
        yield writer
    finally:
        writer.close()
        os.close(theirs)


async def test_a_server_at_rest_has_nothing_to_report_but_its_tasks() -> None:
    async with open_idle_sessions() as sessions:
        with client_pipe() as writer:
            report, lines = Detail(sessions, {}, writer, DEFAULT).report(ROOM)
    tasks = report.pop("tasks")
    assert isinstance(tasks, list)
    assert report == {
        "root": {"state": "none"},
        "requests": [],
        "requests_total": 0,
        "asked": [],
        "unread_bytes": 0,
        "threads": 0,
        "tasks_total": len(tasks),
    }
    assert lines[:4] == [
        "root guardian: none",
        "threads at work: 0",
        "unanswered requests: 0, bytes that the client has not read: 0",
        f"tasks: {len(tasks)}",
    ]


async def test_what_the_root_guardian_owes_is_told_with_its_age(mock_clock: trio.testing.MockClock) -> None:
    async with open_idle_sessions() as sessions, trio.open_nursery() as nursery:
        with client_pipe() as writer:
            nursery.start_soon(sessions.watch.forked, 1)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.5)
            nursery.start_soon(sessions.watch.forked, 2)
            await trio.testing.wait_all_tasks_blocked()
            report, lines = Detail(sessions, {}, writer, DEFAULT).report(ROOM)
            nursery.cancel_scope.cancel()
    assert report["root"] == {"state": "none", "waits_for": "a guardian to be forked", "waits_s": 0.5}
    assert lines[0] == "root guardian: none, waits 0.5 s for a guardian to be forked"


async def test_what_the_client_has_not_read_is_counted() -> None:
    async with open_idle_sessions() as sessions:
        with client_pipe() as writer:
            frame = b"x" * 100_000 + b"\n"
            writer.send_now(frame)
            report, lines = Detail(sessions, {}, writer, DEFAULT).report(ROOM)
    assert report["unread_bytes"] == len(frame)
    assert f"unanswered requests: 0, bytes that the client has not read: {len(frame)}" in lines


async def test_a_thread_that_works_is_counted_and_its_task_is_there() -> None:
    release = threading.Event()

    async def work() -> None:
        await trio.to_thread.run_sync(release.wait, BOUND)

    async with open_idle_sessions() as sessions:
        with client_pipe() as writer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, name=named("works"))
                try:
                    await trio.testing.wait_all_tasks_blocked()
                    report, lines = Detail(sessions, {}, writer, DEFAULT).report(ROOM)
                finally:
                    release.set()
            after, _ = Detail(sessions, {}, writer, DEFAULT).report(ROOM)
    assert (report["threads"], after["threads"]) == (1, 0)
    assert "threads at work: 1" in lines
    assert any(line.strip().startswith("works (0.") for line in lines)


async def test_the_oldest_requests_come_first_with_their_ages(autojump_clock: trio.testing.MockClock) -> None:
    async with open_idle_sessions() as sessions:
        with client_pipe() as writer:
            requests: dict[RequestId, Request] = {}
            for number in range(100):
                requests[number] = Request(Call(number, "python_run", {"wait": 60}, modern=False))
                await trio.sleep(1.0)
            requests[3].cancel()
            report, lines = Detail(sessions, requests, writer, DEFAULT).report(ROOM)
    shown = report["requests"]
    assert isinstance(shown, list)
    assert shown[0] == {"id": "0", "tool": "python_run", "age_s": 100.0}
    assert shown[3] == {"id": "3", "tool": "python_run", "age_s": 97.0, "cancelled": True}
    assert [request["id"] for request in shown] == [str(number) for number in range(len(shown))]
    assert report["requests_total"] == 100
    assert len(shown) < 100
    assert "request 0 python_run: unanswered for 100.0 s" in lines
    assert size(report, lines) <= DEFAULT.detail_bytes


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (17, "17"),
        ("17", "'17'"),
        ("a\nb", r"'a\nb'"),
        ("x" * 10_000, "'" + "x" * 40 + "'"),
        ("\ud800", r"'\ud800'"),
        ("\0" * 10_000, ("'" + r"\x00" * 40)[:42]),
        (10**60, str(10**60)[:42]),
    ],
)
def test_an_id_is_told_printable_and_short(given: RequestId, told: str) -> None:
    async def name() -> str:
        return Request(Call(given, "python_run", {}, modern=False)).name

    assert trio.run(name) == told


@pytest.mark.parametrize("most", [100, 1_000, 12_000, 100_000])
@pytest.mark.parametrize("room", [-5, 0, 700, 5_000, 30_000])
async def test_a_thousand_tasks_stay_within_the_bound_and_are_counted(most: int, room: int) -> None:
    async def parent(number: int) -> None:
        async with trio.open_nursery() as inner:
            for child in range(20):
                inner.start_soon(trio.sleep_forever, name=named(f'\n"{number}" 字 {child}'))

    limits = Limits.overridden({"detail_bytes": str(most)})
    async with open_idle_sessions() as sessions:
        with client_pipe() as writer:
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(parent, number, name=named(f"parent {number}"))
                await trio.testing.wait_all_tasks_blocked()
                report, lines = Detail(sessions, {}, writer, limits).report(room)
                nursery.cancel_scope.cancel()
    tasks = report["tasks"]
    assert isinstance(tasks, list)
    assert isinstance(report["tasks_total"], int)
    assert report["tasks_total"] > 1_050
    # What is no task is a few lines that are always there.
    assert size(report, lines) <= max(min(most, room), 400)
    if tasks:
        assert len(tasks) + sum(task.get("below", 0) for task in tasks) == report["tasks_total"]
    assert bool(tasks) == (min(most, room) > 600)
    jsonschema.validate(report, schemas.health(), cls=jsonschema.Draft202012Validator)
