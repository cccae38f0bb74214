"""Waiting for what a server does, by asking it or by looking at files and processes. Every wait is bounded."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.client import BOUND, COOKIE, Client, Message

STEP = 0.01
"""seconds. Between two looks at something that nothing announces."""

#: How a server may be started: what stands in front of its command.
SURROUNDINGS: dict[str, list[str]] = {
    "plain": [],
    "SIGINT ignored": ["sh", "-c", 'trap "" INT; exec "$@"', "sh"],
    "own session": [sys.executable, "-c", "import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])"],
    "SIGINT ignored, own session": [
        sys.executable,
        "-c",
        "import os, signal, sys; signal.signal(2, signal.SIG_IGN); os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])",
    ],
    "stderr closed": ["sh", "-c", 'exec "$@" 2>&-', "sh"],
}


def eventually(condition: Callable[[], Any], what: str, bound: float = BOUND) -> Any:
    """The first true value of `condition`; fails after `bound` seconds."""
    deadline = time.monotonic() + bound
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {bound} s: {what}"
        select.select([], [], [], STEP)
    return found


def session_of(client: Client, session_id: str | None = None) -> Message:
    """A session as python_health describes it, the default one without an id."""
    sessions: list[Message] = client.structured("python_health")["sessions"]
    return next(s for s in sessions if (s["default"] if session_id is None else s["session_id"] == session_id))


def active_run(client: Client, session_id: str | None = None) -> str:
    """Wait until the session runs something; the run's id."""
    return str(eventually(lambda: session_of(client, session_id)["active_run"], "a run begins"))


def idle(client: Client, session_id: str | None = None, bound: float = BOUND) -> None:
    """Wait until the session runs nothing."""
    eventually(lambda: session_of(client, session_id)["active_run"] is None, "the session is idle", bound)


def said(client: Client, run_id: str, text: str) -> Message:
    """Wait until an active run has printed `text`; what python_run then says."""

    def look() -> Message | None:
        run = client.structured("python_run", run_id=run_id)
        if text in run["stdout"]:
            return run
        assert run["status"] == "running", f"ended without {text!r}: {run}"
        return None

    found: Message = eventually(look, f"{text!r} is printed")
    return found


def begin(client: Client, code: str, **arguments: Any) -> Message:
    """Start a cell with python_start that prints `begun` first; returns once it has, with what python_run then says."""
    run = client.structured("python_start", code="print('begun', flush=True)\n" + code, **arguments)
    assert run["status"] == "running", run
    return said(client, run["run_id"], "begun")


def finished(client: Client, run_id: str, bound: float = BOUND) -> Message:
    """Wait for the end of a run; its result."""
    result = client.structured("python_run", run_id=run_id, wait=bound, bound=2 * bound)
    assert result["status"] == "finished", result
    return result


def note(path: Path, word: str) -> str:
    """Source that appends one line to a file."""
    return f"with open({str(path)!r}, 'a') as file: file.write({word!r} + '\\n')\n"


def content(path: Path) -> str:
    """Wait until a file holds at least one whole line; what it holds."""

    def look() -> str:
        with contextlib.suppress(FileNotFoundError):
            text = path.read_text()
            return text if text.endswith("\n") else ""
        return ""

    return str(eventually(look, f"{path.name} is written"))


def carriers(cookie: str, variable: str = COOKIE) -> set[int]:
    """The processes whose environment holds the cookie, whoever their parent is. A zombie has none."""
    wanted = f"{variable}={cookie}".encode()
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    found.add(int(entry))
    return found


def family(client: Client) -> set[int]:
    """The server's pid and that of everything it has started, directly or not: by parentage and by cookie."""
    return {client.process.pid, *(p.pid for p in client.descendants())} | carriers(client.cookie)


def living(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def all_gone(pids: set[int], bound: float) -> None:
    """Wait until none of these processes runs."""
    eventually(lambda: not any(map(living, pids)), f"{pids} are gone", bound)
