"""Survivors: whoever ends, and whatever a worker has started or is doing, nothing of it is left.

One test for each pair of an ending and a load. The loads of an ending are planted in sessions of one server, each left
behind by a completed cell and, in another session, below a cell that still runs. What is left is asked of the kernel,
whose child it may be: by a pidfd for each process that was there, and by a variable in the environment for those that
came later. The milliseconds until nothing was left are printed:

    scripts/test -rP tests/e2e/test_matrix.py
    scripts/test -m slow -rP tests/e2e/test_matrix.py        with workers of every Python there is
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from tests.e2e.client import Client
from tests.e2e.loads import FATAL, LOADS, RUNNING
from tests.e2e.survivors import BOUND, Ends, Planted, Row
from tests.e2e.watch import eventually
from tests.process.worker_driver import VERSIONS, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc and pidfds")

EXIT_BOUND = 8.0
"""seconds. From the sign to the end of the server: 3 are promised, on a machine where nothing else wants to run."""

UNREAD = 2_000_000
"""bytes of answers that wait: more than all pipes take, fewer than the server holds."""

RELAY = """
import os, select, subprocess, sys
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
pipes = {0: server.stdin.fileno(), server.stdout.fileno(): 1}
while pipes:
    for fd in select.select(list(pipes), [], [])[0]:
        if chunk := os.read(fd, 65536):
            os.write(pipes[fd], chunk)
        else:
            os.close(pipes.pop(fd))
