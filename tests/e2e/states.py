"""The states in which the end can find a server: how each is reached, from outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.e2e.client import HANDSHAKE, Client
from tests.e2e.watch import begin, content, eventually

DEAF = (
    "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
    "print('deaf', flush=True)\ntime.sleep(600)"
)
"""Takes no interrupt and no SIGTERM, and leaves the processor to others: only SIGKILL ends it."""
MANY = 8


def caught(client: Client, number: int) -> None:
    """Wait until the process has a signal handler of its own for this signal."""
    status = Path(f"/proc/{client.process.pid}/status")

    def look() -> bool:
        mask = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
        return bool(int(mask.split()[1], 16) >> (number - 1) & 1)

    eventually(look, f"signal {number} is caught")


def nothing_said(client: Client) -> None:
    caught(client, 15)


def opened(client: Client) -> None:
    client.initialize(HANDSHAKE)


def idle(client: Client) -> None:
    client.initialize(HANDSHAKE)
    client.execute("1")


def cell_running(client: Client) -> None:
    idle(client)
    begin(client, "while True: pass")


def deaf_cell(client: Client) -> None:
    idle(client)
    begin(client, DEAF)


def flood(client: Client) -> None:
    """A cell that writes as fast as it can, and a client that asks for it and does not read."""
    idle(client)
    begin(client, "import os\nwhile True: os.write(1, b'x' * 65_535 + b'\\n')")
    client.hold_reading()
    for _ in range(50):
        client.start_call("python_run")


def many_busy(client: Client) -> None:
    idle(client)
    begin(client, DEAF)
    for _ in range(MANY - 1):
        begin(client, DEAF, session_id=client.structured("python_session_open")["session_id"])


def ladder_under_way(client: Client) -> None:
    idle(client)
    begin(client, DEAF)
    client.structured("python_cancel")


def session_closing(client: Client) -> None:
    """A close is asked for and its session's run takes no interrupt: the close waits for the ladder."""
    idle(client)
    begin(client, DEAF)
    client.start_call("python_session_close", session_id=client.default_session())
    # An answer to what was sent after it: the close has begun.
    client.request("ping")


def worker_starting(client: Client) -> None:
    """The project's interpreter is a program that never becomes a worker."""
    client.initialize(HANDSHAKE)
    slow_program(client.cwd / ".venv/bin/python")
    client.structured("python_start", code="1")
    eventually((client.cwd / ".venv/bin/up").exists, "the interpreter was started")


def session_opening(client: Client) -> None:
    """The same under the probe of a new session."""
    idle(client)
    python = slow_program(client.cwd / "slow")
    client.start_call("python_session_open", python=str(python))
    eventually((client.cwd / "up").exists, "the interpreter was started")


def reset_under_way(client: Client) -> None:
    """The old worker is in an atexit handler that does not return, and the new cell waits for its end."""
    idle(client)
    mark = client.cwd / "leaving"
    client.execute(
        "import atexit, pathlib, time\n"
        f"atexit.register(lambda: (pathlib.Path({str(mark)!r}).write_text('so\\n'), time.sleep(600)))"
    )
    client.start_call("execute_python", code="1", reset=True)
    content(mark)


def slow_program(path: Path) -> Path:
    """An executable that makes a file `up` beside itself and then does nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n: > {path.parent}/up\nexec sleep 600\n")
    path.chmod(0o755)
    return path


#: State -> (how a client that has said nothing yet reaches it, the runs that the end cancels, the workers it ends).
STATES: dict[str, tuple[Callable[[Client], None], int, int]] = {
    "nothing said": (nothing_said, 0, 0),
    "opened": (opened, 0, 0),
    "idle": (idle, 0, 1),
    "cell running": (cell_running, 1, 1),
    "deaf cell": (deaf_cell, 1, 1),
    "flood": (flood, 1, 1),
    f"{MANY} busy": (many_busy, MANY, MANY),
    "ladder under way": (ladder_under_way, 1, 1),
    "session closing": (session_closing, 1, 1),
    "worker starting": (worker_starting, 1, 0),
    "session opening": (session_opening, 0, 1),
    "reset under way": (reset_under_way, 1, 1),
}
