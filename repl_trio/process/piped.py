"""Starting a child over pipes: its guardian and our ends of the pipes. Synchronous, usable before trio is imported."""

from __future__ import annotations

import os

from . import cookie
from .launch import Command, Launch, Root, launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..limits import Limits

OUTPUTS = {1: True, 2: True}


class PipedStart:
    """A child that is starting. `ends`: our ends of its pipes, non-blocking, by its descriptors.

    Whoever adopts the guardian (`open_guard`) owns the child; `abandon` is for a start that nobody adopts, `close` for
    one whose guardian alone was adopted.
    """

    def __init__(self, guardian: Launch, ends: Mapping[int, int]) -> None:
        self.guardian = guardian
        self.stdin, self.stdout, self.stderr = ends[0], ends[1], ends[2]
        self.ends = ends

    def abandon(self) -> None:
        """Close everything. The guardian sees EOF on its lifeline, kills the child and ends; its parent reaps it."""
        self.close()
        self.guardian.control.close()
        if self.guardian.pid is not None:
            os.waitpid(self.guardian.pid, 0)

    def close(self) -> None:
        """Close our ends of the pipes."""
        for fd in self.ends.values():
            os.close(fd)


def start_piped(
    root: Root,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    limits: Limits,
    outputs: Mapping[int, bool] = OUTPUTS,
) -> PipedStart:
    """Start `argv` in `cwd` with the environment `env` and the server's cookie.

    The child reads descriptor 0 and writes `outputs`: by number, whether it waits for a reader when the pipe is full.
    Whether the program could be executed is told by the guardian later. Raises `OSError` when this process is out of
    descriptors or processes, or the command is too long; nothing is left then.
    """
    ours: dict[int, int] = {}
    theirs: dict[int, int] = {}
    try:
        for number in (0, *outputs):
            reading, writing = os.pipe()
            ours[number], theirs[number] = (writing, reading) if number == 0 else (reading, writing)
            os.set_blocking(ours[number], False)
        for number, waits in outputs.items():
            os.set_blocking(theirs[number], waits)
        guardian = launch(root, Command(argv, cookie.marked(env), cwd, theirs), limits)
    except BaseException:  # only to undo
        for fd in ours.values():
            os.close(fd)
        raise
    finally:
        for fd in theirs.values():
            os.close(fd)
    return PipedStart(guardian, ours)
