"""A worker that does what it is told: it speaks the frames of `docs/wire.md` over the real descriptors, and misbehaves.

Run as a program in the place of an interpreter (see `install`). What it does before it is ready stands in the variable
FAKE_START of its environment, what it does for a cell is the cell itself: a JSON list of steps, each a list of a name
and its arguments. Imported, it makes those lists.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

RESULT: dict[str, Any] = {
    "frame": "result",
    "success": True,
    "return_value": None,
    "value": None,
    "has_value": False,
    "error": None,
    "error_type": None,
    "interrupted": False,
    "keep": True,
    "exit_code": None,
    "truncated_return": False,
    "truncated_error": False,
    "tasks_cancelled": 0,
    "background_tasks": [],
    "background_threads": [],
}
READY: dict[str, Any] = {
    "frame": "ready",
    "version": 1,
    "pid": 0,
    "python_version": "3.10.99",
    "executable": "/fake/python",
    "prefix": "/fake",
}


def install(folder: Path) -> str:
    """Put an executable into `folder` that starts this program like an interpreter; returns its path."""
    program = folder / "fake-python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{Path(__file__).resolve()}"\n')
    program.chmod(0o755)
    return str(program)


def script(*steps: list[Any]) -> str:
    """A cell that makes the worker take these steps. Without a step `result` or `frame` it answers nothing."""
    return json.dumps(steps)


class Worker:
    """The program. Everything is blocking: one frame is read, its steps are taken, and so on."""

    def __init__(self) -> None:
        self.run_id = ""
        self.file = os.fdopen(0, "rb", buffering=0)

    def live(self) -> None:
        """Start as FAKE_START says, then serve frames until `shutdown` or the end of the link."""
        # Never lost, whatever step is being taken when it comes: `wait` finds it pending.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.take(json.loads(os.environ.get("FAKE_START", '[["frame", {}, "ready"]]')))
        rest = b""
        while chunk := self.file.read(65_536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                frame = json.loads(line)
                if frame["frame"] == "shutdown" and "deaf to shutdown" not in os.environ.get("FAKE_HABITS", ""):
                    return
                if frame["frame"] == "execute":
                    self.run_id = frame["id"]
                    self.take(json.loads(frame["code"]))

    def take(self, steps: list[list[Any]]) -> None:
        for name, *arguments in steps:
            getattr(self, "do_" + name)(*arguments)

    def do_result(self, changes: dict[str, Any] | None = None) -> None:
        """A complete result of the cell, with some keys changed."""
        self.write(3, json.dumps({**RESULT, "id": self.run_id, **(changes or {})}) + "\n")

    def do_frame(self, changes: dict[str, Any], kind: str) -> None:
        """A frame of another kind; only `ready` has keys of its own."""
        base = READY if kind == "ready" else {"frame": kind}
        self.write(3, json.dumps({**base, **changes}) + "\n")

    def do_raw(self, text: str, times: int = 1) -> None:
        """Bytes on the frame link that need be no frame."""
        self.write(3, text * times)

    def do_write(self, descriptor: int, text: str, times: int = 1) -> None:
        self.write(descriptor, text * times)

    def do_words(self, text: str) -> None:
        """What faulthandler would write."""
        self.write(4, text)

    def do_close(self, descriptor: int) -> None:
        os.close(descriptor)

    def do_exit(self, code: int) -> None:
        os._exit(code)

    def do_kill(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def do_ignore(self, *numbers: int) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    def do_hang(self) -> None:
        """Hold on until a signal ends the process; SIGINT does not."""
        while True:
            signal.pause()

    def do_nothing(self, _padding: str) -> None:
        """For a cell of a certain size."""

    def do_wait(self) -> None:
        """Hold on until SIGINT, then go on with the next step."""
        signal.sigwait({signal.SIGINT})

    def do_touch(self, path: str) -> None:
        Path(path).touch()

    def do_child(self, path: str) -> None:
        """Start a process that outlives the cell and write its number into a file."""
        child = os.posix_spawn("/bin/sleep", ["sleep", "600"], {}, file_actions=[(os.POSIX_SPAWN_CLOSE, 3)])
        Path(path).write_text(str(child))

    @staticmethod
    def write(descriptor: int, text: str) -> None:
        rest = text.encode("utf-8", "surrogateescape")
        while rest:
            rest = rest[os.write(descriptor, rest) :]


if __name__ == "__main__":
    Worker().live()
