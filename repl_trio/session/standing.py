"""How things stand outside trio: guardians, workers and runs, each with what is waited for. For reports.

Read from our own records and from the kernel, without asking anybody: a guardian that is stopped answers nothing.
"""

from __future__ import annotations

import trio

from ..process.descent import condition
from ..process.root import RootWatch
from .session import Session

Standing = dict[str, object]


def of_session(session: Session) -> Standing:
    """A session's run (`stage`, `last_step`, `run_age_s`), its guardian and its worker's process, if they are there.

    `closing` and `undelivered` (the worker has not read its cell) stand there only when they are true. `guardian` and
    `worker_process` are words of `descent.condition`; `waits_for` is what the guardian owes us, for `waits_s` seconds.
    """
    standing: Standing = {"closing": True} if session.closing else {}
    run, generation = session.active, session.generation
    if run is not None and not run.finished:
        standing |= {"stage": run.machine.state, "run_age_s": round(trio.current_time() - run.accepted, 3)}
        if run.steps:
            standing["last_step"] = run.steps[-1].name
    if generation is None or generation.over.is_set():
        return standing
    guard = generation.guard
    if guard.pid is not None:
        standing |= {"guardian_pid": guard.pid, "guardian": condition(guard.pid)}
    if guard.child_pid is not None:
        standing["worker_process"] = condition(guard.child_pid)
    if generation.undelivered:
        standing["undelivered"] = True
    return standing | _waits(guard.pending)


def of_root(watch: RootWatch) -> Standing:
    """The root guardian: `pid`, `state` (a word of `descent.condition`; `none` without one), `waits_for`, `waits_s`."""
    lives = watch.root.lives
    root: Standing = {"pid": lives[-1].pid, "state": condition(lives[-1].pid)} if lives else {"state": "none"}
    return root | _waits(watch.pending.oldest())


def threads() -> int:
    """How many threads of this process work for a task, or for one that has not waited for its end."""
    return int(trio.to_thread.current_default_thread_limiter().borrowed_tokens)


def lines(watch: RootWatch) -> list[str]:
    """`of_root` and `threads` for people."""
    root = of_root(watch)
    who = f"root guardian {root['pid']}: " if "pid" in root else "root guardian: "
    return [", ".join(filter(None, [f"{who}{root['state']}", in_words(root)])), f"threads at work: {threads()}"]


def in_words(standing: Standing) -> str:
    """One session's or the root's standing as the end of a sentence; empty when there is nothing to say."""
    parts: list[str] = ["closing"] if "closing" in standing else []
    if "stage" in standing:
        step = f" ({standing['last_step']} is done)" if "last_step" in standing else ""
        parts.append(f"run {standing['stage']}{step} for {standing['run_age_s']} s")
    if "guardian_pid" in standing:
        parts.append(f"guardian {standing['guardian_pid']} {standing['guardian']}")
    if standing.get("worker_process") not in (None, "running", "sleeping"):
        parts.append(f"worker process {standing['worker_process']}")
    if "undelivered" in standing:
        parts.append("worker has not read its cell")
    if "waits_for" in standing:
        parts.append(f"waits {standing['waits_s']} s for {standing['waits_for']}")
    return ", ".join(parts)


def _waits(pending: tuple[str, float] | None) -> Standing:
    if pending is None:
        return {}
    return {"waits_for": pending[0], "waits_s": round(trio.current_time() - pending[1], 3)}
