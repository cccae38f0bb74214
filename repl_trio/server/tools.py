"""What `tools/list` says: names, descriptions, schemas and annotations of the tools, and the server's instructions.

Data only, and cheap: the opening exchange answers `tools/list` before anything heavy may be imported. Schemas are plain
(object-typed, no `$ref`, no top-level combinators, no empty or boolean sub-schemas) because some clients drop every tool
of a server over one schema they do not understand.
"""

from __future__ import annotations

from .. import __version__
from ..limits import Limits
from ..wire.mcp import Implementation, Tool

Schema = dict[str, object]

INSTRUCTIONS = """\
A persistent Python REPL. Variables, imports, an asyncio loop and open resources live across calls of one session. \
Code runs with the user's own rights on this machine: trusted local execution, crash isolation, no sandbox.

execute_python runs a cell and waits for it. For work longer than your client's own limit use python_start (or the `wait` \
argument) and then python_run; python_cancel interrupts a run. An interrupted cell keeps the namespace; every result says \
in `state` whether the namespace was preserved or cleared, and in `state_reset` whether it was new.

One run at a time per session; sessions run in parallel. python_health tells what is going on, always at once. In cells: \
top-level await works, `sh("command")` runs a shell command, `repl_history()` and `repl_source()` show earlier cells. \
There is no stdin.\
"""

_HINTS = {
    "reads": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False},
    "runs": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
    "ends": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
    "adds": {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
}


def implementation(limits: Limits) -> Implementation:
    """This server as a client sees it."""
    return Implementation("repl-trio", __version__, INSTRUCTIONS, tools(limits))


def tools(limits: Limits) -> list[Tool]:
    """All tools, in the order of `tools/list`."""
    session = {"session_id": _text("Which session; without it the default one. Take it from python_health.")}
    run = {"run_id": _text("Which run; without it the latest of the session.")}
    cell = _cell(limits) | session
    return [
        _tool(
            "execute_python",
            "Run Python in a persistent session and wait for the result. Names, imports, the asyncio loop and open "
            "resources stay for the next call; top-level await works; the value of a trailing expression is returned. A "
            "cell over its `timeout` is interrupted and the namespace kept if the code lets go. Trusted local execution "
            "with the user's rights, no sandbox. The result's `state` says whether the namespace was preserved or "
            "cleared. Output is cut in the middle when long; python_run reads the rest. Helpers in cells: "
            "sh(command), repl_history(), repl_source(run_id). input() and stdin are not available.",
            cell,
            required=["code"],
            output=_result(),
            hints="runs",
        ),
        _tool(
            "python_start",
            "Start a cell and return at once with its run_id; the server owns the run. For work longer than your client "
            "waits. Poll with python_run, stop with python_cancel. One run at a time per session.",
            {name: schema for name, schema in cell.items() if name != "wait"},
            required=["code"],
            output=_result(),
            hints="runs",
        ),
        _tool(
            "python_run",
            "Look at a run. While it is active: status, elapsed time and output since the cursor `after` (take it from "
            "`next` of the reply before), waiting up to `wait` seconds for its end. Finished: the execution result; with "
            "`after`, the kept output from there on, which is how to page through long output.",
            run
            | session
            | {
                "after": _text("Cursor from `next` of an earlier reply; without it from the start."),
                "wait": _number(f"Wait until the run ends, at most this many seconds (0-{limits.wait_max:g}).", 0, limits.wait_max),
            },
            output=_result(),
            hints="reads",
        ),
        _tool(
            "python_cancel",
            "Interrupt a run: the cell gets a KeyboardInterrupt and the namespace is kept if the code lets go within "
            "about two seconds, otherwise its worker is killed. Returns at once; python_run tells how it ended.",
            {"run_id": _text("Which run; without it the active one of the session.")} | session,
            output=_shape(
                _FAILURE | {"cancel_requested": "flag", "run_id": "text", "session_id": "text", "status": "text"}
            ),
            hints="ends",
        ),
        _tool(
            "python_health",
            "What is going on, in milliseconds, whatever cells do: server, sessions with their ids, generations and active "
            "runs, limits, containment. Never starts Python.",
            {},
            output=_health(),
            hints="reads",
        ),
        _tool(
            "python_session_open",
            "Open another session: a namespace of its own with its own worker, project directory and interpreter. "
            "Sessions run in parallel. The interpreter is probed; without one the project's .venv is used if it has one.",
            {
                "name": _text("A label.", limits.session_name_bytes),
                "project": _text("Project directory, the cells' working directory; without it the server's."),
                "python": _text("Interpreter, CPython 3.10 or newer; without it chosen from the project."),
            },
            output=_shape(_SESSION | _FAILURE),
            hints="adds",
        ),
        _tool(
            "python_session_list",
            "The open sessions, with ids, projects, interpreters and states. Starts nothing.",
            {},
            output=_shape(_FAILURE, ("sessions", _array(_shape(_SESSION)))),
            hints="reads",
        ),
        _tool(
            "python_session_inspect",
            "One session: state, retained runs and, with include_namespace, the names and types in its namespace, read "
            "without running user code.",
            session | {"include_namespace": _flag("List names and types, too.")},
            output=_shape(
                _SESSION | _FAILURE | {"namespace_total": "whole"},
                ("runs", _array(_shape(_SUMMARY))),
                ("namespace", _array(_shape({"name": "text", "type": "text"}))),
            ),
            hints="reads",
        ),
        _tool(
            "python_session_close",
            "Close a session: its run is cancelled, its worker and everything the worker started end, its namespace is "
            "gone. Closing the default session leaves a new, empty default one.",
            {"session_id": _text("Which session. Required: nothing is closed by default.")},
            required=["session_id"],
            output=_shape(_FAILURE | {"closed": "flag", "session_id": "text"}),
            hints="ends",
        ),
    ]


