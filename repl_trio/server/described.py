"""Sessions, runs and processes as the tools that report them show them."""

from __future__ import annotations

import trio

from ..process.descent import Descendant
from ..session import standing
from ..session.run import Run
from ..session.session import Session
from ..wire.jsonrpc import Params

PROCESSES = 10
"""processes of one session in a report. More are counted."""


def describe(session: Session, *, default: bool) -> Params:
    """A session as schemas.SESSION has it; `default` tells whether it is the default one."""
    generation = session.generation
    described: Params = {
        "session_id": session.id,
        "name": session.name,
        "default": default,
        "project": session.project,
        "python": session.interpreter.path if session.interpreter else None,
        "python_version": session.python_version,
        "python_source": session.interpreter.source if session.interpreter else None,
        "generation": session.generations,
        "worker": generation.machine.state if generation is not None else "none",
        "active_run": session.active.id if session.active is not None and not session.active.finished else None,
        "age_s": round(trio.current_time() - session.opened, 3),
        "max_memory_mib": session.memory_mib,
    }
    if generation is not None and generation.alive and generation.guard.child_pid is not None:
        described["worker_pid"] = generation.guard.child_pid
        processes, described["processes_total"] = generation.kept.look(generation.guard, PROCESSES)
        described["processes"] = [_process(*one) for one in processes]
    return described


def describe_run(run: Run) -> Params:
    """A run as schemas.SUMMARY has it."""
    summary: Params = {
        "run_id": run.id,
        "session_id": run.session_id,
        "generation": run.generation,
        "status": run.status,
        "elapsed_ms": run.elapsed_ms,
    }
    if run.result is not None:
        summary |= {"success": run.result.success, "state": run.result.state}
        if run.result.error_code is not None:
            summary["error_code"] = run.result.error_code
    return summary


def quietness(described: Params) -> tuple[bool, bool]:
    """Whether nothing is waited for, and whether nothing runs, in a session with detail: the dullest come last."""
    detail = described["detail"]
    return isinstance(detail, dict) and "waits_for" not in detail, described["active_run"] is None


def line_of(described: Params) -> str:
    """A session for people, on one line."""
    mark = " (default)" if described["default"] else ""
    active = f", running {described['active_run']}" if described["active_run"] else ""
    detail = described.get("detail")
    words = standing.in_words(detail) if isinstance(detail, dict) else ""
    python = described["python_version"] or described["python"] or "Python not chosen yet"
    return (
        f"{described['session_id']}{mark} {described['name']}: generation {described['generation']}, worker "
        f"{described['worker']}{active}, {python}, {described['project']}{words and f'; {words}'}"
    )


def _process(process: Descendant, run_id: str | None) -> Params:
    """A process that a cell has left running, or that the active one has started."""
    described: Params = {"pid": process.pid, "command": process.command, "age_s": round(process.age, 1)}
    return described | ({"run_id": run_id} if run_id is not None else {})
