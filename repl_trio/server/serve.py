"""`repl-trio serve`: the opening exchange, then the runtime."""

from __future__ import annotations

from ..process.stdio import claim, fill_holes
from ..wire.framing import LineDecoder
from ..wire.mcp import Connection
from .arguments import BadArguments, check
from .ending import Ending
from .opening import Link, exchange
from .tools import implementation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..process.launch import Root
    from ..process.start import WorkerStart
    from ..settings import Settings
    from ..wire.mcp import Call


def serve(settings: Settings) -> int:
    """Serve one client on stdin and stdout until it leaves or a signal comes. Returns the exit status.

    Every end is told in one line on stderr (`ending.Ending`), an end by a bug of ours as well.
    """
    fill_holes()  # first of all: a descriptor of ours must not become a closed stderr's
    ending = Ending(settings.limits.shutdown_bound)
    ending.receive_signals()
    with ending:
        _serve(settings, ending)
    line = ending.say()
    if settings.log_file is not None:
        import logging

        logging.getLogger("repl_trio.server").info("%s", line)
    return ending.status


def _serve(settings: Settings, ending: Ending) -> None:
    pipes = claim()
    try:
        server = implementation(settings.limits)
        connection = Connection(server, settings.limits.request_bytes)
        decoder = LineDecoder(settings.limits.request_bytes)
        handover = exchange(pipes, connection, decoder, settings.limits, ending.wake)
        if isinstance(handover, str):
            ending.begin(handover)
            return
        # The worker boots on the other core while this one imports trio.
        from ..process.launch import Root  # brings `socket`, which the opening exchange does without

        root = Root()
        call = handover.call if not ending.begun else None
        start = _head_start(root, settings, call, server.tools) if call is not None else None
        _run_runtime(settings, Link(pipes, connection, decoder, handover), root, start, ending)
    finally:
        pipes.release()


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


def _run_runtime(settings: Settings, link: Link, root: Root, start: WorkerStart | None, ending: Ending) -> None:
    """Import trio and what stands on it, and run. The collector is off meanwhile: it would scan half-built modules over
    and over. What was imported is then left out of later collections. A signal that comes meanwhile ends the runtime
    when it is there: what the client has asked is then answered."""
    import gc

    gc.disable()
    try:
        from .app import run
    except ImportError as error:
        ending.give_up(f"the installation is broken ({error})")
        return
    gc.enable()
    gc.freeze()
    run(settings, link, root, start, ending)
