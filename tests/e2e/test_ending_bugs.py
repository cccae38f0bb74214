"""Bugs of our own, planted from outside: the same end in order, exit status 70, and the failure named in the line."""

from __future__ import annotations

import re
import signal
import sys

import pytest

from tests.e2e.client import HANDSHAKE, ROOT, Client
from tests.e2e.states import DEAF
from tests.e2e.watch import all_gone, begin, carriers, content, family

EXIT_BOUND = 10.0
"""seconds. To the exit; that it took no longer than promised is told by the line: no end by force."""
GONE_BOUND = 5.0
"""seconds. For the rest, after the exit."""

BEGIN = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
def planted():
    raise KIND("planted")
def replace(owner, name, make):
    setattr(owner, name, make(getattr(owner, name)))
def deep():
    deep()
"""
END = """
from repl_trio.__main__ import main
sys.exit(main())
"""

#: Where a bug strikes: the code that plants it. All wait for the file `go`, but the last ones.
TASK = """
import trio
from repl_trio.server import app
async def _sweep(*_):
    while not os.path.exists("go"):
        await trio.sleep(0.01)
    planted()
app._sweep = _sweep
"""
LINE = """
from repl_trio.server.app import Server
def make(real):
    def _line(self, line, nursery):
        if b"strike" in line:
            planted()
        real(self, line, nursery)
    return _line
replace(Server, "_line", make)
"""
REPLY = """
from repl_trio.server.dispatch import Dispatch
def make(real):
    async def reply(self, request):
        if request.call.arguments.get("name") == "strike":
            planted()
        return await real(self, request)
    return reply
replace(Dispatch, "reply", make)
"""
ROOT_WATCH = """
import trio
from repl_trio.process.root import RootWatch
def make(real):
    async def _follow_all(self):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(real, self)
            while not os.path.exists("go"):
                await trio.sleep(0.01)
            planted()
    return _follow_all
replace(RootWatch, "_follow_all", make)
"""
SESSION = """
from repl_trio.session.session import Session
def make(real):
    async def _prepare(self, run):
        if run.cell.code == "strike":
            planted()
        return await real(self, run)
    return _prepare
replace(Session, "_prepare", make)
"""
SHUTDOWN = """
from repl_trio.session.sessions import Sessions
def make(real):
    async def shutdown(self, why="again"):
        await real(self, why)
        planted()
    return shutdown
