"""What holds for every test: it ends, and it leaves nothing behind."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import hypothesis
import psutil
import pytest

# A shared machine may take a second for what takes a millisecond: the hang bound below is the only clock.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

HANG_BOUND = 120.0
"""seconds. For each of set-up, call and tear-down of a test; far above what any needs, on a loaded machine too."""
SLOW_HANG_BOUND = 600.0
"""seconds. The same for a test marked slow."""
BACKSTOP = 60.0
"""seconds beyond the bound. Then the main thread does not even run signal handlers, and the whole run is ended."""
EXIT_GRACE = 2.0
"""seconds. For grandchildren that are exiting: their parent may be seen to end before the kernel ends them."""

DESCRIPTORS = Path("/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd")

PR_SET_CHILD_SUBREAPER = 36

_terminal = -1


def pytest_configure() -> None:
    # Here fd 2 is still the real one; inside a test it is pytest's capture file, which an ended run never prints.
    global _terminal
    _terminal = os.dup(2)


def pytest_unconfigure() -> None:
    os.close(_terminal)


@contextmanager
def hang_bound(item: pytest.Item) -> Iterator[None]:
    """Fails the test with every thread's stack when the phase takes longer than its bound."""
    bound = SLOW_HANG_BOUND if item.get_closest_marker("slow") else HANG_BOUND

    def hung(_number: int, _frame: FrameType | None) -> NoReturn:
        faulthandler.dump_traceback(file=_terminal)
        # Not an Exception: no clean-up of the code under test can take it for one of its own errors.
        pytest.fail(f"still running after {bound:.0f} s: {item.nodeid}")

    before = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, bound)
    faulthandler.dump_traceback_later(bound + BACKSTOP, exit=True, file=_terminal)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with hang_bound(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with hang_bound(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with hang_bound(item):
        return (yield)


@pytest.fixture(autouse=True)
def no_subreaper_afterwards() -> Iterator[None]:
    """Undo what a root guardian started by the test itself does to this process, as to every server.

    Tests that kill a server or a guardian expect what it leaves to become init's, not theirs to reap.
    """
    yield
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves this process with a child, an open descriptor or a blocked signal more than before.

    A child counts until somebody has reaped it; a grandchild has EXIT_GRACE to be gone. What is left is killed, so that
    one test's leak is not the next one's.
    """
    # An autouse fixture of the function is made first and torn down last; what a module or session fixture opens is
    # there already.
    descriptors, descendants, blocked = open_descriptors(), live_descendants(), blocked_signals()
    yield
    left = [process for process in live_descendants() if process not in descendants]
    opened = [f"fd {fd} -> {what}" for fd, what in open_descriptors().items() if descriptors.get(fd) != what]
    masked = [f"signal {number} is blocked" for number in blocked_signals() - blocked]
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    report = [*end(left), *opened, *masked]
    if report:
        pytest.fail("left behind:\n  " + "\n  ".join(report), pytrace=False)


def blocked_signals() -> set[int]:
    """What this thread holds back; every child that a later test starts would inherit it."""
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


def open_descriptors() -> dict[int, str]:
    """Every open descriptor of this process and what it leads to."""
    found = {}
    for name in os.listdir(DESCRIPTORS):
        try:
            found[int(name)] = identity(int(name))
        except OSError:
            continue  # the listing's own descriptor
    return found


def identity(fd: int) -> str:
    """What a descriptor leads to: the kernel's word for it where there is one, else the file's identity."""
    if DESCRIPTORS.parts[1] == "proc":
        return os.readlink(DESCRIPTORS / str(fd))
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}:{status.st_mode:o}"


def live_descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def end(left: list[psutil.Process]) -> list[str]:
    """Kills and reaps these descendants; returns a line for each that had no business to be there any more."""
    deadline = time.monotonic() + EXIT_GRACE
    report, stubborn = [], []
    for process in left:
        try:
            own = process.ppid() == os.getpid()
            if not own:
                process.wait(max(0.0, deadline - time.monotonic()))
                continue
            report.append(f"{describe(process)}: " + ("not reaped" if is_zombie(process) else "still running"))
        except psutil.TimeoutExpired:
            report.append(f"{describe(process)}: still running")
        except psutil.NoSuchProcess:
            continue
        stubborn.append(process)
    for process in stubborn:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(stubborn, EXIT_GRACE)
    return report


def is_zombie(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_ZOMBIE


def describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"process {process.pid}"
