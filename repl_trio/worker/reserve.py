"""Descriptors kept for the worker's own late imports: a cell that has used up all others is still told so in words."""

from __future__ import annotations

import os

from .link import move_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_COUNT = 4
"""descriptors. One import has two open at a time, and asyncio's loop is made of three."""


class _Reserve:
    """What is held, by which process."""

    held: list[int] = []  # noqa: RUF012 - one for the process
    null = -1
    pid = 0


def keep(null: int) -> None:
    """Hold a reserve from here on: duplicates of `null`."""
    _Reserve.null, _Reserve.pid = null, os.getpid()
    os.register_at_fork(after_in_child=release)
    fill()


def spend(call: Callable[[], Any]) -> Any:
    """Call with the reserve free to use."""
    release()
    try:
        return call()
    finally:
        fill()


def release() -> None:
    """Let the code that follows have them."""
    while _Reserve.held:
        os.close(_Reserve.held.pop())


def fill() -> None:
    """Hold as many again as can be had. A forked child needs none."""
    try:
        while len(_Reserve.held) < _COUNT and os.getpid() == _Reserve.pid:
            _Reserve.held.append(move_up(_Reserve.null))
    except OSError:
        # Nothing is left, or the cell has lowered its limit. The next time may be better.
        return
