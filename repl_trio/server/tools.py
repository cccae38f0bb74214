"""What `tools/list` says: names, descriptions, schemas and annotations of the tools, and the server's instructions.

Data only, and cheap: the opening exchange answers `tools/list` before anything heavy may be imported. Clients cut a
description at 2 KB and show its beginning first, so each leads with what matters.
"""

from __future__ import annotations

from .. import __version__
from ..limits import Limits
from ..wire.mcp import Implementation, Tool
from . import schemas
from .schemas import Schema, choice, flag, number, shape, text, whole

INSTRUCTIONS = """\
A persistent Python REPL. Variables, imports, an asyncio loop and open resources live across calls of one session. \
Code runs with the user's own rights on this machine: trusted local execution, crash isolation, no sandbox.

execute_python runs a cell and waits for it. For work longer than your client's own limit use python_start (or the \
`wait` argument) and then python_run; python_cancel interrupts a run. An interrupted cell keeps the namespace; every \
result says in `state` whether the namespace was preserved or cleared, and in `state_reset` whether it was new.

One run at a time per session; sessions run in parallel. python_health tells what is going on, always at once. In \
cells: top-level await works, `sh("command")` and `await ash("command")` run shell commands, `display(object)` shows \
images, `checkpoint(path)` and `restore(path)` keep plain values across a reset, `repl_namespace()`, `repl_history()` \
and `repl_source()` show what there is; `help(name)` tells more. There is no stdin. What is too long for a result is \
kept for a while as an artifact: artifact_list, artifact_read.\
"""

_ID = 100  # bytes of an id or a cursor: ours are shorter
_PATH = 4_096  # bytes: no kernel opens a longer one
_MIB = 999_999_999  # mebibytes: as many digits as the command line takes

