"""Kernel facts and acts of a guardian: descriptors, signals, processes and their children.

Everything that differs between kernels is decided here, once, by asking the kernel; the other files see one interface.
Only C modules are imported on the usual path: `signal`, `ctypes` and `socket` cost more than the interpreter start.
Processes are named by pid and start time (clock ticks since boot): a recycled pid has another start time.
"""

import errno
import posix
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal

LINUX = sys.platform == "linux"
SENT, GONE, DENIED = 1, 0, -1
"""What became of one signal: delivered, the process is no more (or no longer ours), or not permitted."""

CROWD = 64
"""Processes met in one walk from which real-time scheduling is asked for: spinning ones starve an ordinary guardian."""

PID_CIRCLE = 1 << 22
"""The largest number of pids a Linux kernel can have."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
FAULTS = frozenset(
    (_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGTRAP, _signal.SIGABRT, _signal.SIGSYS)
)
UNCHANGEABLE = frozenset((_signal.SIGKILL, _signal.SIGSTOP))


class Moment:
    """When a run began: a clock tick since boot, and the last pid given out then (0: not known).

    A tick is 10 ms long. Within one the pid decides; pids are given out in a circle, so "later" is "less than half of
    the circle ahead".
    """

    __slots__ = ("after", "tick")

    def __init__(self, tick: int, after: int) -> None:
        self.tick = tick
        self.after = after

    def before(self, process: "Process") -> bool:
        """Whether the process started later than this."""
        if process.start != self.tick or not self.after:
            return process.start >= self.tick
        circle = pid_circle()
        return 0 < (process.pid - self.after) % circle < circle // 2


class Process:
    """One process as read from the kernel: pid, parent, group, start (clock ticks since boot), live, own.

    `live` is false for a zombie, true for a dead main thread whose process has other threads. `own` marks a direct
    child of this guardian: its pid stays ours until we reap it.
    """

    __slots__ = ("group", "live", "own", "parent", "pid", "start")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.start = int(fields[19])
        self.live = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
        self.own = self.parent == posix.getpid()


def pid_circle() -> int:
    """How many pids there are before the kernel begins again. It can be changed while we run."""
    limit = read_file("/proc/sys/kernel/pid_max")
    return int(limit) if limit is not None else PID_CIRCLE


def read_file(path: str) -> bytes | None:
    """The whole content of a small kernel file, None when it cannot be read (its process has ended)."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := posix.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        posix.close(fd)


def read_process(pid: int) -> Process | None:
    """The process with this pid now, None when there is none."""
    text = read_file(f"/proc/{pid}/stat")
    # The name in the second field may hold blanks and parentheses: only the last one ends it.
    return Process(pid, text[text.rindex(b")") + 2 :].split()) if text else None


def shows_us() -> bool:
    """Whether /proc is there and of our pid namespace: in that of another one our children's numbers are strangers'."""
    try:
        return posix.readlink("/proc/self") == str(posix.getpid())
    except OSError:
        return False


PROC = LINUX and shows_us()
"""Whether processes can be read from /proc."""

CHILDREN_FILES = PROC and read_file(f"/proc/{posix.getpid()}/task/{posix.getpid()}/children") is not None
"""Whether the kernel lists the children of a process; without it the whole process table is scanned."""


def pidfds_work() -> bool:
    """Whether pidfds can be opened and signalled; a system call filter may refuse either."""
    if sys.platform == "linux" and hasattr(posix, "pidfd_open"):
        try:
            fd = posix.pidfd_open(posix.getpid(), 0)
        except OSError:
            return False
        try:
            _signal.pidfd_send_signal(fd, 0)
        except OSError:
            return False
        finally:
            posix.close(fd)
        return True
    return False


PIDFDS = pidfds_work()
"""Whether there are pidfds."""


def prctl(option: int, argument: int) -> bool:
    """Call prctl(2) and say whether it worked; False on a kernel or C library without it."""
    if not LINUX:
        return False
    try:
        import _ctypes

        library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # the stub forgets None, the program itself
        return bool(_ctypes.call_function(_ctypes.dlsym(library, "prctl"), (option, argument, 0, 0, 0)) == 0)
    except (ImportError, AttributeError, OSError):
        _Rank.raised = True
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, argument, 0, 0, 0) == 0)
    except (ImportError, AttributeError, OSError):
        return False


def close_all_but(kept: set[int]) -> None:
    """Close every open descriptor that is not in `kept`."""
    try:
        # A loop over all possible numbers takes seconds where close_range(2) is missing and the limit is high.
        numbers = [int(name) for name in posix.listdir("/proc/self/fd" if LINUX else "/dev/fd")]
    except OSError:
        numbers = list(range(min(posix.sysconf("SC_OPEN_MAX"), 65536)))
    for number in numbers:
        if number not in kept:
            try:
                posix.close(number)
            except OSError:
                continue


def default_signals() -> None:
    """Give every signal its default action and an empty mask, as a program started from a shell expects."""
    _signal.set_wakeup_fd(-1)
    for number in _signal.valid_signals():
        if number not in UNCHANGEABLE:
            _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


