"""Whose end takes what along: the server's, the guardian's, the worker's, a run's, a generation's.

What is alive is asked of /proc by a cookie in the environment, which every process below the worker inherits; nothing
here trusts the server's own records.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from statistics import median
from typing import Any

import psutil
import pytest

from tests.e2e.client import Client
from tests.e2e.watch import (
    active_run,
    all_gone,
    begin,
    carriers,
    eventually,
    family,
    finished,
    idle,
    living,
    said,
    session_of,
)

GONE_BOUND = 3.0
"""seconds. For everything below a server that was killed; 1 is promised."""

FLAT = 1_000_000
"""bytes. By how much a server may be larger in the second half of many rounds than in the first."""

LOOKED_AT = "import time; time.sleep(0.6)"
"""A cell that is still there when the server looks at its memory: the library for that is loaded once."""

TREE = """\
import json, os, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
leader = subprocess.Popen(["sleep", "600"], start_new_session=True)
daemon = [sys.executable, "-I", "-S", "-c", '''
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(1, b"%d" % os.getpid())
        os.close(1)
        while True: signal.pause()
os._exit(0)
''']
grandchild = int(subprocess.run(daemon, stdout=subprocess.PIPE).stdout)
print(json.dumps([os.getpid(), child.pid, leader.pid, grandchild]), flush=True)
"""
ENDLESS = {
    "Python": "while True: pass",
    "C": "sum(range(10**13))",
    "stopped": "import signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "idle": None,
}


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as opened:
        yield opened


def grow(client: Client, then: str | None) -> list[int]:
    """Let a cell start a tree of processes and go on with `then`, or end; the pids, the worker's first."""
    if then is None:
        text = client.execute(TREE)["stdout"]
    else:
        run = client.structured("python_start", code=TREE + then)
        text = said(client, run["run_id"], "]\n")["stdout"]
    pids: list[int] = json.loads(text)
    assert set(pids) <= carriers(client.cookie)
    assert all(map(living, pids))
    return pids


def guardian_of(worker: int) -> psutil.Process:
    parent = psutil.Process(worker).parent()
    assert parent is not None
    return parent


# -- the server ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ENDLESS)
def test_a_killed_server_takes_everything_along(client: Client, then: str) -> None:
    pids = grow(client, ENDLESS[then])
    members = family(client) | {guardian_of(pids[0]).pid}
    assert len(members) == 7
    client.kill()
    eventually(lambda: not carriers(client.cookie), "nobody carries the cookie", GONE_BOUND)
    all_gone(members, GONE_BOUND)


def test_a_killed_server_takes_all_its_sessions_along(client: Client) -> None:
    other = client.structured("python_session_open")["session_id"]
    grow(client, ENDLESS["Python"])
    client.execute(TREE, session_id=other)
    members = family(client)
    assert len(members) == 12
    client.kill()
    all_gone(members, GONE_BOUND)


# -- the guardian and the worker -------------------------------------------------------------------------------


def test_a_killed_guardian_is_reported_and_its_worker_is_gone(client: Client) -> None:
    client.execute("kept = 1")
    worker = session_of(client)["worker_pid"]
    run = begin(client, "while True: pass")
    guardian_of(worker).kill()
    result = finished(client, run["run_id"])
    assert (result["success"], result["error_code"], result["state"]) == (False, "WORKER_DIED", "cleared")
    assert "guardian" in result["error"]
    all_gone({worker}, GONE_BOUND)
    after = client.execute("'kept' in globals()")
    assert (after["value"], after["generation"], after["state_reset"]) == (False, 2, True)


@pytest.mark.parametrize(
    ("death", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("os._exit(7)", "code 7"),
        ("os._exit(0)", "code 0"),
        ("os.abort()", "SIGABRT"),
    ],
)
def test_the_death_of_a_worker_is_told_and_its_children_go_too(client: Client, death: str, words: str) -> None:
    pids = grow(client, None)
    result = client.execute(f"import os, signal\nprint('said before', flush=True)\n{death}")
    assert (result["success"], result["error_code"], result["state"]) == (False, "WORKER_DIED", "cleared")
    assert words in result["error"]
    assert result["stdout"] == "said before\n"
    # What it left is gone when the answer is there.
    assert not any(map(living, pids))
    call = client.call("execute_python", code="1 + 1")
    assert (call["structuredContent"]["value"], call["structuredContent"]["generation"]) == (2, 2)
    assert words in call["content"][0]["text"]