_HINTS = {
    "reads": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
    "runs": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
    "ends": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
    "adds": {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
}


def implementation(limits: Limits) -> Implementation:
    """This server as a client sees it."""
    return Implementation("repl-trio", __version__, INSTRUCTIONS, tools(limits), tools(limits, modern=True))


def tools(limits: Limits, *, modern: bool = False) -> list[Tool]:
    """All tools, in the order of `tools/list`. In the `modern` era a run names its session."""
    session = _named_session() if modern else _session()
    required = ["code", "session_id"] if modern else ["code"]
    return [
        _execute(limits, session, required),
        _start(limits, session, required),
        _run(limits),
        _cancel(),
        _health(),
        _open(limits),
        _list(),
        _inspect(),
        _close(),
        _artifact_list(),
        _artifact_read(limits),
    ]


def _tool(name: str, description: str, arguments: Schema, result: Schema, hints: str) -> Tool:
    return {
        "name": name,
        "description": description,
        "inputSchema": arguments,
        "outputSchema": result,
        "annotations": _HINTS[hints],
    }


def _session() -> dict[str, Schema]:
    return {"session_id": text("Which session; without it the default one. Take it from python_health.", _ID)}


def _named_session() -> dict[str, Schema]:
    return {"session_id": text("Which session. Take it from python_health.", _ID)}


def _cell(limits: Limits) -> dict[str, Schema]:
    bounds = f"{limits.timeout_min:g}-{limits.timeout_max:g}, default {limits.timeout_default:g}"
    return {
        "code": text(f"Python source, at most {limits.code_bytes} bytes. Empty is fine.", limits.code_bytes),
        "reset": flag("Start a new worker first: empty namespace, directory and environment as at the start."),
        "timeout": number(f"Seconds the cell may run ({bounds}).", limits.timeout_min, limits.timeout_max),
        "expected_generation": whole(
            "Run only if the session is in this generation (0: never started); otherwise STATE_CHANGED.", 0
        ),
    }


def _execute(limits: Limits, session: dict[str, Schema], required: list[str]) -> Tool:
    wait = number(
        "Return after this many seconds even if the cell still runs; it goes on and python_run reads it.",
        0,
        limits.timeout_max,
    )
    return _tool(
        "execute_python",
        "Run Python in a persistent session and wait for the result. Names, imports, the asyncio loop and open "
        "resources stay for the next call; top-level await works; the value of a trailing expression is returned. A "
        "cell over its `timeout` is interrupted, and the namespace kept if the code lets go. Trusted local execution "
        "with the user's rights, no sandbox. The result's `state` says whether the namespace was preserved or cleared. "
        "Long output is cut in the middle; python_run reads the rest, and artifact_read the whole of it, of a "
        "shortened value or of an image too large to show. display(object) and open figures show images. Helpers in "
        "cells: sh(command), await ash(command), checkpoint(path), restore(path), repl_namespace(), repl_history(), "
        "repl_source(run_id). input() and stdin are not available.",
        schemas.object_schema(_cell(limits) | {"wait": wait} | session, required),
        schemas.result(),
        "runs",
    )


def _start(limits: Limits, session: dict[str, Schema], required: list[str]) -> Tool:
    return _tool(
        "python_start",
        "Start a cell and return at once with its run_id; the server owns the run. For work longer than your client "
        "waits; give its `timeout`, too. Poll with python_run, stop with python_cancel. One run at a time per session.",
        schemas.object_schema(_cell(limits) | session, required),
        schemas.result(),
        "runs",
    )


def _run(limits: Limits) -> Tool:
    arguments = {
        "run_id": text("Which run; without it the latest of the session.", _ID),
        "after": text("Cursor from `next` of an earlier reply; without it from the start.", _ID),
        "wait": number(
            f"Wait until the run ends, at most this many seconds (0-{limits.wait_max:g}).", 0, limits.wait_max
        ),
    }
    return _tool(
        "python_run",
        "Look at a run. While it is active: status, elapsed time and output since the cursor `after` (take it from "
        "`next` of the reply before), waiting up to `wait` seconds for its end. Finished: the execution result; with "
        "`after`, the kept output from there on, which is how to page through long output.",
        schemas.object_schema(arguments | _session()),
        schemas.result(),
        "reads",
    )


def _cancel() -> Tool:
    fields = {"cancel_requested": "flag", "run_id": "text", "session_id": "text", "status": "text"}
    return _tool(
        "python_cancel",
        "Interrupt a run: the cell gets a KeyboardInterrupt and the namespace is kept if the code lets go within about "
        "two seconds, otherwise its worker is killed. Returns at once; python_run tells how it ended.",
        schemas.object_schema(
            {"run_id": text("Which run; without it the active one of the session.", _ID)} | _session()
        ),
        shape(schemas.FAILURE | fields),
        "ends",
    )


def _health() -> Tool:
    return _tool(
        "python_health",
        "What is going on, in milliseconds, whatever cells do: server, sessions with their ids, generations and active "
        "runs, limits, containment. Never starts Python.",
        schemas.object_schema({"detail": flag("Show what is stuck: waits, open requests, tasks.")}),
        schemas.health(),
        "reads",
    )


def _open(limits: Limits) -> Tool:
    arguments = {
        "name": text("A label.", limits.session_name_bytes),
        "project": text("Project directory, the cells' working directory; without it the server's.", _PATH),
        "python": text("Interpreter, CPython 3.10 or newer; without it chosen from the project.", _PATH),
        "max_memory_mib": whole(
            "Resident memory of its worker in MiB, 0 for no bound; without it the server's.", 0, _MIB
        ),
    }
    return _tool(
        "python_session_open",
        "Open another session: a namespace of its own with its own worker, project directory and interpreter. Sessions "
        "run in parallel. The interpreter is probed; without one the project's .venv is used if it has one.",
        schemas.object_schema(arguments),
        shape(schemas.SESSION | schemas.FAILURE),
        "adds",
    )


def _list() -> Tool:
    return _tool(
        "python_session_list",
        "The open sessions, with ids, projects, interpreters and states. Starts nothing.",
        schemas.object_schema({}),
        shape(schemas.FAILURE, ("sessions", schemas.array(shape(schemas.SESSION)))),
        "reads",
    )


def _inspect() -> Tool:
    return _tool(
        "python_session_inspect",
        "One session: state, retained runs and, with include_namespace, the names and types in its namespace, read "
        "without running user code.",
        schemas.object_schema(_session() | {"include_namespace": flag("List names and types, too.")}),
        shape(
            schemas.SESSION | schemas.FAILURE | {"namespace_total": "whole"},
            ("runs", schemas.array(shape(schemas.SUMMARY))),
            ("namespace", schemas.array(shape({"name": "text", "type": "text"}))),
        ),
        "reads",
    )


def _close() -> Tool:
    return _tool(
        "python_session_close",
        "Close a session: its run is cancelled, its worker and everything the worker started end, its namespace is "
        "gone. Closing the default session leaves a new, empty default one.",
        schemas.object_schema(
            {"session_id": text("Which session: nothing is closed by default.", _ID)}, ["session_id"]
        ),
        shape(schemas.FAILURE | {"closed": "flag", "session_id": "text"}),
        "ends",
    )


def _artifact_list() -> Tool:
    entry = schemas.ARTIFACT | {"sha256": "text", "created": "text", "run_id": "text"}
    return _tool(
        "artifact_list",
        "What a session keeps outside the conversation, oldest first: whole outputs and values, images. The oldest go "
        "when room is needed, all when the session closes.",
        schemas.object_schema(_session()),
        shape(
            schemas.FAILURE | {"session_id": "text", "artifacts_total": "whole", "bytes": "whole"},
            ("artifacts", schemas.array(shape(entry))),
        ),
        "reads",
    )


def _artifact_read(limits: Limits) -> Tool:
    arguments = {
        "artifact_id": text("Which artifact; take it from a result or from artifact_list.", _ID),
        "offset": whole("Byte to begin with, default 0.", 0),
        "length": whole(f"Bytes at most, default {limits.artifact_read}.", 1, limits.artifact_read),
        "encoding": choice("Default: text for text, JSON and SVG, else base64.", ("text", "base64")),
    }
    fields = {"artifact_id": "text", "media_type": "text", "encoding": "text", "data": "text"}
    numbers = {"offset": "whole", "length": "whole", "size": "whole", "next": "whole or null"}
    return _tool(
        "artifact_read",
        "Read a part of an artifact: the whole of long output or of a shortened value, or an image. `next` is the "
        "offset to go on from, null at the end. An image without offset, length and encoding is shown as an image.",
        schemas.object_schema(arguments | _session(), ["artifact_id"]),
        shape(schemas.FAILURE | fields | numbers),
        "reads",
    )
