"""Finding what descends from a child where orphans do not come back: macOS, and Linux where prctl(2) cannot be called.

An orphan there is a child of init. What belongs to the child is found by four things together: the chain of parents,
the child's group, a mark in the environment that this guardian's child alone is given, and what was met there before.
Each look reads the whole process table, from /proc or, without it, from ps. Nothing is read while nobody asks.

Processes are named by pid and start time. It is in clock ticks from /proc, in seconds since the epoch from ps.
"""

import posix
import select
import sys

import guardian_kernel as kernel
from guardian_kernel import CROWD, DENIED, GONE, SENT, Moment, Process
from guardian_spawn import MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from signal import SIGKILL, SIGSTOP
else:
    from _signal import SIGKILL, SIGSTOP

PS = ("/bin/ps", "/usr/bin/ps")
COLUMNS = "pid=,ppid=,pgid=,stat=,lstart=,command="
OPTIONS = ["-axwwE" if sys.platform == "darwin" else "axewww", "-o", COLUMNS]
"""All processes at full width, their environments behind their commands."""

PS_ENV = {b"LC_ALL": b"C", b"TZ": b"UTC0"}
PS_LIMIT = 2.0
"""Seconds for one look with ps."""

JITTER = 1
"""Seconds that the start of one process may differ between two looks with ps, which may compute it from the uptime."""

FREEZE_LOOKS = 8
"""Looks in one freezing pass; each one stops what the one before has not shown."""

FREEZE_LIMIT = 0.5
"""Seconds after which no further look is begun: somebody waits for the signal to be acknowledged."""

MONTHS = b"JanFebMarAprMayJunJulAugSepOctNovDec"


class Table:
    """The process table as seen for one child.

    `readable` is false when neither /proc nor ps has given anything so far: the child's own group is then all that can
    be reached. `failed` is true when the last look gave nothing, and one before did. `grouped` is true as long as the
    number of that group cannot be a stranger's.
    """

    def __init__(self, child: int, mark: bytes) -> None:
        self.child = child
        self.readable = False
        self.failed = False
        self.grouped = True
        self._entry = MARK + b"=" + mark
        self._remembered: dict[int, int] = {}

    def look(self) -> list[Process]:
        """What belongs to the child at this moment, itself included, parents before children, zombies too."""
        rows, marked = _rows(self._entry)
        self.readable = self.readable or bool(rows)
        self.failed = self.readable and not rows
        if self.failed:
            return []  # what is remembered stays: a storm can leave no process for ps
        slack = 0 if kernel.PROC else JITTER
        children: dict[int, list[int]] = {}
        members: dict[int, list[int]] = {}
        seeds = set(marked)
        for pid, process in rows.items():
            children.setdefault(process.parent, []).append(pid)
            members.setdefault(process.group, []).append(pid)
            known = self._remembered.get(pid)
            if known is not None and abs(process.start - known) <= slack:
                process.start = known
                seeds.add(pid)
            elif self.grouped and self.child in (pid, process.group):
                seeds.add(pid)
        seeds.discard(posix.getpid())
        # Nobody can enter a session from outside: with one of its members the whole of a group is ours.
        ours = _closed(seeds, lambda pid: children.get(pid, []) + members[rows[pid].group])
        tops = [pid for pid in ours if rows[pid].parent not in ours]
        self._remembered = {pid: rows[pid].start for pid in ours}
        return [rows[pid] for pid in _closed(tops, lambda pid: children.get(pid, []))]


def _closed(seeds: "Iterable[int]", near: "Callable[[int], list[int]]") -> dict[int, None]:
    """The seeds and all that is near them, directly or not, in the order in which it is reached."""
    found = dict.fromkeys(seeds)
    queue = list(found)
    for pid in queue:
        new = [other for other in near(pid) if other not in found]
        queue += new
        found.update(dict.fromkeys(new))
    return found


class Survey:
    """`guardian_walk.Walk` for such a system: the same target, `living`, `steady`, `send` and `kill`.

    With `freeze` the processes of the target are stopped and looked for again, until a look shows no other: none of
    them can then fork, end, or lose its pid to a stranger before it is killed.
    """

    def __init__(self, table: Table, since: Moment | None, *, freeze: bool) -> None:
        self.steady = True
        self._table = table
        self._since = since
        self._groups: set[int] = set()
        self.met: list[Process] = []
        self.met = self._look()
        if not freeze:
            return
        stopped: set[tuple[int, int]] = set()
        deadline = kernel.now() + FREEZE_LIMIT
        for _ in range(FREEZE_LOOKS):
            fresh = [process for process in self.living if (process.pid, process.start) not in stopped]
            if not fresh:
                return
            if stopped:
                # They move faster than they are looked for.
                kernel.outrank_crowd()
            self._send_groups(SIGSTOP)
            for process in fresh:
                if _send(process, SIGSTOP) == GONE:
                    self.steady = False
                stopped.add((process.pid, process.start))
            self.met = self._look()
            if kernel.now() > deadline:
                break
        self.steady = False

    def _send_groups(self, number: int) -> None:
        """Signal the groups without other members: that reaches even a process which forks and ends all the time."""
        for group in self._groups:
            kernel.send_group(group, number)

    def _look(self) -> list[Process]:
        found = self._table.look()
        if self._table.failed:
            self.steady = False
            return self.met  # as seen before: what has been stopped is still the same
        self._groups = {process.group for process in found if process.live}
        if self._since is None:
            return found
        # As in a walk: what started later belongs to the run, with all below it; what an older process starts does not.
        branch: dict[int, bool] = {}
        for process in found:
            if process.pid != self._table.child:
                inherited = branch.get(process.parent)
                branch[process.pid] = self._since.before(process) if inherited is None else inherited
        self._groups -= {process.group for process in found if process.live and not branch.get(process.pid)}
        return [process for process in found if branch.get(process.pid)]

    @property
    def living(self) -> list[Process]:
        """The processes met that were not zombies."""
        return [process for process in self.met if process.live]

    def send(self, number: int) -> int:
        """Signal the living, parents first; returns how many got it."""
        return sum(_send(process, number) == SENT for process in self.living)

    def kill(self) -> tuple[list[Process], list[Process]]:
        """SIGKILL the living; returns those that got it and those that refused it (another user's)."""
        if len(self.met) >= CROWD:
            kernel.outrank_crowd()
        killed: list[Process] = []
        denied: list[Process] = []
        for process in reversed(self.living):
            result = _send(process, SIGKILL)
            if result == GONE:
                self.steady = False
            else:
                (killed if result == SENT else denied).append(process)
        self._send_groups(SIGKILL)
        return killed, denied