"""
"""A client process between the test and the server, so that it can be killed."""


def stopped_and_killed(client: Client) -> None:
    """All pipes of a server that is stopped fill: nobody drains what the cells print."""
    client.signal(signal.SIGSTOP)
    process = psutil.Process(client.process.pid)
    eventually(lambda: process.status() == psutil.STATUS_STOPPED, "the server is stopped")
    client.signal(signal.SIGKILL)


#: What ends the server.
SERVER: dict[str, Callable[[Client], None]] = {
    "server SIGKILL": lambda client: client.signal(signal.SIGKILL),
    "stopped server SIGKILL": stopped_and_killed,
    "server SIGTERM": lambda client: client.signal(signal.SIGTERM),
    "client closes stdin": Client.close_stdin,
    "client SIGKILL": lambda client: client.signal(signal.SIGKILL),
}
WORKER = ("guardian SIGKILL", "worker SIGKILL", *FATAL)
"""What ends a worker."""


# -- an ending with all loads ----------------------------------------------------------------------------------


@contextmanager
def planted(how: str, python: str | None, loads: Iterable[str]) -> Iterator[Planted]:
    """A server with these loads planted, in each state they can be in."""
    wrap = [sys.executable, "-I", "-S", "-c", RELAY] if how == "client SIGKILL" else []
    arguments = ["--python", python] if python is not None else []
    with Client(*arguments, wrap=wrap) as client, Ends() as ends:
        everything = Planted(client, how, ends)
        everything.plant(loads)
        yield everything


def end_server(everything: Planted) -> list[Row]:
    """End the server; the rows, judged."""
    client, ends = everything.client, everything.ends
    server = client.process.pid
    if everything.how == "client SIGKILL":
        (relayed,) = psutil.Process(server).children()
        server = relayed.pid
    ends.watch({server})
    SERVER[everything.how](client)
    assert not ends.wait({server}, EXIT_BOUND), "the server did not end"
    for row in everything.rows:
        everything.judge(row, server)
    strangers = everything.strangers(set())
    for row in everything.rows:
        row.faults += strangers  # whose they are cannot be told
    return everything.rows


def end_workers(everything: Planted) -> list[Row]:
    """End each worker in turn; the rows, judged, and whether their sessions and all others go on."""
    how, client, ends = everything.how, everything.client, everything.ends
    known = {process.pid for process in client.descendants()} | {client.process.pid}
    fatal: dict[Row, int] = {}
    with ExitStack() as orders:
        # Those that spin first: they would take the time of the others.
        for row in sorted(everything.rows, key=lambda row: not row.load.busy):
            end_worker(everything, row, orders, fatal)
            named = row.guardian if how == "guardian SIGKILL" else row.worker
            if ends.wait({named}, BOUND):
                row.faults.append("did not end")
                return give_up(everything, row)
            everything.judge(row, named)
            known -= row.members
            row.faults += everything.strangers(known)
            row.faults += [f"went along: {pid}" for pid in known & ends.moments.keys()]
            if row.faults:
                return give_up(everything, row)
    client.resume_reading()
    look_again(everything, fatal)
    return everything.rows


def give_up(everything: Planted, failed: Row) -> list[Row]:
    """One row has failed: every further wait might take its whole bound."""
    for row in everything.rows:
        if not row.faults:
            row.faults.append(f"not judged: {failed.state} {failed.name} has failed")
    return everything.rows


def end_worker(everything: Planted, row: Row, orders: ExitStack, fatal: dict[Row, int]) -> None:
    """End one worker; the request of a cell that does it goes to `fatal`."""
    how, client = everything.how, everything.client
    if how == "guardian SIGKILL":
        os.kill(row.guardian, signal.SIGKILL)
    elif how == "worker SIGKILL":
        os.kill(row.worker, signal.SIGKILL)
    elif row.state == RUNNING:
        # Open for both directions, and until the end: no open waits for the other end, and no line is lost.
        order = os.open(everything.path(row, "order"), os.O_RDWR)
        orders.callback(os.close, order)
        os.write(order, b"now\n")
    else:
        fatal[row] = client.start_call("execute_python", code=FATAL[how][0], session_id=row.session)


def look_again(everything: Planted, fatal: dict[Row, int]) -> None:
    """The cells that were running tell what happened, and the sessions go on in a new generation."""
    client = everything.client
    running = [row for row in everything.rows if row.state == RUNNING]
    calls = [("python_run", {"run_id": row.run, "wait": BOUND}) for row in running]
    ended = dict(zip(running, everything.each(calls), strict=True))
    ended |= {row: client.result(request)["structuredContent"] for row, request in fatal.items()}
    for row, result in ended.items():
        if (result["error_code"], result["state"]) != ("WORKER_DIED", "cleared"):
            row.faults.append(f"told as {result}")
    calls = [("execute_python", {"code": "'told' in globals()", "session_id": row.session}) for row in everything.rows]
    for row, result in zip(everything.rows, everything.each(calls), strict=True):
        if (result["value"], result["generation"], result["state_reset"]) != (False, 2, True):
            row.faults.append(f"goes on with {result}")


# -- the pairs -------------------------------------------------------------------------------------------------

ENDINGS = (*SERVER, *WORKER)


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> list[Row]:
    """The judged rows of one ending, for workers of one Python (None: the one that runs the tests)."""
    how, version = request.param
    python = interpreter(version) if version is not None else None
    with planted(how, python, LOADS) as everything:
        if how in SERVER:
            return end_server(everything)
        with witness(everything.client):
            return end_workers(everything)


@contextmanager
def witness(client: Client) -> Iterator[None]:
    """The default session, which has nothing to do with what ends inside."""
    client.execute("kept = 'all'; import subprocess; child = subprocess.Popen(['sleep', '600'])")
    yield
    after = client.execute("[kept, child.poll()]")
    assert (after["value"], after["generation"]) == (["all", None], 1)


def verdict(row: Row) -> None:
    """Print and judge one row."""
    print(f"{row.state}: {row.seconds * 1000:.0f} ms")
    assert not row.faults, "\n".join(row.faults)
    assert row.seconds < BOUND


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(
    "rows",
    [
        *(pytest.param((how, None), id=how) for how in ENDINGS),
        *(
            pytest.param((how, version), id=f"{version}, {how}", marks=pytest.mark.slow)
            for version in VERSIONS
            for how in ENDINGS
        ),
    ],
    indirect=True,
)
def test_nothing_is_left(rows: list[Row], load: str) -> None:
    mine = [row for row in rows if row.name == load]
    assert {row.state for row in mine} == set(LOADS[load].states)
    for row in mine:
        verdict(row)


@pytest.mark.parametrize("how", ENDINGS)
def test_nothing_is_left_where_the_client_does_not_read(how: str) -> None:
    with planted(how, None, ["start_new_session child", "children holding the output"]) as everything:
        client = everything.client
        client.answer(client.send("tools/list"))
        size = len(client.received[-1].line)
        client.hold_reading()
        for _ in range(UNREAD // size):
            client.send("tools/list")
        for row in end_server(everything) if how in SERVER else end_workers(everything):
            verdict(row)
        if how in SERVER:
            # What is in the pipe ends in the middle of a line.
            client.close_stdout()
