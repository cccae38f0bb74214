"""How a guardian ends what is left while its server lives, what it reports then, and what does not end it."""

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.process.guardian_driver import (
    ALONE,
    COOKIE,
    KERNELS,
    Guarded,
    Lines,
    eventually,
    gone,
    guarded,
    pipes,
    python,
    survivors,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        break
os.write(1, b"up\\n")
while True:
    signal.pause()
"""
"""Four processes in four sessions that ignore SIGTERM."""

POLITE = """
import os, signal, sys
def leave(number, frame):
    os.write(1, b"bye\\n")
    os._exit(5)
signal.signal(signal.SIGTERM, leave)
if sys.argv[1:] == ["outlives"] and os.fork():
    os.read(0, 1)
    os._exit(0)
os.write(1, b"up\\n")
while True:
    signal.pause()
"""
"""A process that says good-bye on SIGTERM; with "outlives" it is not the child, which ends when it is sent a byte."""


class Tree:
    """A guarded program whose processes have all said that they are up."""

    def __init__(self, guardian: Guarded, cookie: str, lines: Lines, begin: int) -> None:
        self.guardian = guardian
        self.cookie = cookie
        self.lines = lines
        self.begin = begin

    def ended(self) -> tuple[int, int, str | None]:
        """After the guardian has left with nothing behind: exit code, number of killed, reason."""
        code, clean = self.guardian.ending()
        assert survivors(self.cookie) == set()
        assert clean["left"] == []
        return code, clean["killed"], clean["why"]


everywhere = pytest.mark.parametrize("kernel", KERNELS)


@contextmanager
def tree(argv: list[str], ups: int, *, kernel: str = "Linux", prelude: str = "", **fields: object) -> Iterator[Tree]:
    """Start a program and wait until it has said "up" so many times."""
    cookie = uuid.uuid4().hex
    with guarded(kernel=kernel, prelude=prelude) as guardian, pipes(3) as (readers, writers):
        handed = [readers[0], writers[1], writers[2]]
        guardian.spawn(argv, handed, env={COOKIE: cookie}, **fields)
        lines = Lines(readers[1])
        for _ in range(ups):
            assert lines.next() == "up"
        assert len(survivors(cookie)) >= ups
        yield Tree(guardian, cookie, lines, writers[0])


@everywhere
def test_stop_kills_all_at_once(kernel: str) -> None:
    with tree(python(STUBBORN), 4, kernel=kernel) as stubborn:
        stubborn.guardian.send({"op": "stop", "id": 1})
        assert stubborn.ended() == (-9, 4, "stop")


@everywhere
def test_stop_takes_no_polite_step(kernel: str) -> None:
    with tree(python(POLITE), 1, kernel=kernel) as polite:
        polite.guardian.send({"op": "stop", "id": 1})
        assert polite.ended() == (-9, 1, "stop")


@everywhere
@pytest.mark.parametrize("reason", ["eof", "sigterm"])
def test_steps_are_taken_before_the_kill(reason: str, kernel: str) -> None:
    with tree(python(POLITE), 1, kernel=kernel, orphan=[[23, 0], [15, 15_000]]) as polite:
        end(polite.guardian, reason)
        assert polite.lines.next() == "bye"
        assert polite.ended() == (5, 0, reason)


@everywhere
@pytest.mark.parametrize("reason", ["eof", "sigterm"])
def test_kill_follows_steps_that_did_not_help(reason: str, kernel: str) -> None:
    with tree(python(STUBBORN), 4, kernel=kernel, orphan=[[15, 20]]) as stubborn:
        end(stubborn.guardian, reason)
        assert stubborn.ended() == (-9, 4, reason)


def end(guardian: Guarded, reason: str) -> None:
    if reason == "eof":
        guardian.socket.shutdown(1)
    else:
        os.kill(guardian.pid, signal.SIGTERM)


@everywhere
def test_what_outlives_the_child_is_killed(kernel: str) -> None:
    with tree(python(POLITE, "outlives"), 1, kernel=kernel) as polite:
        os.write(polite.begin, b"x")
        assert polite.ended() == (0, 1, None)


@everywhere
def test_what_outlives_the_child_gets_its_own_steps(kernel: str) -> None:
    with tree(python(POLITE, "outlives"), 1, kernel=kernel, leftover=[[15, 15_000], [9, 0]]) as polite:
        os.write(polite.begin, b"x")
        assert polite.lines.next() == "bye"
        assert polite.ended() == (0, 0, None)


@everywhere
def test_stop_cuts_the_steps_short(kernel: str) -> None:
    ignore = POLITE.replace("SIGTERM, leave", "SIGTERM, signal.SIG_IGN")
    with tree(python(ignore, "outlives"), 1, kernel=kernel, leftover=[[15, 60_000]]) as left:
        os.write(left.begin, b"x")
        assert left.guardian.frame() == {"ev": "exit", "code": 0}
        assert left.guardian.ask("signal", sig=15, to="child")["n"] == 0
        assert len(left.guardian.ask("ps")["pids"]) == 1
        left.guardian.send({"op": "stop", "id": 9})
        (clean,) = left.guardian.rest()
        assert (clean["killed"], clean["left"]) == (1, [])


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"nonsense\n",
        b"[1]\n",
        b'{"op":"ps","id":1} {}\n',
        b'{"op":"ps","id":NaN}\n',
        b'{"op":"ps"}\n',
        b'{"op":"stop"}\n',
        b'{"op":"ps","id":true}\n',
        b'{"op":"ps","id":' + b"9" * 5000 + b"}\n",
        b'{"op":"fly","id":1}\n',
        b'{"op":"spawn","v":1,"id":1}\n',
        b'{"op":"signal","id":1,"to":"child","sig":65}\n',
        b'{"op":"signal","id":1,"to":"child","sig":-1}\n',
        b'{"op":"signal","id":1,"to":"world","sig":2}\n',
        b'{"op":"signal","id":1,"to":["run"],"sig":2}\n',
        b'{"op":"signal","id":1,"to":"run","sig":2,"since":"now"}\n',
        b'{"op":"\xff","id":1}\n',
        b"[" * 200_000 + b"\n",
        b'{"op":"ps","id":1,"more":"' + b"x" * (1 << 20),
    ],
    ids=lambda line: repr(line[:48]),
)
def test_nonsense_is_the_end(line: bytes) -> None:
    with tree(python(POLITE), 1) as polite:
        polite.guardian.send_raw(line)
        assert polite.ended() == (5, 0, "eof")


def test_longest_frame_is_taken() -> None:
    with tree(python(POLITE), 1) as polite:
        start, finish = b'{"op":"ps","id":1,"more":"', b'"}\n'
        polite.guardian.send_raw(start + b"x" * ((1 << 20) - len(start) - len(finish)) + finish)
        answer = polite.guardian.frame()
        assert answer is not None
        assert answer["ev"] == "ps"


def test_frames_before_the_end_are_obeyed() -> None:
    with tree(python(STUBBORN), 4) as stubborn:
        stubborn.guardian.send_raw(b'{"op":"signal","id":1,"to":"child","sig":0}\n{"op":"stop","id":2}\n{"op":"x"')
        stubborn.guardian.socket.shutdown(1)
        assert stubborn.guardian.frame() == {"ev": "signalled", "id": 1, "n": 1}
        assert stubborn.ended() == (-9, 4, "stop")


ENDING = {signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM}
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS}


def test_guardian_is_not_ended_by_other_signals() -> None:
    with tree(python(POLITE), 1) as polite:
        for number in signal.valid_signals() - ENDING - FAULTS:
            os.kill(polite.guardian.pid, number)
            assert polite.guardian.ask("signal", sig=0, to="child")["n"] == 1


def test_guardian_goes_on_while_the_server_does_not_read() -> None:
    with tree(python(POLITE), 1) as polite:
        question = b'{"op":"signal","id":%d,"to":"child","sig":0}\n'
        polite.guardian.send_raw(b"".join(question % number for number in range(40_000)))
        polite.guardian.send({"op": "signal", "id": 40_000, "to": "child", "sig": 15})
        # Nobody has read an answer yet. More than a mebibyte of them is not kept; the rest comes whole and in order.
        assert polite.lines.next() == "bye"
        frames = polite.guardian.rest()
        numbers = [frame["id"] for frame in frames[:-2]]
        assert 0 < len(numbers) < 40_000
        assert numbers == list(range(len(numbers)))
        assert frames[-2] == {"ev": "exit", "code": 5}
        assert frames[-1]["ev"] == "clean"


def test_guardian_leaves_though_the_server_does_not_read() -> None:
    with tree(python(STUBBORN), 4) as stubborn:
        question = b'{"op":"signal","id":1,"to":"child","sig":0}\n'
        stubborn.guardian.send_raw(question * 20_000 + b'{"op":"stop","id":1}\n')
        assert stubborn.guardian.wait() == 0
        assert survivors(stubborn.cookie) == set()


OLD_KERNELS = {
    "no pidfd": "import posix; del posix.pidfd_open;",
    "no lists of children": "import guardian_kernel as kernel; kernel.CHILDREN_FILES = False;",
    "no json accelerator": "sys.modules['_json'] = None;",
    "no ctypes accelerator": "import _ctypes; del _ctypes.call_function;",
}


@pytest.mark.parametrize("prelude", OLD_KERNELS.values(), ids=OLD_KERNELS)
def test_missing_features_are_replaced(prelude: str) -> None:
    with tree(python(STUBBORN), 4, prelude=prelude) as stubborn:
        assert stubborn.guardian.ask("signal", sig=0, to="tree")["n"] == 4
        end(stubborn.guardian, "eof")
        assert stubborn.ended() == (-9, 4, "eof")


NO_LISTS = "import guardian_kernel as kernel; kernel.PROC = kernel.CHILDREN_FILES = False;"


@pytest.mark.parametrize("reason", ["eof", "sigterm", "exit"])
def test_the_group_is_killed_where_nothing_lists_processes(reason: str) -> None:
    with tree(python(STUBBORN.replace("os.setsid()", "pass")), 4, prelude=NO_LISTS) as stubborn:
        if reason == "exit":
            assert stubborn.guardian.ask("signal", sig=9, to="child")["n"] == 1
        else:
            end(stubborn.guardian, reason)
        code, clean = stubborn.guardian.ending()
        assert (code, clean["left"]) == (-9, [])
        eventually(lambda: not survivors(stubborn.cookie), "the end of the group")


@everywhere
def test_what_a_killed_child_leaves_is_killed(kernel: str) -> None:
    with tree(python(STUBBORN), 4, kernel=kernel) as stubborn:
        assert stubborn.guardian.ask("signal", sig=9, to="child")["n"] == 1
        # What is not its own the guardian cannot reap: init may take a moment.
        assert stubborn.guardian.ending()[1]["left"] == []
        eventually(lambda: not survivors(stubborn.cookie), "the end of all")


FAILING = (
    "import guardian_table as table; run = table._run_ps; calls = iter(range(1 << 30));"
    "table._run_ps = lambda: b'' if next(calls) in {which} else run();"
)


@pytest.mark.parametrize("which", [(1, 2, 3, 4), (2, 3)], ids=["before they are stopped", "after it"])
def test_a_look_that_fails_is_no_proof_that_nothing_is_left(which: tuple[int, ...]) -> None:
    """A storm can leave no process for ps."""
    with tree(python(STUBBORN), 4, kernel="macOS", prelude=FAILING.format(which=which)) as stubborn:
        assert len(stubborn.guardian.ask("ps")["pids"]) == 3
        stubborn.guardian.send({"op": "stop", "id": 1})
        assert stubborn.guardian.ending()[1]["left"] == []
        assert survivors(stubborn.cookie) == set()


HIDING = """
import os, signal, sys
for _ in range(3):
    if os.fork() == 0:
        if sys.argv[1:] == ["away"]:
            os.setsid()
        os.execve("/bin/sh", ["sh", "-c", "trap '' TERM; echo up; sleep 600; echo never"], {})
os.write(1, b"up\\n")
while True:
    signal.pause()
"""
"""Three shells with empty environments and a sleep below each, in the group of their parent or each in its own."""


@pytest.mark.parametrize("kernel", ALONE)
@pytest.mark.parametrize("where", ["away", "near"])
def test_what_has_lost_its_environment_is_found_when_it_was_seen_before(kernel: str, where: str) -> None:
    with guarded(kernel=kernel) as guardian, pipes(3) as (readers, writers):
        guardian.spawn(python(HIDING, where), [readers[0], writers[1], writers[2]])
        lines = Lines(readers[1])
        assert [lines.next() for _ in range(4)] == ["up"] * 4
        pids: list[int] = []
        while len(pids) < 6:
            pids = [pid for pid, _start in guardian.ask("ps")["pids"]]
        # Its parent is gone then, and there is no mark to find it by.
        assert guardian.ask("signal", sig=9, to="child")["n"] == 1
        assert guardian.ending()[1]["left"] == []
        eventually(lambda: all(map(gone, pids)), "the end of all")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a child that a guardian may not signal")
def test_what_may_not_be_killed_is_reported_and_not_waited_for() -> None:
    other_user = "import guardian as g; say = g.report_start; g.report_start = "
    other_user += "lambda *a, **k: (say(*a, **k), g.posix.setresuid(65534, 65534, 65534));"
    with guarded(prelude=other_user) as guardian:
        child = guardian.spawn(["sleep", "600"])
        try:
            assert guardian.ask("signal", sig=9, to="tree")["n"] == 0
            assert guardian.ask("signal", sig=15, to="child")["n"] == 0
            guardian.send({"op": "stop", "id": 1})
            (clean,) = guardian.rest()
            assert (clean["killed"], clean["left"], clean["why"]) == (0, [child], "stop")
            # A wait would have taken ten seconds.
            assert clean["ms"] < 5000
        finally:
            os.kill(child, signal.SIGKILL)
        eventually(lambda: gone(child), "the end of the child")
