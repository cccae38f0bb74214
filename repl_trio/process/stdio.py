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
    """Take fd 0 and 1. Descriptors 0, 1 and 2 that are closed become `/dev/null` first.

    Without that, the next pipe of ours would get number 0, 1 or 2 and a child would be handed the wrong thing.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: exactly the hole
    shared: list[int] = []
    receive_fd = _private(0, os.O_RDONLY, shared)
    send_fd = _private(1, os.O_WRONLY, shared)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return Claim(receive_fd, send_fd, shared)


def _private(fd: int, access: int, shared: list[int]) -> int:
    """A non-blocking duplicate of `fd`, with a description of its own if `fd` is a pipe of Linux."""
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        try:
            return os.open(f"/proc/self/fd/{fd}", access | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            pass  # no /proc, or the pipe belongs to another user: share the description below
    duplicate = os.dup(fd)
    if os.get_blocking(duplicate):
        os.set_blocking(duplicate, False)
        shared.append(duplicate)
    return duplicate
