"""What the system says about processes, and the signals that the test sends on purpose.

This process is a child subreaper: whatever a killed server leaves behind becomes its child, so that nothing can hide,
detached and with another environment as it may be.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

COOKIE = "REPL_TRIO_STRESS"

OWN = os.getpid()

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> bool:
    """Become a child subreaper; False where there is no such thing."""
    if sys.platform != "linux":
        return False
    done: int = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return done == 0


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return bool(psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return False


def describe(pid: int) -> str:
    """A process in words, as far as it is still there."""
    try:
        process = psutil.Process(pid)
        return f"{pid} ({process.status()}, child of {process.ppid()}: {' '.join(process.cmdline())[:120]!r})"
    except psutil.NoSuchProcess:
        return f"{pid} (gone)"


def below(pid: int) -> set[int]:
    """The pids of the living descendants of a process."""
    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True) if alive(child.pid)}
    except psutil.NoSuchProcess:
        return set()


def carriers(cookie: str) -> set[int]:
    """The living processes whose environment holds the cookie, whoever their parent is."""
    wanted = f"{COOKIE}={cookie}".encode()
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    found.add(int(entry))
    return found


def bury_children(spared: set[int]) -> None:
    """Reap the ended processes that became ours, but for those that somebody here waits for."""
    for child in psutil.Process(OWN).children():
        if child.pid not in spared:
            with contextlib.suppress(ChildProcessError, psutil.NoSuchProcess):
                os.waitpid(child.pid, os.WNOHANG)


class Guardians:
    """The guardian processes of a worker: its own, and the root above that, None where there is none (any more)."""

    def __init__(self, worker: int, server: int) -> None:
        self.own = _guardian_above(worker, server)
        self.root = _guardian_above(self.own, server) if self.own is not None else None


def _guardian_above(pid: int, server: int) -> int | None:
    """The parent of a process if it is a guardian. The server itself is none."""
    try:
        parent = psutil.Process(pid).ppid()
        is_guardian = parent != server and any("guardian_root" in word for word in psutil.Process(parent).cmdline())
    except psutil.NoSuchProcess:
        return None
    return parent if is_guardian else None


def guardians_below(server: int) -> set[int]:
    """All guardians of a server, the root included."""
    found = set()
    for pid in below(server):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("guardian_root" in word for word in psutil.Process(pid).cmdline()):
                found.add(pid)
    return found


def kill(pids: Sequence[int | None], server: int) -> bool:
    """SIGKILL to processes below `server`, if all of them are there; whether they were."""
    there = below(server)
    wanted = [pid for pid in pids if pid is not None and pid in there]
    if len(wanted) < len(pids):
        return False
    kill_all(wanted)
    return True


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL to all of these at one moment."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Footprint:
    """What a server holds at a moment: descriptors, living processes below it, threads."""

    def __init__(self, server: int) -> None:
        process = psutil.Process(server)
        self.descriptors = process.num_fds()
        self.processes = len(below(server))
        self.threads = process.num_threads()

    def within(self, start: Footprint) -> bool:
        """Whether this is no more than at the start. One thread more may be idle: it ends by itself after a while."""
        return (
            self.descriptors <= start.descriptors
            and self.processes <= start.processes
            and self.threads <= start.threads + 1
        )

    def __str__(self) -> str:
        return f"{self.descriptors} descriptors, {self.processes} processes, {self.threads} threads"


def resident(server: int) -> int:
    """Resident bytes of the server process alone."""
    bytes_held: int = psutil.Process(server).memory_info().rss
    return bytes_held
