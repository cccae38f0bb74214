"""What a killed root guardian leaves to the server is swept once, quickly, and beside the starts of other workers."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from repl_trio.limits import Limits
from repl_trio.process import launch
from repl_trio.process.guard import Guard, open_guard
from repl_trio.process.launch import Root
from repl_trio.process.reap import reap
from repl_trio.process.root import RootWatch, open_root
from repl_trio.process.start import start_worker
from tests.fakes import worker as fake
from tests.process.guardian_driver import COOKIE, eventually, survivors

HANG = 30.0
RECORD = 5.0
"""seconds. Half of what a root gives a sweep that finds no rest; one that does takes milliseconds."""
GUARDIANS = 4
LIMITS = Limits.overridden({"guardian_clean": "8"})


@contextmanager
def root() -> Iterator[Root]:
    """A root guardian whose records the test reads by itself."""
    made = Root()
    try:
        yield made
    finally:
        for life in made.lives:
            life.control.close()
            process = os.pidfd_open(life.pid)
            ended, _, _ = select.select([process], [], [], HANG)
            os.close(process)
            if not ended:
                os.kill(life.pid, signal.SIGKILL)
            os.waitpid(life.pid, 0)
            assert ended


def record(made: Root) -> dict[str, Any]:
    """The next record of the root."""
    control = made.lives[-1].control
    control.settimeout(RECORD)
    line = b""
    while not line.endswith(b"\n"):
        line += control.recv(1, socket.MSG_WAITALL)
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_sweep_of_what_is_gone_is_done_at_once() -> None:
    """Waiting for rest among processes that somebody has reaped, it would keep every start of a worker waiting."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with subprocess.Popen(["sleep", "600"]) as child, root() as made:
        made.order({"op": "sweep", "id": 1, "pids": [gone.pid, child.pid]})
        assert record(made) == {"ev": "swept", "id": 1, "killed": 1, "left": []}
        assert child.wait(HANG) == -signal.SIGKILL
        made.order({"op": "sweep", "id": 2, "pids": [gone.pid, child.pid]})
        assert record(made) == {"ev": "swept", "id": 2, "killed": 0, "left": []}


PYTHON = [os.path.realpath(getattr(sys, "_base_executable", sys.executable)), "-I", "-S", "-c"]

LEFT = """
import os, signal
if os.fork() == 0:
    os.setsid()
    os.write(1, b"up\\n")
while True:
    signal.pause()
"""

STORM = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(80):
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork():
                os._exit(0)
            signal.sigtimedwait([], 0.002)
os.write(1, b"up\\n")
while True:
    signal.pause()
