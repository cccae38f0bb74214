"""Taking the client's pipes away from everybody else in this process.

fd 0 becomes `/dev/null` and fd 1 becomes stderr, so that neither a stray `print` nor a library can write into the
protocol or read from it. What the protocol uses are private descriptors with an open file description of their own
where the kernel gives one: `O_NONBLOCK` belongs to the description, and setting it on a shared one breaks whoever else
holds the client's terminal or pipe.

No trio here: the opening exchange claims before trio may be imported.
"""

from __future__ import annotations

import os
import stat
import sys


class Claim:
    """The client's two private, non-blocking descriptors. `release` closes them and undoes what was changed."""

    def __init__(self, receive_fd: int, send_fd: int, shared: list[int]) -> None:
        self.receive_fd = receive_fd
        self.send_fd = send_fd
        self._shared = shared  # descriptors whose description was changed in place

    def release(self) -> None:
        """Close both; a description that is shared with others blocks again."""
        for fd in self._shared:
            os.set_blocking(fd, True)
        os.close(self.receive_fd)
        os.close(self.send_fd)


def claim() -> Claim:
    """Take fd 0 and 1. Descriptors 0, 1 and 2 that are closed become `/dev/null` first."""
    fill_holes()
    shared: list[int] = []
    receive_fd = _private(0, os.O_RDONLY, shared)
    send_fd = _private(1, os.O_WRONLY, shared)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return Claim(receive_fd, send_fd, shared)


class Outputs:
    """Private, non-blocking descriptors of stdout and stderr. `release` closes them and undoes what was changed."""

    def __init__(self) -> None:
        self._shared: list[int] = []
        self.stdout = _private(1, os.O_WRONLY, self._shared)
        self.stderr = _private(2, os.O_WRONLY, self._shared)

    def release(self) -> None:
        """Close both; a description that is shared with others blocks again."""
        for fd in self._shared:
            os.set_blocking(fd, True)
        os.close(self.stdout)
        os.close(self.stderr)


def fill_holes() -> None:
    """Open `/dev/null` for each of the descriptors 0, 1 and 2 that is closed.

    Without that, the next pipe of ours would get number 0, 1 or 2 and a child would be handed the wrong thing.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: exactly the hole


def _private(fd: int, access: int, shared: list[int]) -> int:
    """A non-blocking duplicate of `fd`, with a description of its own where it is a pipe (on Linux) or a terminal."""
    path = _reopenable(fd)
    if path is not None:
        try:
            return os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            pass  # no /proc, or the pipe or terminal belongs to another user: share the description below
    duplicate = os.dup(fd)
    if os.get_blocking(duplicate):
        os.set_blocking(duplicate, False)
        shared.append(duplicate)
    return duplicate


def _reopenable(fd: int) -> str | None:
    """Where `fd` can be opened once more; None where that would be another file or another position in it."""
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        return f"/proc/self/fd/{fd}"
    if os.isatty(fd):
        # The shell and the line editor share the terminal's description: they must not see it become non-blocking.
        return f"/proc/self/fd/{fd}" if sys.platform == "linux" else os.ttyname(fd)
    return None
