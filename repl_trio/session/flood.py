"""A flood of which only the end matters: taken from its pipe in few and large steps."""

from __future__ import annotations

from collections.abc import Callable

import trio

from ..process.pipes import PipeReader
from .capture import Capture

_RATE = 100 * 1_048_576
"""bytes a second. How fast such a flood may go: it is only dropped, and the processor is for the cell and others."""


async def thin_out(stream: PipeReader, capture: Callable[[], Capture], bound: int) -> None:
    """Let the pipe fill up, then drop what it holds but for what the tail needs.

    `capture` gives whose output it is: another run's, perhaps, after the pause. Of one that is not settled at `bound`
    nothing is dropped. The end of a run does not wait for this: it takes what the pipe holds then.
    """
    await trio.sleep(stream.widen() / _RATE)
    owner = capture()
    if owner.settled(bound):
        dropped, rest = stream.skim(owner.last)
        if dropped:
            owner.skip(dropped, rest)
        else:
            owner.write(rest)