class Wake:
    """Signals as a readable descriptor. SIGCHLD and SIGTERM wake; faults keep their action; all others are ignored.

    `terminated` becomes true at the first SIGTERM.
    """

    def __init__(self) -> None:
        self.fd, self.writer = posix.pipe()
        self.terminated = False
        posix.set_blocking(self.fd, False)
        posix.set_blocking(self.writer, False)
        _signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        for number in _signal.valid_signals():
            if number not in FAULTS and number not in UNCHANGEABLE and number != _signal.SIGCONT:
                _signal.signal(number, _signal.SIG_IGN)
        # SIGCHLD must have an action of its own: ignored, the kernel would throw the exit codes away.
        _signal.signal(_signal.SIGCHLD, lambda _number, _frame: None)
        _signal.signal(_signal.SIGTERM, self._terminate)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())

    def _terminate(self, _number: int, _frame: object) -> None:
        self.terminated = True

    def drain(self) -> None:
        """Empty the descriptor; call before looking at what the signals announced."""
        try:
            while posix.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass


def open_pidfd(pid: int) -> int | None:
    """A descriptor for the process, readable when it has ended; None where there are none.

    Raises ProcessLookupError when there is no such process.
    """
    if sys.platform == "linux" and PIDFDS:
        try:
            return posix.pidfd_open(pid, 0)
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise
    return None


_queues: list[object] = []
"""Open queues: dropped, they would close their descriptors."""


def watch_death(pid: int) -> int | None:
    """A descriptor that is readable when the process has ended: a pidfd, or a kernel queue; None without either.

    Raises ProcessLookupError when there is no such process.
    """
    fd = open_pidfd(pid)
    if sys.platform != "linux" and hasattr(select, "kqueue"):
        queue = select.kqueue()
        wanted = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        try:
            queue.control([wanted], 0, 0)
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise
            return None
        _queues.append(queue)
        fd = queue.fileno()
    return fd


def readable(fd: int) -> bool:
    """Whether a read would not wait; of a pidfd: whether the process has ended."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def send(process: Process, number: int, known: set[int]) -> int:
    """Signal exactly this process, if its parent is still among `known`; returns SENT, GONE or DENIED.

    A process that is not our own child may be reaped, and its pid given away, at any moment. So the pidfd is opened
    first and start time and parent are read again after it: what they then say is true of the process behind the pidfd.
    """
    fd = None
    try:
        if process.own:
            posix.kill(process.pid, number)
            return SENT
        fd = open_pidfd(process.pid)
        now = read_process(process.pid)
        if now is None or now.start != process.start or now.parent not in known:
            return GONE
        if sys.platform == "linux" and fd is not None:
            _signal.pidfd_send_signal(fd, number)
        else:
            posix.kill(process.pid, number)
    except ProcessLookupError:
        return GONE
    except PermissionError:
        return DENIED
    finally:
        if fd is not None:
            posix.close(fd)
    return SENT


def send_group(leader: int, number: int) -> bool:
    """Signal the group of `leader`, which must not have been reaped yet; False when nothing could be signalled."""
    try:
        posix.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def scan_parents() -> dict[int, list[int]]:
    """The children of every process, from one pass over the process table."""
    found: dict[int, list[int]] = {}
    for name in posix.listdir("/proc"):
        process = read_process(int(name)) if name.isdigit() else None
        if process is not None:
            found.setdefault(process.parent, []).append(process.pid)
    return found


def children(pid: int) -> list[int]:
    """The pids of the children of a process, over all its threads; empty when it has ended. Needs CHILDREN_FILES."""
    found: list[int] = []
    try:
        threads = posix.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        found += map(int, (read_file(f"/proc/{pid}/task/{thread}/children") or b"").split())
    return found


def own_children() -> list[int]:
    """The pids of this process's children, zombies included; empty where they cannot be listed."""
    me = posix.getpid()
    if CHILDREN_FILES:
        return children(me)
    return scan_parents().get(me, []) if PROC else []


def outrank_crowd() -> None:
    """Ask for real-time scheduling; where it is not permitted, a crowd that spins is only killed more slowly."""
    if sys.platform == "linux":
        try:
            # Not for what is forked from here on: a root's next guardian, and its worker, would have it for ever.
            posix.sched_setscheduler(0, posix.SCHED_RR | posix.SCHED_RESET_ON_FORK, posix.sched_param(1))
        except OSError:
            return
        _Rank.raised = True


def rejoin_crowd() -> None:
    """Give real-time scheduling back: kept, the kernel would hold later work back whenever it throttles such tasks."""
    if sys.platform == "linux" and _Rank.raised:
        _Rank.raised = False
        # The flag stays: without privilege it cannot be taken back.
        posix.sched_setscheduler(0, posix.SCHED_OTHER | posix.SCHED_RESET_ON_FORK, posix.sched_param(0))


class _Rank:
    """Whether this process has real-time scheduling."""

    raised = False


def pause(seconds: float) -> None:
    """Give the processor away for a bounded time: the dying need it to die, and not every death sends a signal."""
    select.select((), (), (), seconds)


def now() -> float:
    """Seconds on a clock that only moves forward."""
    return time.monotonic()
