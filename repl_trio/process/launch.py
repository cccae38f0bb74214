"""Starting guardians: the synchronous half, usable before trio is imported.

The one process that the server starts by itself is the root guardian, with the first launch and again when it has died.
It forks a guardian for each child, four times faster than a fresh interpreter is there, and ends what a guardian that
was killed leaves behind. Where there are no pidfds (macOS) there is no root and the server starts each guardian.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from contextlib import suppress

from ..limits import Limits
from ..wire import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

#: Where the guardian script is: inside the package when installed from a wheel, beside it in a checkout.
_FOLDERS = (os.path.join(_PACKAGE, "_guardian"), os.path.join(os.path.dirname(_PACKAGE), "guardian"))

# Loaded as a module and not as a script, so that its bytecode is cached (4 ms a start, measured).
_RUN = "import sys;sys.path.insert(0,sys.argv[1]);import {0};{0}.main()"


class Launch:
    """A guardian that was started and not yet adopted by `open_guard`.

    `control` is the socket to it. Dropping the object closes the socket, which is the lifeline: the guardian then kills
    its child and ends. `pid` is that of a guardian which is a child of this process; the root's forks tell theirs later
    and have the `number` of their fork instead.
    """

    def __init__(self, control: socket.socket, *, pid: int | None = None, number: int | None = None) -> None:
        self.control = control
        self.pid = pid
        self.number = number


class Life:
    """One root guardian process: its pid, our end of its socket, and the fork orders it was given."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control
        self.forks: set[int] = set()


class Root:
    """The root guardian, as far as launching needs it; `root.open_root` owns its processes and hears what they report.

    `lives` are the processes that nobody has reaped: the newest takes orders, those before it have died.
    """

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.began: Callable[[], None] | None = None  # told of each new life
        self._forks = 0

    def fork(self, end: socket.socket) -> int:
        """Order a guardian that serves `end`; returns the number of its fork.

        Raises `OSError` when no process can be started.
        """
        self._forks += 1
        if self.lives:
            os.kill(self.lives[-1].pid, signal.SIGCONT)  # somebody may have stopped it; nothing else comes of it
        if not self.order({"op": "fork", "id": self._forks}, end):
            raise BrokenPipeError(errno.EPIPE, "the root guardian ended at once")
        self.lives[-1].forks.add(self._forks)
        return self._forks

    def order(self, order: dict[str, object], end: socket.socket | None = None) -> bool:
        """`send`, to a new root if there is none that takes it. Raises `OSError` when no process can be started."""
        if self.send(order, end):
            return True
        self.give_up()  # it has died, or takes no orders: as one of two roots it would never end
        self._start()
        return self.send(order, end)

    def send(self, order: dict[str, object], end: socket.socket | None = None) -> bool:
        """Send an order without waiting, with a descriptor if one is given; False when no root takes it."""
        if not self.lives:
            return False
        control = self.lives[-1].control
        line = jsontext.dumps(order).encode("ascii") + b"\n"
        try:
            if end is None:
                sent = control.send(line, socket.MSG_DONTWAIT)
            else:
                # Not `socket.send_fds`: it drops its flags, so that a stopped root would stop the server.
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, end.fileno().to_bytes(4, sys.byteorder))
                sent = control.sendmsg([line], [rights], socket.MSG_DONTWAIT)
        except OSError:
            return False
        if sent == len(line):
            return True
        # Half an order would make the next one garbage.
        self.give_up()
        return False

    def give_up(self) -> None:
        """End a root that does not answer. Its guardians live on and become children of this process."""
        if self.lives:
            os.kill(self.lives[-1].pid, signal.SIGKILL)  # ours until it is reaped, so the pid is no stranger's
            with suppress(OSError):  # already disconnected
                self.lives[-1].control.shutdown(socket.SHUT_RDWR)

    def _start(self) -> None:
        _be_subreaper()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            pid = _spawn(theirs.fileno(), "guardian_root")
        except BaseException:  # only to undo
            ours.close()
            raise
        finally:
            theirs.close()
        self.lives.append(Life(pid, ours))
        self.send({"op": "root", "v": 1, "server": os.getpid()})
        if self.began is not None:
            self.began()


