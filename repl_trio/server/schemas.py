"""JSON schemas of the tools' arguments and results, from short tables.

Plain on purpose (object-typed, no `$ref`, no top-level combinators, no empty or boolean sub-schemas): some clients drop
every tool of a server over one schema they do not understand.
"""

from __future__ import annotations

Schema = dict[str, object]

# Results are described by names and kinds alone: an agent sees the results themselves, and the whole list stays small.
SUMMARY = {
    "run_id": "text",
    "session_id": "text",
    "generation": "whole",
    "status": "text",  # running, cancelling, finished, or refused (nothing was run)
    "success": "flag",
    "state": "text",  # preserved or cleared
    "error_code": "text",
    "elapsed_ms": "whole",
}
RESULT = SUMMARY | {
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
    "steps": "objects",  # step, after_ms, processes: how the run was stopped
    "next": "text",
    "poll_tool": "text",
    "cancel_tool": "text",
    "artifacts": "objects",  # as ARTIFACT
    "images": "objects",  # as IMAGE
    "artifacts_total": "whole",  # where `artifacts` does not hold them all
    "artifacts_gone": "whole",  # of this run, no longer kept
}
ARTIFACT = {
    "id": "text",
    "name": "text",
    "kind": "text",  # output, value, image, display or result
    "media_type": "text",
    "size": "whole",
    "complete": "flag",
}
IMAGE = {
    "artifact_id": "text",
    "media_type": "text",
    "size": "whole",
    "width": "whole",
    "height": "whole",
    "shown": "flag",  # as an image block of this result
}
FAILURE = {"success": "flag", "error": "text", "error_code": "text"}
SESSION = {
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
    "max_memory_mib": "whole",
    "processes": "objects",  # pid, command, age_s, run_id: what cells have left running below the worker
    "processes_total": "whole",
}
_DETAIL = {
    "root": "object",  # as session/standing.py has it, and so is `detail` of a session
    "requests": "objects",  # unanswered, oldest first: id, tool, age_s, run_id, cancelled
    "requests_total": "whole",
    "asked": "objects",  # of the client on behalf of peers and not answered, oldest first: id, method, server, age_s
    "unread_bytes": "whole",  # of answers
    "threads": "whole",
    "tasks": "objects",  # as session/tree.py's Node.fields, parents first
    "tasks_total": "whole",
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
_BROKER = {
    "journal": "text",
    "more": "whole",
    "notes": "texts",
    "servers": "objects",  # name, state, tools (how many may be called, once known), reason, project (if another one)
}

_KINDS: dict[str, Schema] = {
    "text": {"type": "string"},
    "text or null": {"type": ["string", "null"]},
    "flag": {"type": "boolean"},
    "whole": {"type": "integer"},
    "whole or null": {"type": ["integer", "null"]},
    "number": {"type": "number"},
    "any": {"type": ["object", "array", "string", "number", "boolean", "null"]},
    "texts": {"type": "array", "items": {"type": "string"}},
    "object": {"type": "object"},
    "objects": {"type": "array", "items": {"type": "object"}},  # spelled out in three tools they would be long
    "numbers by name": {"type": "object", "additionalProperties": {"type": "number"}},
}


def shape(fields: dict[str, str], *more: tuple[str, Schema], required: list[str] | None = None) -> Schema:
    """The schema of an object with these fields; `more` are fields with a schema of their own."""
    return object_schema({name: _KINDS[kind] for name, kind in fields.items()} | dict(more), required)


def result() -> Schema:
    cut = shape(dict.fromkeys(("stdout", "stderr", "return", "error"), "flag"))
    return shape(RESULT, ("truncated", cut), required=["status"])


def health() -> Schema:
    return shape(
        FAILURE | {"execution": "text", "limits": "numbers by name"} | _DETAIL,
        ("server", shape(_SERVER)),
        ("sessions", array(shape(SESSION | {"detail": "object"}))),
        ("broker", shape(_BROKER)),
        ("containment", shape({"level": "text", "details": "text"}, ("faults", array({"type": "string"})))),
    )


def object_schema(properties: dict[str, Schema], required: list[str] | None = None) -> Schema:
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    return schema


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def text(description: str, longest: int) -> Schema:
    return {"type": "string", "description": description, "maxLength": longest}


def choice(description: str, options: tuple[str, ...]) -> Schema:
    return {"type": "string", "description": description, "enum": list(options)}


def flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def whole(description: str, smallest: int | None = None, largest: int | None = None) -> Schema:
    schema: Schema = {"type": "integer", "description": description}
    if smallest is not None:
        schema["minimum"] = smallest
    if largest is not None:
        schema["maximum"] = largest
    return schema


def number(description: str, smallest: float | None = None, largest: float | None = None) -> Schema:
    schema: Schema = {"type": "number", "description": description}
    if smallest is not None:
        schema["minimum"] = smallest
    if largest is not None:
        schema["maximum"] = largest
    return schema
