"""The persistent asyncio loop of a generation, and the asyncio remains of a cell.

Loaded on the first top-level `await` (`isolation.isolated_import`): importing asyncio costs twice a worker's start.

An interrupt never goes through a running loop as KeyboardInterrupt: that was measured to lose a ready handle, and with
it a task, now and then. It cancels the task that the loop runs for, the cell's own or that of an `asyncio.run` in it,
and when user code is running at that very moment it raises CancelledError there, an ordinary end of a task. From the
second interrupt on CancelledError is also raised inside asyncio's own code, while a callback of the loop is running.
"""

from __future__ import annotations

import _contextvars
import _signal
import asyncio
import os
import sys
from asyncio import base_events, events

from . import origin
from .gate import outcome_of
from .source import await_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from contextvars import Context
    from types import FrameType
    from typing import Any

    from .source import Program

_ASYNCIO = os.path.dirname(asyncio.__file__) + "/"
_RUN_HANDLE = events.Handle._run.__code__
#: `asyncio.run` of 3.11 and newer; its frame's `self` turns the CancelledError of an interrupt into KeyboardInterrupt.
_RUNNER_RUN = getattr(getattr(getattr(asyncio, "Runner", None), "run", None), "__code__", None)
_LOOP_FOR = getattr(base_events, "_run_until_complete_cb", None)
#: Objects that end an asynchronous generator: they are on their way out by themselves.
_ENDING = frozenset(("async_generator_athrow", "async_generator_asend"))
_CHAIN = 200


def _nothing() -> None:
    """Wakes a sleeping selector."""