def _be_subreaper() -> None:
    """Get back what a root guardian that was killed leaves behind, instead of losing it to init."""
    import _ctypes

    # Without `ctypes` and its structures, which cost more than the call.
    process = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # the stub forgets None, the program itself
    _ctypes.call_function(_ctypes.dlsym(process, "prctl"), (36, 1, 0, 0, 0))  # PR_SET_CHILD_SUBREAPER


def has_root() -> bool:
    """Whether this system has what a root guardian stands on: subreapers, pidfds, and /proc."""
    try:
        import _ctypes  # noqa: F401 - how prctl is called

        process = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(process, 0)
        finally:
            os.close(process)
        # In the /proc of another pid namespace our children have other numbers.
        return os.readlink("/proc/self") == str(os.getpid())
    except (ImportError, AttributeError, OSError):
        return False


def guardian_folder() -> str:
    """The folder that holds `guardian.py`."""
    for folder in _FOLDERS:
        if os.path.exists(os.path.join(folder, "guardian.py")):
            return folder
    raise FileNotFoundError(f"guardian.py is in neither of {', '.join(_FOLDERS)}: the installation is incomplete")


class Command:
    """What a guardian starts: program and arguments, environment, directory, and the child's descriptors as `{number in
    the child: ours}`."""

    __slots__ = ("argv", "cwd", "descriptors", "env")

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, descriptors: Mapping[int, int]) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.descriptors = descriptors


def launch(root: Root, command: Command, limits: Limits) -> Launch:
    """Start a guardian and hand it the command.

    The command, its environment included, travels over the socket and never stands in an argument list. Our copies of
    the descriptors stay open: the caller closes them. Raises `OSError` when no process can be started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pid = number = None
    try:
        if has_root():
            number = root.fork(theirs)
        else:
            pid = _spawn(theirs.fileno(), "guardian")
    except BaseException:  # only to undo
        ours.close()
        raise
    finally:
        theirs.close()
    try:
        _hand_over(ours, command, limits, forked=number is not None)
    except BaseException as error:  # only to undo: without its lifeline the guardian ends by itself
        ours.close()
        if isinstance(error, TimeoutError):
            root.give_up()
        if pid is not None:
            os.waitpid(pid, 0)
        raise
    return Launch(ours, pid=pid, number=number)


def _hand_over(control: socket.socket, command: Command, limits: Limits, *, forked: bool) -> None:
    """Send the spawn order with its descriptors."""
    specification = {
        "op": "spawn",
        "v": 1,
        "server": os.getpid(),
        "argv": list(command.argv),
        "env": dict(command.env),
        "cwd": command.cwd,
        "fds": list(command.descriptors),
        "oom": limits.oom_score_adj,
        "orphan": [[15, limits.orphan_grace_ms]],
        "leftover": [[9, 0]],
    }
    line = jsontext.dumps(specification).encode("ascii") + b"\n"
    if len(line) > limits.frame_bytes:
        raise OSError(
            errno.E2BIG,
            f"command and environment take {len(line)} bytes; the limit frame_bytes is {limits.frame_bytes}",
        )
    # Blocking on purpose: the guardian does nothing else before it has read this. Below a root that somebody has
    # stopped there is no guardian yet, hence the bound.
    control.settimeout(limits.guardian_ack)
    # A root that could fork no guardian has closed the other end, and tells why.
    with suppress(*([BrokenPipeError, ConnectionResetError] if forked else [])):
        sent = socket.send_fds(control, [line], list(command.descriptors.values()))
        control.sendall(line[sent:])
    control.settimeout(None)


def _spawn(control: int, module: str) -> int:
    # The base interpreter: -I -S then skips pyvenv.cfg, and the venv may vanish while we run.
    python = getattr(sys, "_base_executable", None) or sys.executable
    arguments = [python, "-I", "-S", "-c", _RUN.format(module), guardian_folder()]
    try:
        return os.posix_spawn(
            python,
            arguments,
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
    except OSError as error:
        raise OSError(error.errno, _fix(error, python)) from None


def _fix(error: OSError, python: str) -> str:
    """The error of a start, with what can be done about it."""
    if error.errno == errno.EAGAIN:
        return "the limit on processes is reached; end some, or raise it (ulimit -u, or the limits of the container)"
    if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR):
        return f"{os.strerror(error.errno)}: {python}, the server's own interpreter; install it, or repl-trio, again"
    return error.strerror or str(error)
