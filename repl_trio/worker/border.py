"""Where the cells' own trace functions, profile functions and signal handlers are in force: in user code only.

They run in the midst of whatever is being run, and many of them raise: a handler of SIGALRM that raises TimeoutError is
the usual way to bound a call. Raised in the worker's own code, that would end the worker.
"""

from __future__ import annotations

import _signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Signals that a program may handle for ends of its own. Neither those that the worker itself lives with, nor SIGTERM:
#: blocked, it would cost the end of a worker a second.
_SIGNALS = (
    _signal.SIGALRM,
    _signal.SIGCHLD,
    _signal.SIGHUP,
    _signal.SIGIO,
    _signal.SIGPROF,
    _signal.SIGQUIT,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
    _signal.SIGVTALRM,
)


class _Kept:
    """What waits for the next user code."""

    trace: Any = None
    profile: Any = None
    blocked: frozenset[int] = frozenset()


def close_signals() -> None:
    """Let no handler of a cell run from here on; the signals wait. Raises what one raises that ran just now."""
    handled = {number for number in _SIGNALS if callable(_signal.getsignal(number))}
    if handled:
        # What a cell has blocked itself is not ours to open again.
        handled -= _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        _Kept.blocked |= handled
        _signal.pthread_sigmask(_signal.SIG_BLOCK, handled)


def open_signals() -> None:
    """Let the cells' handlers run again. Raises what they raise."""
    if _Kept.blocked:
        blocked, _Kept.blocked = _Kept.blocked, frozenset()
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, blocked)


def enter() -> None:
    """User code begins: what earlier cells have set is in force again. Called, like `leave`, below the gate."""
    open_signals()
    trace, profile = _Kept.trace, _Kept.profile
    _Kept.trace = _Kept.profile = None
    if profile is not None:
        sys.setprofile(profile)
    if trace is not None:
        sys.settrace(trace)


def leave() -> None:
    """User code ends. May raise what a trace or profile function raises; the interpreter then drops that function."""
    try:
        trace, profile = sys.gettrace(), sys.getprofile()
        if trace is not None:
            sys.settrace(None)
            _Kept.trace = trace
        if profile is not None:
            sys.setprofile(None)
            _Kept.profile = profile
    finally:
        close_signals()
