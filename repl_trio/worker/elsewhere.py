"""Tasks of cells on loops that other threads run: a loop of `run_forever` that a cell or a library has started.

Called by `loop` only, so asyncio is there.
"""

from __future__ import annotations

import _thread
import sys
from time import monotonic

from .coroutines import runs_cell_code
from .gate import interrupts, outcome_of
from .threads import SLICE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any


def cancel_elsewhere(grace: float) -> list[Any]:
    """Cancel the tasks that run a cell's code on loops of other threads, and give them up to `grace` seconds to end."""
    if _thread._count() <= 1:
        return []
    found: list[Any] = []
    for loop in _loops_elsewhere():
        _catch_up(loop, grace)
        for task in sys.modules["asyncio"].all_tasks(loop):
            if runs_cell_code(task.get_coro()):
                # The loop may have been closed just now; then nothing runs on it.
                outcome_of(loop.call_soon_threadsafe, task.cancel)
                found.append(task)
    deadline = monotonic() + grace
    wait = _thread.allocate_lock()
    wait.acquire()
    while not all(task.done() for task in found) and monotonic() < deadline and not interrupts.pending:
        wait.acquire(timeout=SLICE)
    return found


def _catch_up(loop: Any, grace: float) -> None:
    """Wait until the loop has done what it was told from outside so far: a task may be in that, yet to be made."""
    done = _thread.allocate_lock()
    done.acquire()
    _handle, error = outcome_of(loop.call_soon_threadsafe, done.release)
    if error is None:
        done.acquire(timeout=grace)


def _loops_elsewhere() -> list[Any]:
    found = []
    run_forever = sys.modules["asyncio.base_events"].BaseEventLoop.run_forever.__code__
    own = _thread.get_ident()
    for number, top in sys._current_frames().items():
        frame: FrameType | None = top if number != own else None
        while frame is not None:
            if frame.f_code is run_forever:
                found.append(frame.f_locals["self"])
            frame = frame.f_back
    return found
