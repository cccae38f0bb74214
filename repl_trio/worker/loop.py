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
import contextlib
import os
import sys
from asyncio import base_events, events, tasks

from . import border, origin, reserve
from .coroutines import code_of, ends_by_itself, runs_cell_code
from .elsewhere import cancel_elsewhere
from .gate import outcome_of
from .isolation import is_standard
from .source import await_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from contextvars import Context
    from types import FrameType
    from typing import Any

    from .source import Program

_ASYNCIO = os.path.dirname(asyncio.__file__) + "/"
_RUN_HANDLE = events.Handle._run.__code__
#: `asyncio.run` of 3.11 and newer; its frame's `self` turns the CancelledError of an interrupt into KeyboardInterrupt.
_RUNNER_RUN = getattr(getattr(getattr(asyncio, "Runner", None), "run", None), "__code__", None)
_LOOP_FOR = getattr(base_events, "_run_until_complete_cb", None)


def _nothing() -> None:
    """Wakes a sleeping selector."""


class CellLoop:
    """Owner of the loop that all cells with a top-level `await` share."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._strikes = 0
        self._elsewhere: list[asyncio.Task[Any]] = []  # the last run's tasks on loops of other threads

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; a new one on first use, or when a cell has closed the old one. OSError without descriptors."""
        if self._loop is None:
            # What a cell without `await` made on its current loop shall be of use in one with it.
            self._loop = _current_loop()
        if self._loop is None or self._loop.is_closed():
            self._loop = reserve.spend(events.new_event_loop)
            events.set_event_loop(self._loop)
        return self._loop

    def run(
        self, program: Program, namespace: dict[str, object], context: Context
    ) -> tuple[Any, BaseException | None, Context]:
        """Run a cell in a task: (its value, the exception that left it, the context for the next cell)."""
        end = _End(context)
        _value, error = self._drive(end.carry(program, namespace), context)
        return (*end.take(), end.context) if end.ended else (None, error, end.context)

    def _drive(self, work: Coroutine[Any, Any, None], context: Context) -> tuple[Any, BaseException | None]:
        loop = self.loop()
        _attach_watcher(loop)
        # A cell may have stopped the loop while it did not run.
        if getattr(loop, "_stopping", False):
            loop._stopping = False  # type: ignore[attr-defined]
        # A cell may have made another loop current. Code below `await` expects the running one, which asyncio sees to.
        self._task = context.run(_task, loop, work, context)
        # A signal that comes between the interpreter's last look at signals and the selector's system call would sleep
        # with it: 1 of 150 interrupts was lost that way. The byte that C writes here wakes the selector.
        alarm = getattr(loop, "_csock", None)
        before = _signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False) if alarm is not None else -1
        try:
            return outcome_of(loop.run_until_complete, self._task)
        finally:
            # A loop with signal handlers of the cells' own hears of signals by that byte, between cells as well.
            if alarm is not None and not getattr(loop, "_signal_handlers", None):
                _signal.set_wakeup_fd(before)
            # Once more, for a task that was torn together with its loop. What is raised here has no cell any more.
            with contextlib.suppress(BaseException):
                _signal.pthread_sigmask(_signal.SIG_BLOCK, border.SIGNALS)
                border.leave()
            if not self._task.done():
                self._task.cancel()
            self._task = None
            _forget_stops(loop)

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
        current = _current_loop()
        if current is None and (self._loop is not None or getattr(_policy_local(), "_set_called", False)):
            events.set_event_loop(self.loop())

    def retire(self, grace: float, rounds: int) -> int:
        """End what still runs user code on the loop; the number of tasks, timers and callbacks that were cancelled.

        Tasks get `rounds` rounds of cancellation, each waiting up to `grace` seconds.
        """
        self._elsewhere = cancel_elsewhere(grace)
        cancelled = len(self._elsewhere)
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            return cancelled
        cancelled += self._cancel_callbacks(loop)
        if any(not handle.cancelled() for handle in _handles(loop, "_ready")):
            # An asynchronous generator that was let go of: its closing is about to become a task.
            self._turn(loop, asyncio.sleep(0))
        counted: set[Any] = set()
        for _round in range(rounds):
            left = self._user_tasks(loop)
            if not left:
                break
            ending = {task for task in left if ends_by_itself(task.get_coro()) or _carries(task)}
            counted |= left - ending
            for task in left - ending:
                task.cancel()
            self._settle(loop, left, grace)
        return cancelled + self._cancel_callbacks(loop) + len(counted)

    def left(self) -> tuple[list[str], bool]:
        """(names of the tasks that stay, whether one of them still runs user code)."""
        stubborn = {task for task in self._elsewhere if not task.done()}
        stays = set(stubborn)
        if self._loop is not None and not self._loop.is_closed():
            stays |= asyncio.all_tasks(self._loop)
            stubborn |= self._user_tasks(self._loop)
        return sorted(map(_name_of, stays)), bool(stubborn)

    def close(self, grace: float) -> None:
        """Orderly end: cancel all tasks so that their `finally` runs, then close the loop."""
        loop = self._loop
        if loop is None or loop.is_closed() or loop.is_running():
            return
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            self._settle(loop, left, grace)
        self._turn(loop, loop.shutdown_asyncgens())
        loop.close()

    def _turn(self, loop: Any, work: Coroutine[Any, Any, Any]) -> None:
        """Run the loop for work of ours."""

        def quiet(loop: Any, told: dict[str, Any]) -> None:
            # What we cancel on purpose is no news; asyncio's streams report it on some versions.
            if type(told.get("exception")) is asyncio.CancelledError:
                return
            if before is None:
                loop.default_exception_handler(told)
            else:
                before(loop, told)

        before = _reporter(loop, quiet)
        try:
            outcome_of(loop.run_until_complete, _task(loop, work))
        finally:
            _reporter(loop, before)
            _forget_stops(loop)

    def _settle(self, loop: asyncio.AbstractEventLoop, left: set[Any], grace: float) -> None:
        """Run the loop until these tasks have ended or the grace is over."""
        self._turn(loop, asyncio.wait(left, timeout=grace))
        for task in left:
            # Without this the loop would report "exception was never retrieved" for what we ended on purpose.
            if task.done() and not task.cancelled():
                task.exception()

    def _user_tasks(self, loop: asyncio.AbstractEventLoop) -> set[Any]:
        return {task for task in asyncio.all_tasks(loop) if runs_cell_code(task.get_coro())}

    def _cancel_callbacks(self, loop: Any) -> int:
        cancelled = 0
        for handle in (*_handles(loop, "_scheduled"), *_handles(loop, "_ready")):
            if not handle.cancelled() and origin.is_cells_call(handle._callback, handle._args):
                # In debug mode it looks at the arguments' reprs.
                outcome_of(handle.cancel)
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

    def take(self) -> tuple[Any, BaseException | None]:
        """(the value, the exception), each given out once.

        A traceback holds the frame that holds this object: a circle would keep all that the cell's frames hold alive.
        """
        value, error, self.value, self.error = self.value, self.error, None, None
        return value, error

    async def carry(self, program: Program, namespace: dict[str, object]) -> None:
        try:
            try:
                border.enter()
                self.value = await await_program(program, namespace)
            finally:
                try:
                    if "signal" in sys.modules:
                        border.kept.seen = _signal.pthread_sigmask(_signal.SIG_BLOCK, border.SIGNALS)
                finally:
                    border.leave()
        except BaseException as error:  # noqa: BLE001 - whatever leaves the cell is its outcome
            self.error = error
        self.ended = True
        if sys.version_info < (3, 11):
            # A task of Python 3.10 runs in a copy of the context it is given.
            self.context = _contextvars.copy_context()


