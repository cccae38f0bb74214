"""A moment in the life of the system's processes: what was there before it, and what began after it."""

from __future__ import annotations

import os
import sys
import time

_LARGEST = "/proc/sys/kernel/pid_max"
_NEWEST = "/proc/sys/kernel/ns_last_pid"


class Moment:
    """`ticks`: the clock tick since boot, the unit of a process's start time; on macOS the second since the epoch.
    `newest`: the last pid given out.

    A tick is 10 ms long, and a process that a cell started is often followed by the next cell within one: the pid then
    tells which of the two it belongs to. `newest` is 0 where the system does not say.
    """

    __slots__ = ("newest", "ticks")

    def __init__(self, ticks: int, newest: int) -> None:
        self.ticks = ticks
        self.newest = newest

    def before(self, start: int, pid: int) -> bool:
        """Whether a process that started at this tick with this pid started later than this moment."""
        if start != self.ticks or not self.newest:
            return start >= self.ticks
        # Pids are given out in a circle: later is less than half of it ahead.
        circle = _circle()
        return 0 < (pid - self.newest) % circle < circle // 2


class Clock:
    """Tells moments. Holds one descriptor, so that a moment costs one read and not an open."""

    def __init__(self) -> None:
        self._fd = -1
        if sys.platform == "linux":
            self._hertz = os.sysconf("SC_CLK_TCK")
            try:
                self._fd = os.open(_NEWEST, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # a kernel without checkpoint support does not have it
                self._fd = -1

    def now(self) -> Moment:
        """This moment."""
        if sys.platform != "linux":
            return Moment(int(time.time()), 0)
        newest = int(os.pread(self._fd, 32, 0)) if self._fd >= 0 else 0
        return Moment(int(time.clock_gettime(time.CLOCK_BOOTTIME) * self._hertz), newest)

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _circle() -> int:
    """How many pids there are before the kernel begins again."""
    try:
        with open(_LARGEST, encoding="ascii") as file:
            return int(file.read())
    except OSError:
        return 1 << 22  # the most that a Linux kernel can have
