"""Signals by way of the guardian: who gets them, how many are reported, and that a kill is done when acknowledged."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.process.guardian_driver import (
    COOKIE,
    KERNELS,
    Guarded,
    Lines,
    eventually,
    guarded,
    pipes,
    python,
    state,
    survivors,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

FAMILY = """
import _thread, os, signal
wanted = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
def report(name):
    os.write(1, name + b" up\\n")
    while True:
        os.write(1, b"%s %d\\n" % (name, signal.sigwait(wanted)))
def obey():
    for line in os.fdopen(0, "rb", 0):
        name, how = line.split()
        if os.fork() == 0:
            if how == b"detached":
                os.setsid()
            if how == b"parent" and os.fork() == 0:
                name += b".child"
            report(name)
_thread.start_new_thread(obey, ())
report(b"child")
"""
"""A child that forks a process for each line "name attached|detached|parent"; all of them report USR1 and USR2.

They take the signals by sigwait, the lower number first; handlers would run in any order. A thread does the forks.
"""

USR1, USR2 = int(signal.SIGUSR1), int(signal.SIGUSR2)


class Family:
    """A guarded FAMILY: `old` in the child's group, `lone` in a session of its own."""

    def __init__(self, kernel: str, guardian: Guarded, orders: int, reports: int) -> None:
        self.kernel = kernel
        self.guardian = guardian
        self.orders = orders
        self.lines = Lines(reports)
        self.cookie = uuid.uuid4().hex

    def begin(self, handed: list[int]) -> None:
        self.child = self.guardian.spawn(python(FAMILY), handed, env={COOKIE: self.cookie})
        assert self.lines.next() == "child up"
        self.fork("old", "attached")
        self.fork("lone", "detached")

    def fork(self, name: str, how: str) -> None:
        os.write(self.orders, f"{name} {how}\n".encode())
        expected = {f"{name} up", f"{name}.child up"} if how == "parent" else {f"{name} up"}
        assert {self.lines.next() for _ in expected} == expected

    def ps(self) -> dict[int, int]:
        """Start in clock ticks by pid; on macOS in seconds since the epoch."""
        return dict(self.guardian.ask("ps")["pids"])

    def moment(self) -> int:
        """A clock tick later than the start of every process there is: what starts from now on is new."""
        newest = max(self.ps().values())
        if self.kernel == "macOS":
            # What ps computes here may be off by one.
            eventually(lambda: time.time() > newest + 2, "the next second but one")
            return newest + 1
        ticks = os.sysconf("SC_CLK_TCK")
        eventually(lambda: int(time.clock_gettime(time.CLOCK_BOOTTIME) * ticks) > newest, "the next clock tick")
        return newest + 1

    def reached(self, **target: object) -> tuple[int, set[str]]:
        """Send USR1 to a target: the count of the acknowledgement, and who really got it.

        USR2 follows to the whole tree: a process that has reported it has reported any USR1 before.
        """
        count = self.guardian.ask("signal", sig=USR1, **target)["n"]
        everybody = self.guardian.ask("signal", sig=USR2, to="tree")["n"]
        names: dict[int, set[str]] = {USR1: set(), USR2: set()}
        while len(names[USR2]) < everybody:
            name, number = self.lines.next().split()
            names[int(number)].add(name)
        return count, names[USR1]


@pytest.fixture(params=KERNELS)
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    kernel: str = request.param
    with guarded(kernel=kernel) as guardian, pipes(2) as (readers, writers), open(os.devnull, "wb") as null:
        family = Family(kernel, guardian, writers[0], readers[1])
        family.begin([readers[0], writers[1], null.fileno()])
        yield family


def test_signal_to_the_child_alone(family: Family) -> None:
    assert family.reached(to="child") == (1, {"child"})


def test_signal_to_the_group(family: Family) -> None:
    assert family.reached(to="group") == (2, {"child", "old"})


def test_signal_to_the_tree(family: Family) -> None:
    assert family.reached(to="tree") == (3, {"child", "old", "lone"})