class CellLoop:
    """Owner of the loop that all cells with a top-level `await` share."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._strikes = 0

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; a new one on first use, or when a cell has closed the old one."""
        if self._loop is None or self._loop.is_closed():
            self._loop = events.new_event_loop()
            events.set_event_loop(self._loop)
        return self._loop

    def run(
        self, program: Program, namespace: dict[str, object], context: Context
    ) -> tuple[Any, BaseException | None, Context]:
        """Run a cell in a task: (its value, the exception that left it, the context for the next cell)."""
        end = _End(context)
        _value, error = self._drive(end.carry(program, namespace), context)
        if end.ended:
            return end.value, end.error, end.context
        return None, error, end.context

    def _drive(self, work: Coroutine[Any, Any, None], context: Context) -> tuple[Any, BaseException | None]:
        loop = self.loop()
        # A cell may have made another loop current. Code below `await` expects the running one, which asyncio sees to.
        if sys.version_info >= (3, 11):
            self._task = loop.create_task(work, context=context)
        else:
            self._task = context.run(loop.create_task, work)
        # A signal that comes between the interpreter's last look at signals and the selector's system call would sleep
        # with it: 1 of 150 interrupts was lost that way. The byte that C writes here wakes the selector.
        alarm = getattr(loop, "_csock", None)
        if alarm is not None:
            _signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)
        try:
            return outcome_of(loop.run_until_complete, self._task)
        finally:
            if alarm is not None:
                _signal.set_wakeup_fd(-1)
            if not self._task.done():
                self._task.cancel()
            self._task = None

    def interrupt(self, frame: FrameType) -> None:
        """Let an interrupt land while a loop runs on this thread. Called by the signal handler with its frame."""
        loop = events._get_running_loop()
        task = self._task if loop is None or loop is self._loop else None
        if task is None and loop is not None:
            task = _task_of(loop)
        if task is None:
            # Nobody's loop, or one that runs for no task (`run_forever`).
            raise KeyboardInterrupt
        self._strikes += 1
        runner = _runner(frame)
        if runner is not None:
            runner._interrupt_count = getattr(runner, "_interrupt_count", 0) + 1
        inside = _in_callback(frame) and (self._strikes > 1 or not _of_asyncio(frame))
        # The exception raised below ends the task by itself; cancelling it too would hit its clean-up as well.
        if not task.done() and not (inside and asyncio.current_task(loop) is task):
            task.cancel()
            task.get_loop().call_soon_threadsafe(_nothing)
        if inside:
            raise asyncio.CancelledError

    def begin(self) -> None:
        """A run begins: its first interrupt is the first."""
        self._strikes = 0

    def at_work(self) -> bool:
        """Whether interrupts are this loop's to place: a cell's task is on it, or any loop runs on this thread."""
        return self._task is not None or events._get_running_loop() is not None

    def keep_current(self) -> None:
        """Give `asyncio.get_event_loop()` a loop again after a cell's `asyncio.run` or an interrupt in one.

        asyncio.run leaves the main thread without a current loop, and code of later cells that asks for one would fail.
        """
        if events._get_running_loop() is not None:
            # An interrupt fell between the loop's end and its own tidying up.
            events._set_running_loop(None)
        local = getattr(getattr(events, "_event_loop_policy", None), "_local", None)
        current = getattr(local, "_loop", None)
        used = self._loop is not None or getattr(local, "_set_called", False)
        if used and (current is None or current.is_closed()):
            events.set_event_loop(self.loop())

    def retire(self, grace: float, rounds: int) -> int:
        """End what still runs user code on the loop; the number of tasks, timers and callbacks that were cancelled.

        Tasks get `rounds` rounds of cancellation, each waiting up to `grace` seconds.
        """
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            return 0
        cancelled = self._cancel_callbacks(loop)
        counted: set[Any] = set()
        for _round in range(rounds):
            tasks = self._user_tasks(loop)
            if not tasks:
                break
            ending = {task for task in tasks if type(task.get_coro()).__name__ in _ENDING}
            counted |= tasks - ending
            for task in tasks - ending:
                task.cancel()
            self._settle(loop, tasks, grace)
        return cancelled + self._cancel_callbacks(loop) + len(counted)

    def left(self) -> tuple[list[str], bool]:
        """(names of the tasks that stay, whether one of them still runs user code)."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return [], False
        names = sorted(task.get_name() for task in asyncio.all_tasks(loop))
        return names, bool(self._user_tasks(loop))

    def close(self, grace: float) -> None:
        """Orderly end: cancel all tasks so that their `finally` runs, then close the loop."""
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            return
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._settle(loop, tasks, grace)
        outcome_of(loop.run_until_complete, loop.shutdown_asyncgens())
        loop.close()

    def _settle(self, loop: asyncio.AbstractEventLoop, tasks: set[Any], grace: float) -> None:
        """Run the loop until these tasks have ended or the grace is over."""
        outcome_of(loop.run_until_complete, asyncio.wait(tasks, timeout=grace))
        for task in tasks:
            # Without this the loop would report "exception was never retrieved" for what we ended on purpose.
            if task.done() and not task.cancelled():
                task.exception()

    def _user_tasks(self, loop: asyncio.AbstractEventLoop) -> set[Any]:
        return {task for task in asyncio.all_tasks(loop) if _runs_cell_code(task.get_coro())}

    def _cancel_callbacks(self, loop: Any) -> int:
        cancelled = 0
        for handle in (*getattr(loop, "_scheduled", ()), *getattr(loop, "_ready", ())):
            if not handle.cancelled() and _is_cell_callback(handle._callback):
                handle.cancel()
                cancelled += 1
        return cancelled


class _End:
    """How a cell's task ended. Kept apart from the task's own result.

    A task that is cancelled at the moment its coroutine returns forgets the value, and KeyboardInterrupt or SystemExit
    of a coroutine would tear through the loop.
    """

    def __init__(self, context: Context) -> None:
        self.ended = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.context = context

    async def carry(self, program: Program, namespace: dict[str, object]) -> None:
        try:
            self.value = await await_program(program, namespace)
        except BaseException as error:  # noqa: BLE001 - whatever leaves the cell is its outcome
            self.error = error
        self.ended = True
        if sys.version_info < (3, 11):
            # A task of Python 3.10 runs in a copy of the context it is given.
            self.context = _contextvars.copy_context()


def _in_callback(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is _RUN_HANDLE:
            return True
        frame = frame.f_back
    return False


def _task_of(loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
    """The task that a `run_until_complete` on this loop waits for."""
    for task in asyncio.all_tasks(loop):
        if any(callback is _LOOP_FOR for callback, _context in getattr(task, "_callbacks", None) or ()):
            return task
    return None


def _runner(frame: FrameType | None) -> Any:
    """The `asyncio.Runner` at work on this stack, if any."""
    while frame is not None:
        if frame.f_code is _RUNNER_RUN:
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


def _of_asyncio(frame: FrameType) -> bool:
    # This module's frames count as well: those of the coroutine that carries the cell.
    return frame.f_code.co_filename.startswith(_ASYNCIO) or frame.f_globals is globals()


def _chain(coroutine: Any) -> Iterator[Any]:
    """A coroutine and what it awaits, as far as the interpreter shows it."""
    for _step in range(_CHAIN):
        if coroutine is None:
            return
        yield coroutine
        for name in ("cr_await", "gi_yieldfrom", "ag_await"):
            inner = getattr(coroutine, name, None)
            if inner is not None:
                break
        coroutine = inner


def _runs_cell_code(coroutine: Any) -> bool:
    for link in _chain(coroutine):
        if type(link).__name__ in _ENDING:
            return True
        for name in ("cr_code", "gi_code", "ag_code"):
            code = getattr(link, name, None)
            if code is not None and origin.is_cell(code.co_filename):
                return True
    return False


def _is_cell_callback(callback: Any) -> bool:
    for _step in range(10):
        code = getattr(callback, "__code__", None)
        if code is not None:
            return origin.is_cell(code.co_filename)
        callback = getattr(callback, "__func__", None) or getattr(callback, "func", None)
        if callback is None:
            return False
    return False
