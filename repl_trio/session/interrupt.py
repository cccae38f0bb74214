"""Climbing a ladder: the driver of `machines.ladder`."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ..machines.ladder import RUN, SIGKILL, WORKER, Rung
from .generation import Generation
from .run import Run


async def climb(rungs: Sequence[Rung], run: Run, generation: Generation, settle: float) -> None:
    """Stop a run: one rung after the other until its result is there or the worker is gone.

    Every signal is acknowledged by the guardian before the next step, so none can arrive later, at another cell. The
    climb begins `settle` seconds after the cell was sent at the earliest: by then the worker has begun it, and cannot
    take the signal for a late one of the run before. What was done, and when, stands in the run's `steps` afterwards.
    """
    run.stopped = started = max(trio.current_time(), run.sent + settle)
    for rung in rungs:
        with trio.move_on_at(started + rung.after):
            await run.arrived.wait()
        if run.arrived.is_set():
            return
        if rung.signal == SIGKILL:
            run.machine.advance("kill")
            run.passed(rung.name, 1)
            await generation.kill()
        else:
            met = await generation.guard.signal(rung.signal, rung.target, since=run.since)
            run.passed(rung.name, met)
            # A cell that goes on after its command was interrupted has been stopped all the same.
            run.touched = run.touched or (met > 0 and rung.target != WORKER)


async def clear(run: Run, generation: Generation) -> None:
    """Kill what a stopped run started and did not finish. Afterwards nothing of it writes any more.

    What it has written until then is the run's output, not the next one's.
    """
    run.passed("clear", await generation.guard.signal(SIGKILL, RUN, since=run.since))
    generation.drain()
