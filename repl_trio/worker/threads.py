"""Threads that outlive their cell: the user's must end, a library's may stay."""

from __future__ import annotations

import _thread
import sys
import time

from . import origin
from .gate import interrupts

#: Seconds of one wait for a thread. A pool thread that finishes its work goes idle and does not end, so its end cannot
#: be waited for; the stacks are looked at again after each slice.
SLICE = 0.005


def _names() -> dict[int, str]:
    """Names by thread number, as far as `threading` knows the threads."""
    threading = sys.modules.get("threading")
    active = getattr(threading, "_active", None)
    return {number: thread.name for number, thread in list(active.items())} if active else {}


def _stacks(own: frozenset[int]) -> dict[int, bool]:
    """Thread number -> whether user code is on its stack, for every thread but `own`."""
    frames = sys._current_frames()
    return {number: origin.runs_cell_code(frame) for number, frame in frames.items() if number not in own}


def settle(own: frozenset[int], grace: float) -> tuple[list[str], list[str]]:
    """Give user threads up to `grace` seconds to end: (names of those still running user code, names of the others).

    `own` are the numbers of the worker's main and reader thread. Ends at once when only they exist, or on an interrupt.
    """
    # One thread was started with `_thread`: our reader. Nothing to look at is the common case and must cost nothing.
    if _thread._count() <= 1:
        return [], []
    deadline = time.monotonic() + grace
    wait = _thread.allocate_lock()
    wait.acquire()
    stacks = _stacks(own)
    while any(stacks.values()) and not interrupts.pending and time.monotonic() < deadline:
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
