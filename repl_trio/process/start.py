"""Starting a worker: its five pipes and its guardian. Synchronous, usable before trio is imported."""

from __future__ import annotations

import os

from ..limits import Limits
from . import cookie
from .launch import Command, Launch, Root, launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_BOOT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "worker", "boot.py")


class WorkerStart:
    """A worker that is booting. Holds our ends of its pipes (`docs/wire.md`), the reading ones non-blocking.

    Whoever adopts it owns the descriptors; `abandon` is for a start that nobody adopts, `close` for one whose guardian
    alone was adopted.
    """

    def __init__(self, guardian: Launch, descriptors: Mapping[str, int], python: str, project: str) -> None:
        self.guardian = guardian
        self.commands = descriptors["commands"]
        self.stdout = descriptors["stdout"]
        self.stderr = descriptors["stderr"]
        self.events = descriptors["events"]
        self.trace = descriptors["trace"]
        self.python = python
        self.project = project

    def abandon(self) -> None:
        """Close everything. The guardian sees EOF on its lifeline, kills the worker and ends; its parent reaps it."""
        self.close()
        self.guardian.control.close()
        if self.guardian.pid is not None:
            os.waitpid(self.guardian.pid, 0)

    def close(self) -> None:
        """Close our ends of the pipes."""
        for fd in (self.commands, self.stdout, self.stderr, self.events, self.trace):
            os.close(fd)


def _marked(env: Mapping[str, str]) -> Mapping[str, str]:
    mark = cookie.mine()
    return env if mark is None else {**env, cookie.NAME: mark.text}


def start_worker(root: Root, python: str, project: str, env: Mapping[str, str], limits: Limits) -> WorkerStart:
    """Start `python` as a worker in `project` with the environment `env` and the server's cookie.

    Whether the program could be executed is told by the guardian later. Raises `OSError` when this process is out of
    descriptors or processes; nothing is left then.
    """
    ours: dict[str, int] = {}
    theirs: dict[int, int] = {}
    try:
        for number, name in ((0, "commands"), (1, "stdout"), (2, "stderr"), (3, "events"), (4, "trace")):
            reading, writing = os.pipe()
            ours[name], theirs[number] = (writing, reading) if name == "commands" else (reading, writing)
            os.set_blocking(ours[name], False)
        # A crashing worker must never wait for a reader of its last words.
        os.set_blocking(theirs[4], False)
        command = Command([python, _BOOT, *limits.overrides()], _marked(env), project, theirs)
        guardian = launch(root, command, limits)
    except BaseException:  # only to undo
        for fd in ours.values():
            os.close(fd)
        raise
    finally:
        for fd in theirs.values():
            os.close(fd)
    return WorkerStart(guardian, ours, python, project)