def _send(process: Process, number: int) -> int:
    """Signal this process; SENT, GONE or DENIED. Without /proc the look that has just shown it must do as the check."""
    if kernel.PROC:
        return kernel.send(process, number, {process.parent})
    try:
        posix.kill(process.pid, number)
    except ProcessLookupError:
        return GONE
    except PermissionError:
        return DENIED
    return SENT


def _rows(entry: bytes) -> tuple[dict[int, Process], set[int]]:
    """(all processes by pid, the pids of those with this entry in their environment); empty when nothing tells."""
    if kernel.PROC:
        return _from_proc(entry)
    # On Linux ps reads the same /proc, which is missing or of another pid namespace: its numbers would be strangers'.
    return ({}, set()) if kernel.LINUX else _from_ps(entry)


def _from_proc(entry: bytes) -> tuple[dict[int, Process], set[int]]:
    """`_rows` from /proc."""
    rows: dict[int, Process] = {}
    marked = set()
    for name in posix.listdir("/proc"):
        process = kernel.read_process(int(name)) if name.isdigit() else None
        if process is not None:
            rows[process.pid] = process
            environment = kernel.read_file(f"/proc/{name}/environ")
            # Most are nobody's: one search of the whole text before it is cut into entries.
            if environment and entry in environment and entry in environment.split(b"\0"):
                marked.add(process.pid)
    return rows, marked


def _from_ps(entry: bytes) -> tuple[dict[int, Process], set[int]]:
    """`_rows` from ps. The mark is random, so no command is expected to have its text among the arguments."""
    rows: dict[int, Process] = {}
    marked = set()
    for line in _run_ps().splitlines():
        fields = line.split(None, 9)
        try:
            pid, parent, group = map(int, fields[:3])
            start = _seconds(fields[5:9])
        except (ValueError, IndexError):
            continue
        # In the order of /proc/PID/stat, which `Process` reads.
        rows[pid] = Process(pid, [fields[3][:1], b"%d" % parent, b"%d" % group, *[b"0"] * 16, b"%d" % start])
        if entry in line:
            marked.add(pid)
    return rows, marked


def _seconds(fields: list[bytes]) -> int:
    """Seconds since the epoch of "Nov 30 22:00:55 2026" in UTC. Raises ValueError and IndexError."""
    month = MONTHS.index(fields[0]) // 3 + 1
    hour, minute, second = map(int, fields[2].split(b":"))
    # Years from March on: the leap day is then the last one, and the lengths of the months follow a formula.
    year, month = (int(fields[3]), month - 3) if month > 2 else (int(fields[3]) - 1, month + 9)
    days = year * 365 + year // 4 - year // 100 + year // 400 + (month * 153 + 2) // 5 + int(fields[1]) - 719_469
    return ((days * 24 + hour) * 60 + minute) * 60 + second


def _run_ps() -> bytes:
    """What ps writes; b"" when there is none, or it does not end in time."""
    reader, writer = posix.pipe()
    try:
        pid = _start_ps(writer)
    finally:
        posix.close(writer)
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    deadline = kernel.now() + PS_LIMIT
    parts = []
    try:
        while pid and (seconds := deadline - kernel.now()) > 0:
            if poller.poll(seconds * 1000):
                parts.append(posix.read(reader, 1 << 20))
                if not parts[-1]:
                    return b"".join(parts)
        return b""
    finally:
        posix.close(reader)
        if pid:
            # Ended already, as a rule; ours until it is reaped.
            posix.kill(pid, SIGKILL)
            posix.waitpid(pid, 0)


def _start_ps(writer: int) -> int:
    """Start ps with its output going to `writer`; returns its pid, 0 when it cannot be started."""
    actions = [
        # Not our own: descriptor 0 is the lifeline.
        (posix.POSIX_SPAWN_OPEN, 0, "/dev/null", posix.O_RDONLY, 0),
        (posix.POSIX_SPAWN_DUP2, writer, 1),
        (posix.POSIX_SPAWN_OPEN, 2, "/dev/null", posix.O_WRONLY, 0),
    ]
    for path in PS:
        try:
            return posix.posix_spawn(path, ["ps", *OPTIONS], PS_ENV, file_actions=actions)
        except OSError:
            continue
    return 0
