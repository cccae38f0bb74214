"""Cancelling at every scheduler step: a story is run once to count its steps, then again for each, cancelled there."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import psutil
import trio

from tests.conftest import open_descriptors

HANG = 60.0
"""seconds. Beyond every bound of a story here."""

Story = Callable[[trio.CancelScope], Awaitable[Callable[[], None]]]
"""Opens something inside the scope, works with it, and returns what looks at the owners' claims afterwards."""


class Strike(trio.abc.Instrument):
    """Counts the steps of a run and cancels `scope` right before step `at` (0: never)."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.steps = 0
        self.scope = trio.CancelScope()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps == self.at:
            self.scope.cancel()


def play(story: Story, at: int) -> int:
    """Run a story, cancelled at step `at`; how many steps it took. Afterwards nothing of it may be left."""
    descriptors, processes = open_descriptors(), psutil.Process().children(recursive=True)
    strike = Strike(at)
    trio.run(partial(_watched, story, strike.scope), instruments=[strike], strict_exception_groups=True)
    left = [process for process in psutil.Process().children(recursive=True) if process not in processes]
    assert not left, f"cancelled at step {at}: {left} left"
    opened = {fd: what for fd, what in open_descriptors().items() if descriptors.get(fd) != what}
    assert not opened, f"cancelled at step {at}: descriptors left: {opened}"
    return strike.steps


async def _watched(story: Story, scope: trio.CancelScope) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    with trio.fail_after(HANG):
        claims = await story(scope)
    claims()
    # A descriptor that was closed under somebody who still waits for it would be met here.
    await trio.lowlevel.checkpoint()
    assert trio.lowlevel.current_statistics().tasks_living == before


def sweep(story: Story, sample: int | None = None) -> None:
    """Cancel a story at each of its steps, or at about `sample` of them, spread evenly; the first ones in any case.

    How many steps a story takes depends on how the kernel groups what it tells, so a few more than counted are tried.
    """
    play(story, 0)
    steps = play(story, 0) + 5
    for at in chosen(steps, sample):
        try:
            play(story, at)
        except BaseException as error:
            error.add_note(f"cancelled at step {at} of {steps}")
            raise


def chosen(steps: int, sample: int | None) -> Iterable[int]:
    """The numbers of the steps to cancel at."""
    stride = max(1, steps // sample) if sample is not None else 1
    # Another phase in each process, so that all steps are met in the long run, and a failure names its own.
    phase = os.getpid() % stride
    return sorted({1, 2, *range(1 + phase, steps + 1, stride)})
