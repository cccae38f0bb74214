"""Waiting for one child of ours by its pid, never for "any child"."""

from __future__ import annotations

import os

import trio

_FALLBACK_STEP = 0.005  # seconds between two looks where the kernel has no pidfd


async def reap(pid: int) -> int | None:
    """Wait for the child `pid` and return its wait status; None when it is no child (any more). Cancellable.

    Returns in the step that has reaped it: a caller who then forgets the pid leaves no moment in which somebody else
    could signal a stranger with that number. Cancelled, it has reaped nothing.
    """
    await trio.lowlevel.checkpoint()
    ended, status = _look(pid)
    if ended:
        # Also for the pid of no child: waiting for that one's pidfd could mean waiting for a stranger.
        return status
    try:
        pidfd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return await _reap_by_looking(pid)
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)
    return _look(pid)[1]


async def _reap_by_looking(pid: int) -> int | None:
    while True:
        ended, status = _look(pid)
        if ended:
            return status
        await trio.sleep(_FALLBACK_STEP)


def _look(pid: int) -> tuple[bool, int | None]:
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True, None
    return found == pid, status if found == pid else None