def test_signal_to_the_run_takes_what_started_since_and_its_descendants(family: Family) -> None:
    since = family.moment()
    family.fork("new", "parent")
    family.fork("late", "detached")
    assert family.reached(to="run", since=since) == (3, {"new", "new.child", "late"})


def test_run_without_a_moment_is_everything_but_the_child(family: Family) -> None:
    assert family.reached(to="run") == (2, {"old", "lone"})


def test_ps_lists_the_living_descendants_of_the_child(family: Family) -> None:
    pids = set(family.ps())
    assert pids == survivors(family.cookie) - {family.child}
    lone = next(pid for pid in pids if os.getsid(pid) == pid)
    os.kill(lone, signal.SIGKILL)
    eventually(lambda: state(lone) == "Z", "the death of one")
    assert set(family.ps()) == pids - {lone}


def test_kill_of_the_run_is_done_when_acknowledged(family: Family) -> None:
    before = survivors(family.cookie)
    since = family.moment()
    family.fork("new", "parent")
    family.fork("late", "detached")
    assert len(survivors(family.cookie)) == 6
    assert family.guardian.ask("signal", sig=9, to="run", since=since)["n"] == 3
    assert survivors(family.cookie) == before
    assert family.reached(to="tree") == (3, {"child", "old", "lone"})


def test_kill_of_the_tree_is_done_when_acknowledged(family: Family) -> None:
    family.guardian.send({"op": "signal", "id": 1, "sig": 9, "to": "tree"})
    frames = family.guardian.rest()
    assert {"ev": "signalled", "id": 1, "n": 3} in frames
    assert [frame["ev"] for frame in frames if frame["ev"] != "signalled"] == ["exit", "clean"]
    assert {"ev": "exit", "code": -9} in frames
    assert survivors(family.cookie) == set()


@pytest.mark.parametrize("kernel", KERNELS)
def test_kill_of_a_run_that_keeps_forking(kernel: str) -> None:
    storm = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    for _ in range(COUNT):
        if os.fork() == 0:
            while os.fork() == 0:
                signal.sigtimedwait([], PAUSE)
            os._exit(0)
    os.write(1, b"up\\n")
signal.pause()
"""
    # Slower where init is left with the zombies: they would use up the pids of this machine.
    count, pause = ("20", "0.001") if kernel == "Linux" else ("5", "0.02")
    storm = storm.replace("COUNT", count).replace("PAUSE", pause)
    cookie = uuid.uuid4().hex
    with guarded(kernel=kernel) as guardian, pipes(3) as (readers, writers):
        child = guardian.spawn(python(storm), [readers[0], writers[1], writers[2]], env={COOKIE: cookie})
        assert Lines(readers[1]).next() == "up"
        assert guardian.ask("signal", sig=9, to="run")["n"] > 0
        assert survivors(cookie) == {child}


@pytest.mark.parametrize("kernel", KERNELS)
def test_term_to_the_tree_wakes_the_stopped(kernel: str) -> None:
    with guarded(kernel=kernel) as guardian:
        child = guardian.spawn(["sleep", "600"])
        assert guardian.ask("signal", sig=19, to="child")["n"] == 1
        eventually(lambda: state(child) == "T", "the stop")
        assert guardian.ask("signal", sig=15, to="tree")["n"] == 1
        assert guardian.ending()[0] == -15


def test_adopted_zombies_are_reaped_while_the_child_lives() -> None:
    source = """
import os, signal
for _ in range(50):
    if os.fork() == 0:
        if os.fork() != 0:
            os._exit(0)
        os.setsid()
        os.write(1, b"%d\\n" % os.getpid())
        os._exit(0)
    os.wait()
os.write(1, b"done\\n")
signal.pause()
"""
    with guarded() as guardian, pipes(3) as (readers, writers):
        guardian.spawn(python(source), [readers[0], writers[1], writers[2]])
        lines = Lines(readers[1])
        said = {lines.next() for _ in range(51)}
        orphans = [int(line) for line in said - {"done"}]
        assert len(orphans) == 50
        eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in orphans), "the reaping of the orphans")
        assert guardian.ask("ps")["pids"] == []
        assert guardian.ask("signal", sig=15, to="child")["n"] == 1
        assert guardian.ending()[0] == -15