replace(Sessions, "shutdown", make)
"""
OPENING = """
from repl_trio.server import serve
serve.exchange = lambda *given: planted()
"""
RUNTIME = """
from repl_trio.server import app
app.PipeWriter = lambda *given, **named: planted()
"""


def server(planted: str, kind: str = "ValueError") -> list[str]:
    """The command of a server with something planted in it."""
    begin = BEGIN.replace("KIND", kind)
    if kind == "recursion":
        begin = BEGIN.replace('raise KIND("planted")', "deep()")
    return [sys.executable, "-P", "-c", begin + planted + END]


def assert_tells(client: Client, kind: str, rest: str = "") -> None:
    """One line that names the failure, and before it the traceback alone."""
    *log, last = client.stderr().splitlines()
    pattern = rf"repl-trio: ended: a bug in repl-trio: {kind}: .* at .+:\d+ in \w+{rest}; .*\d\.\d s"
    assert re.fullmatch(pattern, last), last
    assert "CRITICAL repl_trio.server: a bug in repl-trio" in log[0]
    assert log[1] == "Traceback (most recent call last):"
    assert "Group" not in "".join(log)
    assert len(log) < 40, log


def assert_over(client: Client, members: set[int]) -> None:
    assert client.wait(EXIT_BOUND) == 70, client.stderr()
    all_gone(members | carriers(client.cookie), GONE_BOUND)


KINDS = {
    "ValueError": "ValueError",
    "MemoryError": "MemoryError",
    "KeyboardInterrupt": "KeyboardInterrupt",
    "SystemExit": "SystemExit",
    "GeneratorExit": "GeneratorExit",
    "recursion": "RecursionError",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", [TASK, LINE], ids=["task", "line"])
def test_a_failed_task_of_the_root_ends_everything_in_order(where: str, kind: str) -> None:
    client = Client()
    client.command = server(where, kind)
    with client:
        client.execute("import subprocess; subprocess.Popen(['sleep', '987'], start_new_session=True)")
        cell = client.start_call("execute_python", code="while True: pass")
        waiting = client.start_call("python_run", wait=60)
        client.request("ping")
        members = family(client)
        if where == TASK:
            (client.cwd / "go").touch()
        else:
            client.send("ping", {"strike": True})
        told = client.result(cell)["structuredContent"]
        assert (told["error_code"], "a bug in repl-trio" in told["error"]) == ("CANCELLED", True)
        assert client.result(waiting)["structuredContent"]["error_code"] == "CANCELLED"
        assert_over(client, members)
        assert_tells(client, KINDS[kind])


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "GeneratorExit"])
def test_a_request_that_fails_beyond_repair_is_answered(kind: str) -> None:
    client = Client()
    client.command = server(REPLY, kind)
    with client:
        client.execute("1")
        begin(client, "while True: pass")
        members = family(client)
        struck = client.start_call("python_session_open", name="strike")
        assert "a bug in repl-trio" in client.error(struck)["message"]
        assert_over(client, members)
        assert_tells(client, kind)


def test_a_failure_around_the_sessions_leaves_nothing_and_nobody_without_an_answer() -> None:
    client = Client()
    client.command = server(ROOT_WATCH)
    with client:
        client.execute("1")
        begin(client, "while True: pass")
        waiting = client.start_call("python_run", wait=60)
        client.request("ping")
        members = family(client)
        (client.cwd / "go").touch()
        assert client.answer(waiting)
        assert_over(client, members)
        assert_tells(client, "ValueError")


def test_a_failure_inside_a_session_that_no_boundary_stops_ends_everything_in_order() -> None:
    client = Client()
    client.command = server(SESSION, "KeyboardInterrupt")
    with client:
        client.execute("1")
        cell = client.start_call("execute_python", code="while True: pass")
        other = client.structured("python_session_open")["session_id"]
        members = family(client)
        struck = client.start_call("execute_python", code="strike", session_id=other)
        for request in (cell, struck):
            assert client.result(request)["structuredContent"]["success"] is False
        assert_over(client, members)
        assert_tells(client, "KeyboardInterrupt")


def test_a_failure_of_the_end_itself_leaves_nothing() -> None:
    client = Client()
    client.command = server(SHUTDOWN)
    with client:
        client.execute("1")
        begin(client, "while True: pass")
        members = family(client)
        client.close_stdin()
        assert_over(client, members)
        assert_tells(client, "ValueError", r" \(after: the client closed stdin\)")


@pytest.mark.parametrize("where", [OPENING, RUNTIME], ids=["opening", "runtime"])
def test_a_failure_before_the_sessions_is_told(where: str) -> None:
    client = Client(version=None)
    client.command = server(where)
    with client:
        if where == RUNTIME:
            client.initialize(HANDSHAKE)
        assert_over(client, family(client))
        assert "repl-trio: ended: a bug in repl-trio: ValueError: planted at " in client.stderr().splitlines()[-1]


BROKEN = """
import importlib.abc
class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "trio":
            raise ModuleNotFoundError("No module named 'trio'", name=name)
sys.meta_path.insert(0, Without())
"""


def test_an_installation_that_cannot_work_is_told_in_one_line() -> None:
    client = Client(version=None)
    client.command = server(BROKEN)
    with client:
        client.initialize(HANDSHAKE)
        assert client.wait(EXIT_BOUND) == 1
        assert re.fullmatch(
            r"repl-trio: ended: the installation is broken \(No module named 'trio'\); \d\.\d s\n", client.stderr()
        )


# -- by force --------------------------------------------------------------------------------------------------

BUSY = """
import trio
from repl_trio.server import app
async def _sweep(*_):
    while not os.path.exists("go"):
        await trio.sleep(0.01)
    with open("busy", "w") as mark:
        mark.write("so\\n")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        STEP
app._sweep = _sweep
"""
STUCK_END = """
from repl_trio.session.sessions import Sessions
async def shutdown(self, why=""):
    STEP
Sessions.shutdown = shutdown
"""


@pytest.mark.parametrize("step", ["pass", "time.sleep(0.5)"])
def test_a_loop_that_is_stuck_is_left_by_force(step: str) -> None:
    client = Client()
    client.command = server(BUSY.replace("STEP", step))
    with client:
        client.execute("import subprocess; subprocess.Popen(['sleep', '987'], start_new_session=True)")
        begin(client, DEAF)
        members = family(client)
        (client.cwd / "go").touch()
        content(client.cwd / "busy")
        client.signal(signal.SIGTERM)
        assert client.wait(EXIT_BOUND) == 0, client.stderr()
        all_gone(members | carriers(client.cookie), GONE_BOUND)
        assert re.fullmatch(
            r"repl-trio: ended by force: SIGTERM; 1 run was not answered, 1 worker was left to its guardian, 3\.\d s\n",
            client.stderr(),
        )


def test_an_end_that_is_stuck_in_c_is_cut_off() -> None:
    client = Client()
    client.command = server(STUCK_END.replace("STEP", "sum(range(10**13))"))
    with client:
        begin(client, DEAF)
        members = family(client)
        client.close_stdin()
        assert client.wait(EXIT_BOUND) == 1
        all_gone(members | carriers(client.cookie), GONE_BOUND)
        assert "in shutdown" in client.stderr()
