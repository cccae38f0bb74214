"""Threads that outlive their cell: the user's must end, a library's may stay."""

from __future__ import annotations

import _queue
import _thread
import sys
from time import monotonic

from . import origin
from .gate import interrupts, outcome_of
from .shapes import library_class

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

#: Seconds of one wait for a thread. A pool thread that finishes its work goes idle and does not end, so its end cannot
#: be waited for; the stacks are looked at again after each slice.
SLICE = 0.005
#: Seconds for a cancelled timer's thread to end. It has nothing left to do.
JOIN = 0.2


def active() -> dict[int, Any]:
    """The objects of the threads that `threading` knows, by thread number."""
    found = library_class("threading", "_active")
    return dict(found) if type(found) is dict else {}


def _state(thread: Any) -> dict[str, Any]:
    """A thread's attributes, past the properties of a subclass: they are user code."""
    found: dict[str, Any] = object.__getattribute__(thread, "__dict__")
    return found


def _names() -> dict[int, str]:
    """Names by thread number, as far as they are known."""
    names = {number: _state(thread).get("_name") for number, thread in active().items()}
    return {number: name for number, name in names.items() if type(name) is str}


def _stacks(own: frozenset[int]) -> dict[int, bool]:
    """Thread number -> whether user code is on its stack, for every thread but `own`."""
    frames = sys._current_frames()
    return {number: origin.runs_cell_code(frame) for number, frame in frames.items() if number not in own}


def cancel_waiting() -> int:
    """Cancel a cell's calls that threads have not begun: timers and jobs of thread pools; their number."""
    if _thread._count() <= 1:
        return 0
    return _cancel_timers() + _cancel_jobs()


def _cancel_timers() -> int:
    kind, event, base = [library_class("threading", name) for name in ("Timer", "Event", "Thread")]
    if type(kind) is not type:
        return 0
    frames = sys._current_frames()
    cancelled = 0
    for number, thread in active().items():
        if not issubclass(type(thread), kind):
            continue
        state = _state(thread)
        finished: Any = state.get("finished")
        if type(finished) is not event or finished.is_set():
            continue
        if origin.is_cells_call(state.get("function"), state.get("args", ())):
            # One that has fired already, or runs code of the cell between firings, is a thread like any other.
            cancelled += not origin.runs_cell_code(frames.get(number))
            # What `cancel` does, and not the `cancel` and `join` of a subclass.
            finished.set()
            base.join(thread, JOIN)
    return cancelled


def _cancel_jobs() -> int:
    cancelled = 0
    for queue in {id(queue): queue for queue in _job_queues()}.values():
        for job in _all_of(queue):
            future = getattr(job, "future", None)
            if future is not None and origin.is_cells_call(*_call_of(job)):
                # The future tells its waiters, which may be user code. The pool drops what is cancelled.
                cancelled += outcome_of(future.cancel)[0] is True
            queue.put(job)
    return cancelled


def _all_of(queue: Any) -> list[Any]:
    jobs = []
    while True:
        try:
            jobs.append(queue.get_nowait())
        except _queue.Empty:
            return jobs


def _job_queues() -> list[Any]:
    """The queues of all thread pools of `concurrent.futures`."""
    pools = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", None)
    return list(pools.values()) if pools else []


def _call_of(job: Any) -> tuple[Any, Any]:
    """What a pool is to call: (function, positional arguments)."""
    task = getattr(job, "task", None)
    return (task[0], task[1]) if type(task) is tuple else (getattr(job, "fn", None), getattr(job, "args", ()))


def runs_job(frame: FrameType | None) -> bool:
    """Whether a thread pool's job is on the stack that ends in `frame`."""
    run = getattr(library_class("concurrent.futures.thread", "_WorkItem"), "run", None)
    code = getattr(run, "__code__", None)
    while frame is not None and code is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def settle(own: frozenset[int], grace: float) -> tuple[list[str], list[str]]:
    """Give user threads up to `grace` seconds to end: (names of those still running user code, names of the others).

    `own` are the numbers of the worker's main and reader thread. Ends at once when only they exist, or on an interrupt.
    """
    # One thread was started with `_thread`: our reader. Nothing to look at is the common case and must cost nothing.
    if _thread._count() <= 1:
        return [], []
    deadline = monotonic() + grace
    wait = _thread.allocate_lock()
    wait.acquire()
    stacks = _stacks(own)
    while any(stacks.values()) and not interrupts.pending and monotonic() < deadline:
        wait.acquire(timeout=SLICE)
        stacks = _stacks(own)
    names = _names()
    users = sorted(names.get(number, f"thread {number}") for number, user in stacks.items() if user)
    others = sorted(names.get(number, f"thread {number}") for number, user in stacks.items() if not user)
    return users, others


def join() -> None:
    """Wait for all threads that are not daemons, as the interpreter does at the end of a script. Through the gate."""
    threading = sys.modules.get("threading")
    if threading is None:
        return
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