"""
"""Eighty processes that are another one every two milliseconds, in sessions of their own."""

HELD_BACK = (
    "import sys;sys.path.insert(0,sys.argv[1]);import posix;import guardian_walk as walk;kill=walk.Walk.kill;"
    "walk.Walk.kill=lambda self: kill(self) if posix.access({flag!r},0) else (self.met[:1],[]);"
    "import {{0}};{{0}}.main()"
)
"""A root whose kill rounds do nothing until a file is there."""


class Forks:
    """A root, the records that it has sent so far, and the sockets of its guardians."""

    def __init__(self, made: Root) -> None:
        self.made = made
        self.cookie = uuid.uuid4().hex
        self._seen: dict[tuple[str, int], dict[str, Any]] = {}

    def until(self, event: str, number: int) -> dict[str, Any]:
        """This record; the others are kept."""
        while (event, number) not in self._seen:
            found = record(self.made)
            self._seen[found["ev"], found["id"]] = found
        return self._seen[event, number]

    def seen(self, event: str, number: int) -> bool:
        return (event, number) in self._seen

    @contextmanager
    def guardian(self, number: int, source: str | None = None) -> Iterator[int]:
        """A guardian; with a source its child has written "up"."""
        ours, theirs = socket.socketpair()
        with ours:
            self.made.order({"op": "fork", "id": number}, theirs)
            theirs.close()
            pid = self.until("forked", number)["pid"]
            if source is not None:
                self._spawn(ours, source)
            yield pid

    def _spawn(self, control: socket.socket, source: str) -> None:
        child = {"argv": [*PYTHON, source], "env": {COOKIE: self.cookie}, "cwd": "/", "fds": [0, 1, 2], "oom": 0}
        order = {"op": "spawn", "v": 1, "server": os.getpid(), **child, "orphan": [], "leftover": [[9, 0]]}
        reading, writing = os.pipe()
        with open(os.devnull, "r+b", buffering=0) as null:
            fds = [null.fileno(), writing, null.fileno()]
            socket.send_fds(control, [json.dumps(order).encode() + b"\n"], fds)
        os.close(writing)
        assert os.read(reading, 100) == b"up\n"
        os.close(reading)


def test_a_root_that_sweeps_serves_orders_between_two_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "flag"
    monkeypatch.setattr(launch, "_RUN", HELD_BACK.format(flag=str(flag)))
    with root() as made:
        forks = Forks(made)
        with forks.guardian(1, LEFT) as first, forks.guardian(2, LEFT):
            os.kill(first, signal.SIGKILL)
            with forks.guardian(3, LEFT) as third:
                assert len(survivors(forks.cookie)) == 5
                made.order({"op": "kill", "id": 2})
                made.order({"op": "sweep", "id": 4, "pids": [os.getpid()]})
                forks.until("swept", 4)
                assert not forks.seen("reaped", 1)
                flag.touch()
                assert (forks.until("reaped", 1)["code"], forks.until("reaped", 2)["code"]) == (-9, -9)
                assert psutil.pid_exists(third)
                assert len(survivors(forks.cookie)) == 2
        assert forks.until("reaped", 3)["code"] == 0
        assert survivors(forks.cookie) == set()


def test_a_guardian_is_forked_while_the_root_ends_a_storm() -> None:
    with root() as made:
        forks = Forks(made)
        with forks.guardian(1, STORM) as first:
            os.kill(first, signal.SIGKILL)
            with forks.guardian(2, LEFT):
                assert forks.until("reaped", 1)["left"] == []
                assert len(survivors(forks.cookie)) == 2
        assert forks.until("reaped", 2)["left"] == []
        with forks.guardian(3, LEFT) as third:
            # A root ends a crowd by its rank. A worker that had it as well would keep the machine from everybody else.
            assert {os.sched_getscheduler(pid) for pid in (third, *survivors(forks.cookie))} == {os.SCHED_OTHER}
        assert forks.until("reaped", 3)["left"] == []
        assert survivors(forks.cookie) == set()


def test_a_root_is_not_ended_by_signals_while_its_server_lives() -> None:
    with root() as made:
        forks = Forks(made)
        with forks.guardian(1, LEFT) as guardian:
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *FAULTS}:
                os.kill(made.lives[-1].pid, number)
            with forks.guardian(2):
                assert psutil.Process(guardian).parent() == psutil.Process(made.lives[-1].pid)
                assert len(survivors(forks.cookie)) == 2


def test_a_stopped_root_serves_the_next_start() -> None:
    with root() as made:
        forks = Forks(made)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            made.fork(theirs)
        forks.until("forked", 1)
        pid = made.lives[-1].pid
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the stop of the root")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            made.fork(theirs)
        assert forks.until("forked", 2)["error"] is None
        assert made.lives[-1].pid == pid


FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS}

IN_A_SUBREAPERS_SESSION = """
import os, signal, socket, sys
sys.path.insert(0, sys.argv[1])
from repl_trio.process.launch import Root, _be_subreaper
_be_subreaper()
reading, writing = os.pipe()
server = os.fork()
if server == 0:
    made = Root()
    ours, theirs = socket.socketpair()
    made.fork(theirs)
    theirs.close()
    made.lives[-1].control.recv(4096)
    os.kill(made.lives[-1].pid, signal.SIGSTOP)
    os.waitid(os.P_PID, made.lives[-1].pid, os.WSTOPPED)
    os.write(writing, b"%d" % made.lives[-1].pid)
    os.kill(os.getpid(), signal.SIGKILL)
