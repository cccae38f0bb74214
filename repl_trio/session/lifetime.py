"""A generation's lifetime: who owns its guardian, its tasks and its descriptors, from the launch to the last record."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ..limits import Limits
from ..process.guard import open_guard
from ..process.named import named
from ..process.root import RootWatch
from ..process.start import WorkerStart
from .generation import Background, Generation
from .tap import Tap

_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_generation(
    number: int,
    start: WorkerStart,
    watch: RootWatch,
    limits: Limits,
    tap: Tap | None = None,
    background: Background | None = None,
) -> AsyncIterator[Generation]:
    """Own a starting worker until nothing is left of it.

    Yields when the worker is ready, or when it will not become ready: `problem` then says why. A value and not an
    exception, because an exception would leave through two nurseries and arrive as a group. Leaving the context ends
    the worker in order; when cancelled, at once.
    """
    adopted = False
    try:
        async with open_guard(start.guardian, watch, limits) as guard:
            adopted = True
            async with _at_work(Generation(number, start, guard, limits, tap, background), limits) as generation:
                yield generation
        _log.debug("worker %s: nothing is left; the guardian's last record: %s", guard.child_pid, guard.clean)
    finally:
        if not adopted:
            start.close()  # cancelled while the guardian was being forked: nobody has adopted the pipes


@asynccontextmanager
async def _at_work(generation: Generation, limits: Limits) -> AsyncIterator[Generation]:
    """Own the tasks of a generation and its end."""
    try:
        async with trio.open_nursery() as nursery:
            for name, task in generation.tasks().items():
                nursery.start_soon(task, name=named(name))
            await generation.become_ready()
            yield generation
            generation.leave()
            await _close(generation, limits)
            nursery.cancel_scope.cancel()
    except Exception:  # to say so before the clean-up does: a bug in one of these tasks, whose owner has it logged
        generation.end("The worker had to be ended because of a bug in repl-trio")
        raise
    finally:
        generation.machine.advance("clean")
        generation.end("The worker was ended with its session")
        generation.drain()
        generation.close()
        generation.over.set()


async def _close(generation: Generation, limits: Limits) -> None:
    """End the worker: a word to it, `stop_grace` for atexit handlers, SIGTERM, `stop_kill`, SIGKILL."""
    guard = generation.guard
    if generation.ordered and not guard.exited.is_set():
        _log.debug("worker %s: asked to end", guard.child_pid)
        generation.ask_to_end()
        with trio.move_on_after(limits.stop_grace):
            await guard.exited.wait()
    if not guard.exited.is_set():
        _log.debug("worker %s: SIGTERM to it and to all it started", guard.child_pid)
        await guard.signal(signal.SIGTERM, "tree")
        with trio.move_on_after(limits.stop_kill):
            await guard.exited.wait()
    _log.debug("worker %s: SIGKILL to what is left", guard.child_pid)
    await generation.kill()
