"""Starting a guardian: the synchronous half, usable before trio is imported.

Main thread only, not because of the guardian (it watches the server by pidfd and by EOF, and sets no parent-death
signal of its own) but because that keeps one rule for every process the server starts.
"""

from __future__ import annotations

import errno
import os
import socket
import sys

from ..limits import Limits
from ..wire import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

#: Where the guardian script is: inside the package when installed from a wheel, beside it in a checkout.
_FOLDERS = (os.path.join(_PACKAGE, "_guardian"), os.path.join(os.path.dirname(_PACKAGE), "guardian"))

# Loaded as a module and not as a script, so that its bytecode is cached (4 ms a start, measured).
_RUN = "import sys;sys.path.insert(0,sys.argv[1]);import guardian;guardian.main()"


class Launch:
    """A guardian process that was started and not yet adopted by `open_guard`.

    `control` is the socket to it. Dropping the object closes the socket, which is the lifeline: the guardian then kills
    its child and ends.
    """

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control


def guardian_folder() -> str:
    """The folder that holds `guardian.py`."""
    for folder in _FOLDERS:
        if os.path.exists(os.path.join(folder, "guardian.py")):
            return folder
    raise FileNotFoundError(f"guardian.py is in neither of {', '.join(_FOLDERS)}: the installation is incomplete")


def launch(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, descriptors: Mapping[int, int], limits: Limits
) -> Launch:
    """Start a guardian and hand it the command, whose descriptors are `{number in the child: ours}`.

    The command, its environment included, travels over the socket and never stands in an argument list. Our copies of
    the descriptors stay open: the caller closes them. Raises `OSError` when no process can be started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        pid = _spawn(theirs.fileno())
    except BaseException:  # only to undo
        ours.close()
        raise
    finally:
        theirs.close()
    specification = {
        "op": "spawn",
        "v": 1,
        "server": os.getpid(),
        "argv": list(argv),
        "env": dict(env),
        "cwd": cwd,
        "fds": list(descriptors),
        "oom": limits.oom_score_adj,
        "orphan": [[15, limits.orphan_grace_ms]],
        "leftover": [[9, 0]],
    }
    try:
        line = jsontext.dumps(specification).encode("ascii") + b"\n"
        if len(line) > limits.frame_bytes:
            raise OSError(
                errno.E2BIG,
                f"command and environment take {len(line)} bytes; the limit frame_bytes is {limits.frame_bytes}",
            )
        # Blocking on purpose: the guardian does nothing else before it has read this.
        sent = socket.send_fds(ours, [line], list(descriptors.values()))
        ours.sendall(line[sent:])
    except BaseException:  # only to undo: without its lifeline the guardian ends by itself
        ours.close()
        os.waitpid(pid, 0)
        raise
    return Launch(pid, ours)


def _spawn(control: int) -> int:
    # The base interpreter: -I -S then skips pyvenv.cfg, and the venv may vanish while we run.
    python = getattr(sys, "_base_executable", None) or sys.executable
    return os.posix_spawn(
        python,
        [python, "-I", "-S", "-c", _RUN, guardian_folder()],
        {},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, control, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        # A group of its own but the server's session: a client that signals our group does not reach it, and if the
        # server dies while the guardian is stopped, the kernel continues it (orphaned process group).
        setpgroup=0,
        setsigmask=[],
    )