root = int(os.read(reading, 20))
signal.signal(signal.SIGALRM, lambda *_: os.kill(root, signal.SIGKILL))
signal.alarm(15)
os.waitpid(server, 0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(root, 0)[1]))
"""


def test_a_stopped_root_sees_the_end_of_its_server() -> None:
    """The kernel continues it only where the server's death leaves its group without a parent in the session."""
    done = subprocess.run([*PYTHON, IN_A_SUBREAPERS_SESSION, str(Path(__file__).parents[2])], timeout=HANG)
    assert done.returncode == 0


async def test_a_cancelled_reap_has_reaped_nothing() -> None:
    """Otherwise somebody who still holds the pid for his own could signal a stranger."""
    child = subprocess.Popen(["true"])  # noqa: ASYNC220 - a child that nobody else reaps
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it ends at once
    with trio.CancelScope() as scope:
        scope.cancel()
        await reap(child.pid)
    assert scope.cancelled_caught
    assert child.wait(0) == 0


async def _own(watch: RootWatch, folder: Path, python: str, task_status: trio.TaskStatus[Guard]) -> None:
    left = json.dumps([["child", "/dev/null"], ["frame", {}, "ready"]])
    start = start_worker(watch.root, python, str(folder), {"FAKE_START": left}, LIMITS)
    try:
        async with open_guard(start.guardian, watch, LIMITS) as guard:
            while not {*await guard.descendants()} - {guard.child_pid}:  # noqa: ASYNC110 - a start is no event
                await trio.sleep(0.01)
            task_status.started(guard)
            await guard.gone.wait()
    finally:
        start.close()


@pytest.mark.parametrize("order", ["root first", "guardians first"])
async def test_several_guardians_and_their_root_killed_at_once(tmp_path: Path, order: str) -> None:
    """Each of them asks for a sweep: none may wait for what another one's sweep has reaped."""
    python = fake.install(tmp_path)
    before = set(psutil.Process().children(recursive=True))
    with trio.fail_after(HANG):
        async with open_root(Root(), LIMITS) as watch, trio.open_nursery() as nursery:
            guards = [await nursery.start(partial(_own, watch, tmp_path, python)) for _ in range(GUARDIANS)]
            pids = [guard.pid for guard in guards]
            roots = [watch.root.lives[-1].pid]
            began = trio.current_time()
            for pid in [*roots, *pids] if order == "root first" else [*pids, *roots]:
                os.kill(pid, signal.SIGKILL)
            for guard in guards:
                await guard.gone.wait()
            # Half of the bound that one sweep may take when it finds no rest.
            assert trio.current_time() - began < LIMITS.guardian_clean / 2
            left = set(psutil.Process().children(recursive=True)) - before
            assert {process.pid for process in left} <= {life.pid for life in watch.root.lives}


async def test_a_root_killed_in_the_middle_of_a_sweep(tmp_path: Path) -> None:
    """The next one sweeps, at once: meanwhile everybody who ends waits."""
    python = fake.install(tmp_path)
    with trio.fail_after(HANG):
        async with open_root(Root(), LIMITS) as watch, trio.open_nursery() as nursery:
            guard = await nursery.start(partial(_own, watch, tmp_path, python))
            first = watch.root.lives[-1]
            os.kill(first.pid, signal.SIGKILL)
            while first in watch.root.lives:  # noqa: ASYNC110 - a death is no event here
                await trio.sleep(0.005)
            assert watch.root.order({"op": "kill", "id": 10**6})
            second = watch.root.lives[-1]
            os.kill(second.pid, signal.SIGSTOP)
            os.kill(guard.pid, signal.SIGKILL)
            while not watch._sweeping.locked():  # noqa: ASYNC110 - a lock is no event
                await trio.sleep(0.005)
            began = trio.current_time()
            os.kill(second.pid, signal.SIGKILL)
            await guard.gone.wait()
            assert trio.current_time() - began < LIMITS.guardian_clean / 2
