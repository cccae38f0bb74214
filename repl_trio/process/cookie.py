"""The mark in the environment of everything a server starts, and the sweep that it makes possible.

The last line of containment on Linux: when a server, its root guardian and the guardians are all killed at once, nobody
is left to end what had detached itself from the workers. The next server to start finds it by this mark. The mark is
exact: a pid alone would name a stranger once it has been given out again, so start time, boot, pid namespace and user
are part of it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "REPL_TRIO_SERVER"

_ROUNDS = 5  # over the process table: what is found may be forking


class Cookie:
    """Which server a process came from: its pid, its start in clock ticks, and the machine that this is true of."""

    __slots__ = ("place", "server", "start")

    def __init__(self, server: int, start: int, place: str) -> None:
        self.server = server
        self.start = start
        self.place = place

    @property
    def text(self) -> str:
        """The value of the environment variable."""
        return f"{self.server}.{self.start}.{self.place}"

    @classmethod
    def parse(cls, text: str) -> Cookie | None:
        """The cookie that such a text stands for; None for any other text."""
        server, _, rest = text.partition(".")
        start, _, place = rest.partition(".")
        if not (server.isdecimal() and start.isdecimal() and place and len(text) < 200):
            return None
        return cls(int(server), int(start), place)


def mine() -> Cookie | None:
    """The cookie of this process; None where the kernel has no process files."""
    start, place = _start(os.getpid()), _place()
    return Cookie(os.getpid(), start, place) if start is not None and place is not None else None


def marked(env: Mapping[str, str]) -> Mapping[str, str]:
    """An environment with the cookie of this process, where there is one."""
    mark = mine()
    return env if mark is None else {**env, NAME: mark.text}


def sweep() -> int:
    """Kill what servers that are gone have left behind; how many processes that were. Blocking, for a thread.

    Only processes whose environment still holds the mark of a server of this user, boot and pid namespace that is no
    more. Each is killed by pidfd after its mark was read again, so a pid that was given out meanwhile hits nobody.
    """
    place = _place()
    victims: set[int] = set()
    if place is None or not hasattr(os, "pidfd_open"):
        return 0
    for _round in range(_ROUNDS):
        found = {pid for pid in _pids() if _left_behind(pid, place)}
        for pid in found:
            _kill(pid, place)
        victims |= found
        if not found:
            break
    return len(victims)


def _kill(pid: int, place: str) -> None:
    with suppress(OSError):  # it has ended, or is another user's by now
        process = os.pidfd_open(pid)
        try:
            if _left_behind(pid, place):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def _left_behind(pid: int, place: str) -> bool:
    text = _read(f"/proc/{pid}/environ")
    # Most processes are nobody's: one search of the whole text before it is cut into pieces.
    mark = f"{NAME}=".encode()
    if text is None or mark not in text:
        return False
    values = [entry[len(mark) :] for entry in text.split(b"\0") if entry.startswith(mark)]
    cookie = Cookie.parse(values[0].decode("utf-8", "replace")) if values else None
    return cookie is not None and cookie.place == place and _start(cookie.server) != cookie.start


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def _start(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when there is none, or when it is a zombie."""
    text = _read(f"/proc/{pid}/stat")
    if not text:
        return None
    # The name in the second field may hold blanks and parentheses: only the last one ends it.
    fields = text[text.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _place() -> str | None:
    boot = _read("/proc/sys/kernel/random/boot_id")
    if boot is None:
        return None
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
    return f"{boot.decode('ascii').strip()}.{namespace}.{os.getuid()}"


def _read(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(fd, 65_536):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None  # it has ended
    finally:
        os.close(fd)
