"""Starting a worker. Synchronous, usable before trio is imported."""

from __future__ import annotations

import os

from .piped import OUTPUTS, PipedStart, start_piped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..limits import Limits
    from .launch import Root

_BOOT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "worker", "boot.py")
_EVENTS = 3
_TRACE = 4


class WorkerStart(PipedStart):
    """A worker that is booting, over the five pipes of `docs/wire.md`. Commands go to its stdin."""

    def __init__(self, start: PipedStart, python: str, project: str) -> None:
        super().__init__(start.guardian, start.ends)
        self.events = start.ends[_EVENTS]
        self.trace = start.ends[_TRACE]
        self.python = python
        self.project = project


def start_worker(root: Root, python: str, project: str, env: Mapping[str, str], limits: Limits) -> WorkerStart:
    """Start `python` as a worker in `project`; as `start_piped`."""
    # A crashing worker must never wait for a reader of its last words.
    outputs = {**OUTPUTS, _EVENTS: True, _TRACE: False}
    start = start_piped(root, [python, _BOOT, *limits.overrides()], env, project, limits, outputs)
    return WorkerStart(start, python, project)
