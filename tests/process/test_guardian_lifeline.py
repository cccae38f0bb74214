"""Nothing outlives the lifeline: the server is killed at any moment, whatever the child has started and does."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.process import guardian_driver
from tests.process.guardian_driver import (
    COOKIE,
    KERNELS,
    Lines,
    base_python,
    eventually,
    gone,
    order,
    python,
    state,
    survivors,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

PRELUDE = """
import os, signal, sys
def ready():
    os.write(2, b"ready\\n")
def sleep():
    while True:
        signal.pause()
def ignore():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
"""

CROWD = """
ignore()
for _ in range(200):
    if os.fork() == 0:
        os.setsid()
        sleep()
ready()
sleep()
"""

CHAIN = """
for _ in range(200):
    if os.fork():
        sleep()
    os.setsid()
ready()
sleep()
"""

STOPPED_CROWD = """
for _ in range(30):
    if os.fork() == 0:
        os.setsid()
        os.kill(os.getpid(), signal.SIGSTOP)
ready()
sleep()
"""

COMETS = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        while os.fork() == 0:
            pass
        os._exit(0)
ready()
sleep()
"""

POOLS = """
import multiprocessing, time
for how in ("fork", "spawn", "forkserver"):
    multiprocessing.get_context(how).Process(target=time.sleep, args=(600,)).start()
ready()
sleep()
"""
"""The child, three sleepers, the fork server and the resource tracker."""

ADVERSARIES = {
    "sleeping": (1, "ready(); sleep()"),
    "spinning": (1, "ready()\nwhile True: pass"),
    "in C with the GIL": (1, "ready(); 10 ** 10 ** 9"),
    "ignoring TERM": (1, "ignore(); ready(); sleep()"),
    "blocking every signal": (1, "signal.pthread_sigmask(0, signal.valid_signals()); ready()\nwhile True: pass"),
    "stopped": (1, "ready(); os.kill(os.getpid(), signal.SIGSTOP)"),
    "output pipe full": (1, "ready(); os.write(1, b'x' * 100_000)"),
    "child holds the pipes": (2, "os.fork() or (os.setsid(), ignore()); ready(); sleep()"),
    "another session": (2, "os.fork() or os.setsid(); ready(); sleep()"),
    "daemon": (2, "os.fork() or (os.setsid(), os.fork() and os._exit(0), ignore()); ready(); sleep()"),
    "nohup setsid &": (2, "os.system('nohup setsid sleep 600 >/dev/null 2>&1 &'); ready(); sleep()"),
    "child is a subreaper": (
        3,
        "import ctypes\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "os.fork() or (os.setsid(), os.fork() or os.setsid()); ready(); sleep()",
    ),
    "crowd of 200": (201, CROWD),
    "chain of 200": (201, CHAIN),
    "stopped crowd": (31, STOPPED_CROWD),
    "multiprocessing": (6, POOLS),
    # Negative: at least so many. A comet has no fixed pid, and may be seen as its parent, itself, both or neither.
    "comets": (-10, COMETS),
}

# Comets alone: where init is a slow reaper, their zombies use up the pids of this machine.
CASES = [
    pytest.param(kernel, *case, id=f"{name}-{kernel}")
    for kernel in KERNELS
    for name, case in ADVERSARIES.items()
    if kernel == "Linux" or name != "comets"
]


class Killable:
    """A server process with a guardian and a child, and the cookie of all that comes from the child."""

    def __init__(self, server: subprocess.Popen[bytes], cookie: str) -> None:
        assert server.stdout is not None
        self.server = server
        self.cookie = cookie
        self.lines = Lines(server.stdout.fileno())
        self.seen: dict[str, dict[str, object]] = {}
        self.child = self.guardian = 0

    def until(self, wanted: str) -> dict[str, object]:
        """The frame of this kind; the child's own line is the kind "ready" and may come before that it was spawned."""
        while wanted not in self.seen:
            line = self.lines.next()
            assert line, f"the output ended before {wanted}"
            frame = json.loads(line) if line.startswith("{") else {"ev": line}
            self.seen[frame["ev"]] = frame
        return self.seen[wanted]

    def wait_spawned(self) -> None:
        frame = self.until("spawned")
        assert isinstance(frame["pid"], int)
        assert isinstance(frame["guardian"], int)
        self.child, self.guardian = frame["pid"], frame["guardian"]

    def wait_nothing_left(self) -> None:
        eventually(lambda: not survivors(self.cookie), "the end of all that the child started")
        eventually(lambda: gone(self.guardian), "the end of the guardian")


