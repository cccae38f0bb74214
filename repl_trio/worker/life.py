"""A worker's life: take the descriptors, say `ready`, run what comes, end in order."""

from __future__ import annotations

import os
import sys

from . import border, gate, isolation, origin, reserve, unawaited
from .generation import Generation
from .link import Link, interpreter
from .streams import Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..wire.frames import Frame


def serve(standard: list[str], users: list[str], finders: list[Any]) -> None:
    """Serve until `shutdown`, then return, so that the interpreter ends as it always does.

    `standard` is the standard library's part of `sys.path`, `users` the path that the user's code gets, `finders` what
    finds the worker's own modules and standard ones.
    """
    isolation.isolate(standard, finders)
    link = Link()
    link.arm_faulthandler()
    streams = Streams(link)
    reserve.keep(link.null)
    os.register_at_fork(before=streams.flush, after_in_child=link.close_in_child)
    link.start_reader()
    generation = Generation(link, streams)
    gate.install()
    sys.argv = [""]
    sys.path = ["", *users]
    # A module that is edited and reloaded within the same second must not meet its stale bytecode file.
    sys.dont_write_bytecode = True
    link.send(interpreter())
    _after_ready(streams)
    while True:
        frame = _next_frame(link)
        if frame["frame"] == "shutdown":
            break
        generation.run(frame)
    # Interrupts may end what hangs in clean-up code.
    gate.begin_run()
    gate.outcome_of(border.open_signals)
    generation.close()
    gate.outcome_of(_run_atexit)
    streams.flush()


def _next_frame(link: Link) -> Frame:
    """The next frame. What signal handlers of the user's have to say to signals that came meanwhile comes before it."""
    frame = link.requests.get()
    for error in border.deliver_late():
        gate.outcome_of(_show, error)
    return frame


def _show(error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None and origin.is_ours(trace.tb_frame):
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _after_ready(streams: Streams) -> None:
    """What the first cell needs and the server need not wait for."""
    streams.prepare()
    # Without the Python side of `warnings`, C shows warnings without their source line.
    unawaited.adopt(isolation.isolated_import("warnings"))
    import _warnings

    for call in ("fork", "forkpty"):
        # From 3.12 on forking beside any thread warns. The reader thread is no reason: it never holds a lock that a
        # child could miss.
        text = (
            f"This process (pid={os.getpid()}) is multi-threaded, use of {call}() may lead to deadlocks in the child."
        )
        _warnings.filters.insert(0, ("ignore", text, DeprecationWarning, None, 0))


def _run_atexit() -> None:
    # The interpreter would run these a moment later; here an interrupt can end one that hangs.
    import atexit

    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