def _tool(
    name: str,
    description: str,
    properties: dict[str, Schema],
    *,
    output: Schema,
    hints: str,
    required: list[str] | None = None,
) -> Tool:
    return {
        "name": name,
        "description": description,
        "inputSchema": _object(properties, required),
        "outputSchema": output,
        "annotations": _HINTS[hints],
    }


# -- schemas -------------------------------------------------------------------------------------------------------------


def _cell(limits: Limits) -> dict[str, Schema]:
    return {
        "code": _text(f"Python source, at most {limits.code_bytes} bytes. Empty is fine.", limits.code_bytes),
        "reset": _flag("Start a new worker first: empty namespace, directory and environment as at the start."),
        "timeout": _number(
            f"Seconds the cell may run ({limits.timeout_min:g}-{limits.timeout_max:g}, default {limits.timeout_default:g}).",
            limits.timeout_min,
            limits.timeout_max,
        ),
        "wait": _number(
            "Return after this many seconds even if the cell still runs; it goes on and python_run reads it.",
            0,
            limits.timeout_max,
        ),
        "expected_generation": _whole(
            "Run only if the session is in this generation (0: never started); otherwise STATE_CHANGED.", 0
        ),
    }


# Results are described by names and kinds alone: an agent sees the results themselves, and the whole list stays small.
_SUMMARY = {
    "run_id": "text",
    "session_id": "text",
    "generation": "whole",
    "status": "text",  # running, cancelling, finished, or refused (nothing was run)
    "success": "flag",
    "state": "text",  # preserved or cleared
    "error_code": "text",
    "elapsed_ms": "whole",
}
_RESULT = _SUMMARY | {
    "state_reset": "flag",
    "stdout": "text",
    "stderr": "text",
    "return_value": "text or null",
    "value": "any",
    "error": "text or null",
    "background_tasks_cancelled": "whole",
    "background_tasks": "texts",
    "background_threads": "texts",
    "exit_code": "whole",
    "next": "text",
    "poll_tool": "text",
    "cancel_tool": "text",
}
_FAILURE = {"success": "flag", "error": "text", "error_code": "text"}
_SESSION = {
    "session_id": "text",
    "name": "text",
    "default": "flag",
    "project": "text",
    "python": "text or null",
    "python_version": "text or null",
    "python_source": "text or null",
    "generation": "whole",
    "worker": "text",  # none, or the state of machines/generation.py
    "worker_pid": "whole",
    "active_run": "text or null",
    "age_s": "number",
}
_SERVER = {
    "name": "text",
    "version": "text",
    "pid": "whole",
    "python": "text",
    "uptime_s": "number",
    "protocol": "text or null",
    "client": "text or null",
}

_KINDS: dict[str, Schema] = {
    "text": {"type": "string"},
    "text or null": {"type": ["string", "null"]},
    "flag": {"type": "boolean"},
    "whole": {"type": "integer"},
    "number": {"type": "number"},
    "any": {"type": ["object", "array", "string", "number", "boolean", "null"]},
    "texts": {"type": "array", "items": {"type": "string"}},
    "numbers by name": {"type": "object", "additionalProperties": {"type": "number"}},
}


def _shape(fields: dict[str, str], *more: tuple[str, Schema], required: list[str] | None = None) -> Schema:
    """The schema of an object with these fields; `more` are fields with a schema of their own."""
    return _object({name: _KINDS[kind] for name, kind in fields.items()} | dict(more), required)


def _result() -> Schema:
    cut = _shape(dict.fromkeys(("stdout", "stderr", "return", "error"), "flag"))
    return _shape(_RESULT, ("truncated", cut), required=["status"])


def _health() -> Schema:
    return _shape(
        _FAILURE | {"execution": "text", "limits": "numbers by name"},
        ("server", _shape(_SERVER)),
        ("sessions", _array(_shape(_SESSION))),
        ("broker", _shape({"state": "text"})),
        ("containment", _shape({"level": "text", "details": "text"})),
    )


def _object(properties: dict[str, Schema], required: list[str] | None = None) -> Schema:
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    return schema


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _text(description: str, longest: int | None = None) -> Schema:
    schema: Schema = {"type": "string", "description": description}
    if longest is not None:
        schema["maxLength"] = longest
    return schema


def _flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def _whole(description: str, smallest: int | None = None) -> Schema:
    schema: Schema = {"type": "integer", "description": description}
    if smallest is not None:
        schema["minimum"] = smallest
    return schema


def _number(description: str, smallest: float | None = None, largest: float | None = None) -> Schema:
    schema: Schema = {"type": "number", "description": description}
    if smallest is not None:
        schema["minimum"] = smallest
    if largest is not None:
        schema["maximum"] = largest
    return schema