@contextmanager
def killable(source: str, *options: str, kernel: str = "Linux") -> Iterator[Killable]:
    """A running child under a server that may be killed."""
    cookie = uuid.uuid4().hex
    spawn = json.dumps(order(python(PRELUDE + source), env={COOKIE: cookie, "PATH": os.environ["PATH"]}))
    program = [base_python(), "-I", guardian_driver.__file__, spawn, kernel, *options]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as server:
        try:
            running = Killable(server, cookie)
            running.wait_spawned()
            running.until("ready")
            yield running
        finally:
            server.kill()
        running.wait_nothing_left()


@pytest.mark.parametrize(("kernel", "expected", "source"), CASES)
def test_nothing_outlives_a_killed_server(kernel: str, expected: int, source: str) -> None:
    with killable(source, kernel=kernel) as running:
        if expected < 0:
            eventually(lambda: len(survivors(running.cookie)) >= -expected, "enough processes")
        else:
            eventually(lambda: len(survivors(running.cookie)) == expected, f"{expected} processes")
        running.server.kill()
        running.wait_nothing_left()


@pytest.mark.parametrize("kernel", [*KERNELS, "macOS without queues"])
def test_the_end_of_the_server_is_seen_when_another_process_holds_the_socket(kernel: str) -> None:
    with killable("ready(); sleep()", "leak", kernel=kernel) as running:
        running.server.kill()
        # Told by the process that inherited the socket: the lifeline never reached its end.
        assert running.until("exit")["code"] == -15
        assert running.until("clean")["why"] == "pidfd"


def test_server_killed_while_stopped() -> None:
    with killable("os.fork() or os.setsid(); ready(); sleep()") as running:
        running.server.send_signal(signal.SIGSTOP)
        eventually(lambda: state(running.server.pid) == "T", "the stop of the server")
        assert len(survivors(running.cookie)) == 2
        running.server.kill()
        running.wait_nothing_left()


def test_stopped_guardian_wakes_up_when_the_server_dies() -> None:
    with killable("os.fork() or os.setsid(); ready(); sleep()") as running:
        os.kill(running.guardian, signal.SIGSTOP)
        eventually(lambda: state(running.guardian) == "T", "the stop of the guardian")
        running.server.kill()
        running.wait_nothing_left()


def test_child_dies_with_a_killed_guardian() -> None:
    with killable("ignore(); ready(); sleep()") as running:
        os.kill(running.guardian, signal.SIGKILL)
        running.wait_nothing_left()


@pytest.mark.parametrize("milliseconds", range(20, 80, 3))
def test_server_killed_at_any_moment_of_the_start(milliseconds: int) -> None:
    cookie = uuid.uuid4().hex
    source = "import os; os.fork(); os.fork() or os.setsid(); import time; time.sleep(600)"
    spawn = json.dumps(order(python(source), env={COOKIE: cookie}))
    program = [base_python(), "-I", guardian_driver.__file__, spawn, "Linux"]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        # The moment of the kill is the case itself, not a way to wait for something.
        try:
            server.wait(milliseconds / 1000)
        except subprocess.TimeoutExpired:
            server.kill()
        # The child holds this pipe as its stderr, and the server as its stdout: the end of the file is the end of both.
        lines = Lines(server.stdout.fileno())
        while lines.next():
            pass
    eventually(lambda: not survivors(cookie), "the end of all that was started")
