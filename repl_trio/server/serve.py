"""`repl-trio serve`: the opening exchange, then the runtime."""

from __future__ import annotations

import os

from ..process.stdio import claim
from ..wire.framing import LineDecoder
from ..wire.mcp import Connection
from .arguments import BadArguments, check
from .opening import Link, exchange
from .tools import implementation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..process.launch import Root
    from ..process.start import WorkerStart
    from ..settings import Settings
    from ..wire.mcp import Call


def serve(settings: Settings) -> int:
    """Serve one client on stdin and stdout until it leaves or a signal comes. Returns the exit status."""
    _exit_on_signals()
    pipes = claim()
    server = implementation(settings.limits)
    connection = Connection(server, settings.limits.request_bytes)
    decoder = LineDecoder(settings.limits.request_bytes)
    handover = exchange(pipes, connection, decoder, settings.limits)
    if handover is None:
        pipes.release()
        return 0
    # The worker boots on the other core while this one imports trio.
    from ..process.launch import Root  # brings `socket`, which the opening exchange does without

    root = Root()
    start = _head_start(root, settings, handover.call, server.tools) if handover.call is not None else None
    status = _run_runtime(settings, Link(pipes, connection, decoder, handover), root, start)
    pipes.release()
    return status


def _exit_on_signals() -> None:
    """Until the runtime receives signals: nothing is held that would need an orderly end (a worker that was started
    ahead goes with its lifeline). Also undoes a SIGINT that a shell's `&` left ignored."""
    import _signal  # type: ignore[import-not-found,unused-ignore]  # no stub; `signal` costs 5 ms for its enums

    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(number, lambda _number, _frame: os._exit(0))


def _head_start(root: Root, settings: Settings, call: Call, tools: list[dict[str, object]]) -> WorkerStart | None:
    """Start the default session's worker before the runtime is there, if this call will surely need it."""
    given = call.arguments
    if call.tool not in ("execute_python", "python_start") or call.modern:
        return None
    if given.get("session_id") is not None or given.get("expected_generation") not in (None, 0):
        return None
    tool = next(tool for tool in tools if tool["name"] == call.tool)
    from ..errors import ReplError
    from ..process.start import start_worker
    from ..session.interpreter import choose

    try:
        check(tool, given)
        interpreter = choose(settings.python, settings.project, settings.environment)
        return start_worker(root, interpreter.path, settings.project, settings.environment, settings.limits)
    except (BadArguments, ReplError, OSError):
        return None  # the runtime meets the same fault and reports it


def _run_runtime(settings: Settings, link: Link, root: Root, start: WorkerStart | None) -> int:
    """Import trio and what stands on it, and run. The collector is off meanwhile: it would scan half-built modules over
    and over. What was imported is then left out of later collections."""
    import gc

    gc.disable()
    from .app import run

    gc.enable()
    gc.freeze()
    return run(settings, link, root, start)