_CARRY = _End.carry.__code__


def _carries(task: asyncio.Task[Any]) -> bool:
    """Whether this is a cell's own task. One that is left was cancelled already, when the loop was torn."""
    return code_of(task.get_coro()) is _CARRY


def _task(loop: Any, work: Coroutine[Any, Any, Any], context: Context | None = None) -> asyncio.Task[Any]:
    """A task of ours. Not by `loop.create_task`: a cell may have given the loop a task factory that does other things.

    Call it within `context`: a task of Python 3.10 runs in a copy of the current one.
    """
    if context is not None and sys.version_info >= (3, 11):
        return tasks.Task(work, loop=loop, context=context)
    return tasks.Task(work, loop=loop)


def _policy_local() -> Any:
    """Where the event loop policy keeps what each thread's current loop is."""
    return getattr(getattr(events, "_event_loop_policy", None), "_local", None)


def _current_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that `asyncio.get_event_loop()` gives, without making one; None when there is none or it is closed."""
    current = getattr(_policy_local(), "_loop", None)
    return None if current is None or current.is_closed() else current


def _attach_watcher(loop: Any) -> None:
    """Let a child watcher that a cell has chosen (before Python 3.12) work for this loop.

    asyncio attaches it to a loop that is made current later, and ours was made current before.
    """
    watcher = getattr(getattr(events, "_event_loop_policy", None), "_watcher", None)
    if watcher is not None and getattr(watcher, "_loop", watcher) is None:
        outcome_of(watcher.attach_loop, loop)


def _own_of(loop: Any) -> dict[str, Any]:
    """The attributes of one of asyncio's own loops, past what a cell has put in front of them; else none."""
    found: dict[str, Any] = {}
    if issubclass(type(loop), base_events.BaseEventLoop):
        found = object.__getattribute__(loop, "__dict__")
    return found


def _handles(loop: Any, name: str) -> list[Any]:
    """The calls that wait in the loop, under `_ready` or `_scheduled`."""
    return [handle for handle in list(_own_of(loop).get(name, ())) if issubclass(type(handle), events.Handle)]


def _reporter(loop: Any, report: Any) -> Any:
    """Let the loop report what fails in its callbacks to `report`: whom it told before, None for itself."""
    own = _own_of(loop)
    if "_exception_handler" in own:
        before, own["_exception_handler"] = own["_exception_handler"], report
        return before
    # A loop in C or of somebody else's.
    before = outcome_of(loop.get_exception_handler)[0]
    outcome_of(loop.set_exception_handler, report)
    return before


def _name_of(task: Any) -> str:
    """A task's name, past the methods of a subclass."""
    name, _error = outcome_of(tasks.Task.get_name, task)
    return name if type(name) is str else "task"


def _forget_stops(loop: Any) -> None:
    """Drop a stop of the loop that came too late: it would stop the next run."""
    for handle in _handles(loop, "_ready"):
        if handle._callback is _LOOP_FOR:
            handle.cancel()


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


def _of_asyncio(frame: FrameType | None) -> bool:
    """Whether asyncio is at work at this frame, by itself or through another standard module.

    In debug mode it formats a stack at each turn: CancelledError raised in there would lose the task's next step.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        # This module's frames count as well: those of the coroutine that carries the cell.
        if name.startswith(_ASYNCIO) or frame.f_globals is globals():
            return True
        if not (is_standard(name) or name.startswith("<frozen ")):
            return False
        frame = frame.f_back
    return False
