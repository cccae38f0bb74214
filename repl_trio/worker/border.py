"""Where the cells' own trace functions, profile functions and signal handlers are in force: in user code only.

They run in the midst of whatever is being run, and many of them raise: a handler of SIGALRM that raises TimeoutError is
the usual way to bound a call. Raised in the worker's own code, that would end the worker.

Signals are blocked from the end of one cell to the beginning of the next, unless nobody has a handler: whoever sets one
imports `signal`. The call that blocks them must be written out where user code ends: a function for it would run a
handler at its first step, and leave the signals open.

    try:
        border.enter()
        ...
    finally:
        try:
            if "signal" in sys.modules:
                border.kept.seen = _signal.pthread_sigmask(_signal.SIG_BLOCK, border.SIGNALS)
        finally:
            border.leave()
"""

from __future__ import annotations

import _signal
import sys

from .gate import outcome_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Signals that a program handles for ends of its own. Neither those that the worker lives with nor those that end it.
SIGNALS = frozenset((_signal.SIGALRM, _signal.SIGCHLD, _signal.SIGPROF, _signal.SIGUSR2, _signal.SIGVTALRM))


class _Kept:
    """What waits for the next user code."""

    def __init__(self) -> None:
        self.trace: Any = None
        self.profile: Any = None
        #: What was blocked when user code ended, as the call says that blocks the rest.
        self.seen: set[int] = set()
        #: The same, while they are closed. What the user has blocked stays so.
        self.mask: set[int] = set()
        self.closed = False
        #: Whether user code runs behind the border.
        self.inside = False


kept = _Kept()


def enter() -> None:
    """User code begins: what earlier cells have set is in force again. Raises what a signal handler raises."""
    kept.inside = True
    open_signals()
    trace, profile = kept.trace, kept.profile
    kept.trace = kept.profile = None
    if profile is not None:
        sys.setprofile(profile)
    if trace is not None:
        sys.settrace(trace)


def leave() -> None:
    """User code ends. Raises what a trace or profile function raises; the interpreter then drops that function."""
    kept.inside = False
    if not kept.closed and "signal" in sys.modules:
        kept.closed, kept.mask = True, kept.seen
    trace, profile = sys.gettrace(), sys.getprofile()
    if trace is not None:
        sys.settrace(None)
        kept.trace = trace
    if profile is not None:
        sys.setprofile(None)
        kept.profile = profile


def within(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call user code of the worker's own asking, a `repr`, behind the border. Main thread, below the gate."""
    if kept.inside:
        return call(*arguments)
    try:
        enter()
        return call(*arguments)
    finally:
        try:
            if "signal" in sys.modules:
                kept.seen = _signal.pthread_sigmask(_signal.SIG_BLOCK, SIGNALS)
        finally:
            leave()


def open_signals() -> None:
    """Let handlers run. Raises what they raise."""
    if kept.closed:
        kept.closed = False
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, SIGNALS - kept.mask)


def deliver_late() -> list[BaseException]:
    """Run the cells' handlers of signals that came after the last cell; what they raised is no later cell's trouble."""
    if not kept.closed:
        return []
    # asyncio's handlers do nothing; it hears of a signal when that is delivered in the usual way.
    handlers = {number: handler for number in SIGNALS - kept.mask if _is_users(handler := _signal.getsignal(number))}
    raised = []
    while handlers and (told := _signal.sigtimedwait(handlers, 0)) is not None:
        number = told.si_signo
        _none, error = outcome_of(handlers.pop(number), number, None)
        if error is not None:
            raised.append(error)
    return raised


def _is_users(handler: Any) -> bool:
    return callable(handler) and getattr(handler, "__name__", "") != "_sighandler_noop"
