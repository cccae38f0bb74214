"""Starting the real child: fork, set-up in the fork, exec, and the way errors come back.

The child becomes the leader of its own session and group, dies with its guardian, and holds exactly the descriptors
that the order names. The errors of its set-up and of exec come back through a close-on-exec pipe as one line of text.
"""

import errno
import fcntl
import posix
import select

from guardian_kernel import PR_SET_PDEATHSIG, close_all_but, default_signals, prctl, read_file
from guardian_wire import Order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIGKILL
else:
    from _signal import SIGKILL

DEFAULT_PATH = b"/bin:/usr/bin"
"""Where a command without a slash is looked for when the order's environment has no PATH."""

MARK = b"REPL_TRIO_GUARD"
"""The variable by which what descends from a child is found where orphans do not come back. It is not set elsewhere."""

OOM_LIMIT = 1000
ERROR_LIMIT = 4096
"""Bytes of one error line: as much as a pipe takes at once."""


def launch(order: Order) -> tuple[int, int]:
    """Fork the child and close the order's descriptors here; returns its pid and the pipe on which errors come.

    Raises OSError when there is no process or descriptor left.
    """
    guardian = posix.getpid()
    errors, low = posix.pipe()
    # Above all targets, so that placing the descriptors cannot overwrite the way errors take.
    writer = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _floor(order))
    posix.close(low)
    child = posix.fork()
    if child == 0:
        try:
            _become(order, writer, guardian)
        except (OSError, ValueError) as error:
            _report(writer, error)
        finally:
            posix._exit(127)
    posix.close(writer)
    for fd in order.descriptors:
        posix.close(fd)
    return child, errors


def give_mark(order: Order) -> bytes:
    """Put a mark that nobody else has into the environment of the child; returns it."""
    mark = posix.urandom(12).hex().encode()
    order.env[MARK] = mark
    return mark


def in_words(error: Exception) -> str:
    """ "Type: text" of an error that prevented a start, with the fix when the system gives no more processes."""
    if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM):
        what = "memory is used up" if error.errno == errno.ENOMEM else "the limit on processes is reached"
        return f"{type(error).__name__}: {what}; end some, or raise it (ulimit -u, or the limits of the container)"
    return f"{type(error).__name__}: {error}"


def read_error(errors: int, control: int, server_fd: int | None) -> str | None:
    """Wait until exec has succeeded (None) or failed (the error as text), then close the pipe.

    The wait ends early, as if exec had succeeded, when the control socket or the server's pidfd says that the server is
    gone: an exec on a dead network file system would otherwise keep the guardian from killing the child.
    """
    poller = select.poll()
    poller.register(errors, select.POLLIN)
    # No event asked for: frames may wait there already, only the closing of the other end is of interest.
    poller.register(control, 0)
    if server_fd is not None:
        poller.register(server_fd, select.POLLIN)
    try:
        if errors not in dict(poller.poll()):
            return None
        return posix.read(errors, ERROR_LIMIT).decode("utf-8", "replace") or None
    finally:
        posix.close(errors)


def _report(writer: int, error: Exception) -> None:
    """Send the error as "Type: [Errno number] text: 'path'"."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        path = error.filename
        if isinstance(path, bytes):
            path = path.decode("utf-8", "surrogateescape")
        text = f"[Errno {error.errno}] {error.strerror}: {path!r}"
    posix.write(writer, f"{type(error).__name__}: {text}".encode("utf-8", "backslashreplace")[:ERROR_LIMIT])


def _become(order: Order, writer: int, guardian: int) -> None:
    """Turn this fork into the ordered program. Returns only by raising OSError or ValueError."""
    posix.setsid()
    prctl(PR_SET_PDEATHSIG, SIGKILL)
    if posix.getppid() != guardian:
        # The guardian died before the death signal was asked for, so nobody would ever end this process.
        posix._exit(127)
    default_signals()
    _offer_to_oom(order.oom)
    _place(order, writer)
    posix.chdir(order.cwd)
    _exec(order)


def _offer_to_oom(more: int) -> None:
    """Make the kernel prefer this process over the server when memory runs out; without /proc nothing happens."""
    path = "/proc/self/oom_score_adj"
    current = read_file(path) if more else None
    if current is None:
        return
    try:
        fd = posix.open(path, posix.O_WRONLY | posix.O_CLOEXEC)
        posix.write(fd, b"%d" % min(int(current) + more, OOM_LIMIT))
        posix.close(fd)
    except OSError:
        return


def _floor(order: Order) -> int:
    """The lowest descriptor number that is nobody's target."""
    return max([2, *order.targets]) + 1


def _place(order: Order, writer: int) -> None:
    """Put the descriptors at their numbers and close all others but the error pipe."""
    floor = _floor(order)
    # First all of them out of the way: a target number may be the present number of another one.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor) for fd in order.descriptors]
    for fd, target in zip(moved, order.targets, strict=True):
        posix.dup2(fd, target, inheritable=True)
    for standard in {0, 1, 2}.difference(order.targets):
        # A program without a standard descriptor would get its first opened file there.
        null = posix.open("/dev/null", posix.O_RDWR)
        posix.dup2(null, standard, inheritable=True)
    close_all_but({0, 1, 2, writer, *order.targets})


def _exec(order: Order) -> None:
    """Replace this process; a command without a slash is looked for in the order's own PATH. Raises OSError."""
    command = order.argv[0]
    if b"/" in command:
        posix.execve(command, order.argv, order.env)
    refused: OSError | None = None
    for folder in order.env.get(b"PATH", DEFAULT_PATH).split(b":"):
        try:
            posix.execve(folder + b"/" + command if folder else command, order.argv, order.env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = refused or error
    raise refused or FileNotFoundError(2, posix.strerror(2), command)
