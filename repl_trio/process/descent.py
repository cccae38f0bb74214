"""What lives below a process, read from the kernel without asking anybody: for reports, never for signals.

A guardian walks the same tree when it signals, with the checks that this needs. Here a process that ends or moves
meanwhile is simply not listed.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

_COMMAND = 200  # characters of a command line
_CONDITIONS = {"R": "running", "S": "sleeping", "I": "sleeping", "D": "blocked", "T": "stopped", "t": "traced"}


@dataclass(frozen=True, slots=True)
class Descendant:
    """A living process: its command line (shortened), its start in clock ticks since boot, its age in seconds."""

    pid: int
    command: str
    start: int
    age: float


def below(pid: int, most: int) -> tuple[list[Descendant], int]:
    """(the oldest `most` processes below `pid`, itself not among them; how many there are). Synchronous and quick."""
    if sys.platform != "linux":
        return _by_psutil(pid, most)
    pids = _descendants(pid)
    return [found for each in pids[:most] if (found := _describe(each)) is not None], len(pids)


def condition(pid: int) -> str:
    """What a process does now, in a word: `sleeping`, `running`, `stopped`, `blocked`, `traced` or `ended`."""
    if sys.platform != "linux":
        return _condition_by_psutil(pid)
    status = _read(f"/proc/{pid}/stat")
    return _CONDITIONS.get(status[status.rfind(")") + 2 :][:1], "ended")


def _descendants(pid: int) -> list[int]:
    """Breadth first, so that the ones nearest to the worker are shown first; zombies included."""
    found: list[int] = []
    queue = [pid]
    for parent in queue:
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for thread in threads:
            children = [int(word) for word in _read(f"/proc/{parent}/task/{thread}/children").split()]
            queue += children
            found += children
    return found


def _describe(pid: int) -> Descendant | None:
    status = _read(f"/proc/{pid}/stat")
    # The name in the second field may hold blanks and parentheses: only the last one ends it.
    fields = status[status.rfind(")") + 2 :].split()
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    command = _read(f"/proc/{pid}/cmdline").rstrip("\0").replace("\0", " ")
    name = status[status.find("(") + 1 : status.rfind(")")]
    start = int(fields[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - start / os.sysconf("SC_CLK_TCK")
    return Descendant(pid, _one_line(command or name), start, max(age, 0.0))


def _by_psutil(pid: int, most: int) -> tuple[list[Descendant], int]:
    import psutil  # where the kernel has no process files

    try:
        processes = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return [], 0
    found = []
    for process in processes[:most]:
        try:
            began = process.create_time()
            age = time.time() - began
            found.append(Descendant(process.pid, _one_line(" ".join(process.cmdline())), int(began), age))
        except psutil.Error:
            continue
    return found, len(processes)


def _condition_by_psutil(pid: int) -> str:
    import psutil  # as in _by_psutil

    try:
        said = psutil.Process(pid).status()
    except psutil.Error:
        return "ended"
    return "ended" if said in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else str(said)


def _one_line(command: str) -> str:
    line = " ".join(command.split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= _COMMAND else f"{line[:_COMMAND]}..."


def _read(path: str) -> str:
    """A kernel file as text; empty when it cannot be read, because its process has ended."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
