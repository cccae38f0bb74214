"""A worker's life: take the descriptors, say `ready`, run what comes, end in order."""

from __future__ import annotations

import os
import sys

from . import gate, isolation
from .generation import Generation
from .link import Link, interpreter
from .streams import Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..wire.frames import Frame


def serve(standard: list[str], users: list[str]) -> None:
    """Serve until `shutdown`, then return, so that the interpreter ends as it always does.

    `standard` is the standard library's part of `sys.path`, `users` the path that the user's code gets.
    """
    isolation.isolate(standard)
    link = Link()
    link.arm_faulthandler()
    streams = Streams(link)
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
    generation.close()
    gate.outcome_of(_run_atexit)
    streams.flush()


def _next_frame(link: Link) -> Frame:
    """The next frame. A signal handler of the user's may raise meanwhile: that is shown, and no reason to end."""
    while True:
        try:
            return link.requests.get()
        except BaseException as error:  # noqa: BLE001 - whatever a user's signal handler raises between two cells
            sys.excepthook(type(error), error, error.__traceback__)


def _after_ready(streams: Streams) -> None:
    """What the first cell needs and the server need not wait for."""
    streams.prepare()
    # Without the Python side of `warnings`, C shows warnings without their source line.
    isolation.isolated_import("warnings")
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