def test_a_crash_names_the_line(client: Client) -> None:
    result = client.execute("import ctypes\nx = 1\nctypes.string_at(0)")
    assert "SIGSEGV" in result["error"]
    assert f'"<repl:{result["run_id"]}>", line 3' in result["error"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_idle_worker_that_is_killed_is_missed_by_the_next_cell(client: Client, number: int) -> None:
    client.execute("kept = 1")
    worker = session_of(client)["worker_pid"]
    os.kill(worker, number)
    eventually(lambda: session_of(client).get("worker_pid") is None, "the server knows")
    call = client.call("execute_python", code="'kept' in globals()")
    result = call["structuredContent"]
    assert (result["success"], result["value"], result["generation"], result["state_reset"]) == (True, False, 2, True)
    assert "lost" in call["content"][0]["text"]


def test_a_cell_that_closes_what_it_did_not_open_is_told_so(client: Client) -> None:
    result = client.execute("import os; os.closerange(3, 4096)\n1")
    assert (result["success"], result["state"]) == (False, "cleared")
    assert "descriptor" in result["error"]
    after = client.execute("print('works'); 2")
    assert (after["value"], after["stdout"], after["generation"]) == (2, "works\n", 2)


def test_a_cell_that_closes_its_streams_gets_them_back(client: Client) -> None:
    client.execute("import os; os.closerange(0, 3); kept = 1")
    after = client.execute("print('works'); kept")
    assert (after["value"], after["stdout"], after["generation"]) == (1, "works\n", 1)


# -- runs ------------------------------------------------------------------------------------------------------


def sleepers(client: Client, seconds: str) -> list[int]:
    found = []
    for pid in carriers(client.cookie):
        try:
            if psutil.Process(pid).cmdline() == ["sleep", seconds]:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_cancelled_command_is_gone(client: Client) -> None:
    code = "import subprocess; subprocess.run(['sleep', '300'])"
    request = client.start_call("execute_python", code=code, timeout=600)
    active_run(client)
    (pid,) = eventually(lambda: sleepers(client, "300"), "sleep 300 runs")
    client.cancel(request)
    idle(client, bound=5)
    assert not living(pid)
    assert client.execute("1+1")["value"] == 2
    assert not client.answered(request)


def test_what_a_completed_cell_started_lives_until_the_generation_ends(client: Client) -> None:
    pids = grow(client, None)
    for number in range(3):
        assert client.execute(f"{number}")["value"] == number
    client.execute("while True: pass", timeout=0.1)
    client.execute("1 / 0")
    assert all(map(living, pids))
    client.execute("1", reset=True)
    assert not any(map(living, pids))


def test_what_a_completed_cell_started_ends_with_its_session(client: Client) -> None:
    other = client.structured("python_session_open")["session_id"]
    mine = grow(client, None)
    pids = json.loads(client.execute(TREE, session_id=other)["stdout"])
    client.structured("python_session_close", session_id=other)
    assert not any(map(living, pids))
    assert all(map(living, mine))


@pytest.mark.parametrize("way", ["cancel", "timeout"])
@pytest.mark.parametrize("then", ["while True: pass", "import time; time.sleep(60)"])
def test_what_a_stopped_run_started_goes_and_what_an_earlier_one_started_stays(
    client: Client, way: str, then: str
) -> None:
    kept = grow(client, None)
    if way == "cancel":
        run = client.structured("python_start", code=TREE + then)
        text = said(client, run["run_id"], "]\n")["stdout"]
        client.structured("python_cancel")
        result = finished(client, run["run_id"])
    else:
        result = client.execute(TREE + then, timeout=1)
        text = result["stdout"]
    assert result["state"] == "preserved"
    worker, *started = json.loads(text)
    assert worker == kept[0]
    assert not any(map(living, started))
    assert all(map(living, kept))
    assert client.execute("[child.poll() is None, leader.poll() is None]")["value"] == [False, False]


def test_what_the_cell_before_started_is_not_taken_for_this_ones(client: Client) -> None:
    """However soon the next cell begins: the kernel tells start times in steps that are longer than a cell."""
    client.execute("import subprocess")
    start = "subprocess.Popen(['sleep', '600']).pid"
    for _ in range(20):
        kept = client.execute(start)["value"]
        run = client.structured("python_start", code=f"print({start}, flush=True)\nwhile True: pass")
        own = int(said(client, run["run_id"], "\n")["stdout"])
        client.structured("python_cancel")
        finished(client, run["run_id"])
        assert (living(kept), living(own)) == (True, False)


def test_the_rest_of_a_killed_generation_goes_with_it(client: Client) -> None:
    kept = grow(client, None)
    result = client.execute("sum(range(10**13))", timeout=0.2)
    assert result["state"] == "cleared"
    assert not any(map(living, kept))


# -- growth ----------------------------------------------------------------------------------------------------


class Growth:
    """What a server holds, before and after many rounds of the same thing: not more of anything."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.server = psutil.Process(client.process.pid)
        self.start = self.held()
        self.threads = self.server.num_threads()
        self.memory: list[int] = []

    def held(self) -> tuple[int, int]:
        """How many processes below the server, how many descriptors."""
        return len(self.client.descendants()), self.server.num_fds()

    def look(self) -> None:
        """After each round: the resident size."""
        self.memory.append(self.client.rss())

    def check(self) -> None:
        """Hold the end against the start, and the second half against the first."""
        # Not equal: what went before the start may still have had a pipe to close.
        processes, descriptors = self.held()
        assert processes == self.start[0]
        assert descriptors <= self.start[1]
        # One more may rest in trio's cache for a while: what looks at memory is imported in one.
        assert self.server.num_threads() <= self.threads + 1
        half = len(self.memory) // 2
        assert median(self.memory[half:]) - median(self.memory[:half]) < FLAT, self.memory


@pytest.fixture
def forgetful() -> Iterator[Client]:
    """A server that keeps few results: with as many as usual its memory would grow until all of them are there."""
    with Client("--limit", "runs_retained=2") as opened:
        yield opened


def test_two_hundred_resets_leave_nothing(forgetful: Client) -> None:
    client = forgetful
    sessions = [client.default_session(), *(client.structured("python_session_open")["session_id"] for _ in range(3))]

    def reset_all(number: int) -> None:
        requests = [
            client.start_call("execute_python", code=f"{number}", reset=True, session_id=name) for name in sessions
        ]
        for request in requests:
            result = client.result(request)["structuredContent"]
            assert (result["value"], result["generation"]) == (number, number)

    for number in range(1, 5):
        reset_all(number)
    client.execute(LOOKED_AT)
    growth = Growth(client)
    # A guardian and a worker each, and the root.
    assert growth.start[0] == 9
    for number in range(5, 55):
        reset_all(number)
        growth.look()
    growth.check()


def test_two_hundred_sessions_leave_nothing(forgetful: Client) -> None:
    client = forgetful

    def come_and_go() -> None:
        opened = [client.start_call("python_session_open") for _ in range(4)]
        sessions = [client.result(request)["structuredContent"]["session_id"] for request in opened]
        cells = [client.start_call("execute_python", code="6 * 7", session_id=name) for name in sessions]
        assert [client.result(request)["structuredContent"]["value"] for request in cells] == [42] * 4
        closed = [client.start_call("python_session_close", session_id=name) for name in sessions]
        assert all(client.result(request)["structuredContent"]["closed"] for request in closed)

    client.execute(LOOKED_AT)
    for _ in range(4):
        come_and_go()
    growth = Growth(client)
    assert growth.start[0] == 3
    for _ in range(50):
        come_and_go()
        growth.look()
    growth.check()


def test_many_deaths_leave_nothing(client: Client) -> None:
    def die() -> dict[str, Any]:
        return client.execute("import os; os._exit(1)")

    die()
    client.execute("1")
    server = psutil.Process(client.process.pid)
    below, descriptors = len(client.descendants()), server.num_fds()
    for _ in range(20):
        assert die()["state"] == "cleared"
    client.execute("1")
    assert (len(client.descendants()), server.num_fds()) == (below, descriptors)
