"""Loaded into a guardian on Linux before its own modules, this makes it find what macOS has, and nothing else.

No /proc, no pidfds, no child subreaper, no parent-death signal, no `waitid` (as before Python 3.13), and kernel queues
for the ends of processes. Only `ps` is asked with Linux's own options.
"""

import os
import posix
import select
import sys
from collections.abc import Sequence
from typing import Any

_open, _waitid = posix.pidfd_open, posix.waitid


class Event:
    """`select.kevent`, as far as guardians use it."""

    def __init__(self, ident: int, _filter: int, _flags: int, fflags: int) -> None:
        self.ident = ident
        self.status = bool(fflags & 0x04000000)
        self.data = 0


class Queue:
    """`select.kqueue` for the end of one process: readable until its one event is taken."""

    def __init__(self) -> None:
        self._fd = -1
        self._event: Event | None = None

    def fileno(self) -> int:
        return self._fd

    def control(self, changes: Sequence[Event] | None, most: int, _timeout: float | None = None) -> list[Event]:
        for event in changes or ():
            self._fd, self._event = _open(event.ident), event
            if event.status and self._ended() is not None:
                raise ProcessLookupError(3, "a zombie cannot be watched")
        found = self._ended() if most and self._event is not None else None
        if found is None or self._event is None:
            return []
        event, self._event = self._event, None
        event.data = found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status
        silent, _writer = os.pipe()
        os.dup2(silent, self._fd, inheritable=False)
        return [event]

    def _ended(self) -> Any:
        assert self._event is not None
        return _waitid(os.P_PID, self._event.ident, os.WEXITED | os.WNOHANG | os.WNOWAIT)


sys.platform = "darwin"
del posix.pidfd_open, posix.waitid
for _name, _value in {
    "kqueue": Queue,
    "kevent": Event,
    "KQ_FILTER_PROC": -5,
    "KQ_EV_ADD": 1,
    "KQ_NOTE_EXIT": 0x80000000,
}.items():
    setattr(select, _name, _value)

import guardian_table  # noqa: E402 - only now, as on macOS

guardian_table.OPTIONS[0] = "axewww"
