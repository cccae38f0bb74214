"""The root guardian: forks the guardians of one server, and ends what a killed guardian leaves behind.

Run as a process of its own: `python -I -S -c "...; import guardian_root; guardian_root.main()" FOLDER`, with an AF_UNIX
stream socket on descriptor 0. A guardian that is forked is there in a quarter of the time that a fresh interpreter
takes. Being a child subreaper above them, this process gets back what a guardian that was killed can no longer end.
Used where there are pidfds and subreapers; elsewhere the server starts each guardian by itself.

server -> root: {"op":"root","v":1,"server":PID} first, then any number of
    {"op":"fork","id":1}     with one descriptor: the guardian's end of the socket pair between the server and it
    {"op":"kill","id":1}     SIGKILL to the guardian of that fork, for one that does not answer
    {"op":"sweep","id":2,"pids":[PID,...]}     end these children of the server with all that is theirs: what a root
        guardian that was killed has left to the server, which must reap them itself
root -> server:
    {"ev":"forked","id":1,"pid":N|null,"error":null|"OSError: ..."}
    {"ev":"reaped","id":1,"code":-9,"killed":N,"left":[PID,...]}   the guardian has ended, and what it left behind too
    {"ev":"swept","id":2,"killed":N,"left":[PID,...]}

When the server is gone the guardians clean up, each for itself; this process continues those that somebody stopped,
ends those that do not end, and then everything that is left.
"""

import posix
import select

import guardian_kernel as kernel
from guardian import FLUSH_LIMIT, guard
from guardian_kernel import now
from guardian_reap import reap
from guardian_spawn import in_words
from guardian_tree import DESTROY_LIMIT, FIRST_PAUSE, LONGEST_LATE_PAUSE, LONGEST_PAUSE, QUIET_ROUNDS
from guardian_walk import Origin, Walk
from guardian_wire import Control, Frame, integer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIGCONT, SIGKILL
else:
    from _signal import SIGCONT, SIGKILL

HELLO_WAIT = 30.0
"""Seconds for the first frame to come."""

LEAVE_LIMIT = 3.0
"""Seconds that guardians have to clean up once the server is gone; then they are killed and the rest is done here."""

CONTINUE_STEP = 0.25
"""Seconds between two SIGCONTs to guardians that are still there: somebody may have stopped one."""


class Sweep:
    """The end of some orphans with all that is theirs, one kill round at a time: between two, the root serves orders.

    `origin` names the orphans; None means those of this process, which it reaps as well. `reports` are what to say when
    it is over, each with the moment at which it is said in any case.
    """

    def __init__(self, origin: Origin | None) -> None:
        self.origin = origin
        self.reports: list[tuple[float, Frame]] = []
        self.due = now()
        self.left: list[int] = []
        self._pause = FIRST_PAUSE
        self._quiet = 0
        self._victims: set[tuple[int, int]] = set()

    def expect(self, report: Frame) -> None:
        """Somebody waits for the end; what is to be ended may just have become more."""
        self.due = now()
        self.reports.append((self.due + DESTROY_LIMIT, report))
        self._pause = FIRST_PAUSE

    @property
    def killed(self) -> int:
        """How many processes have been killed so far."""
        return len(self._victims)

    def round(self, spared: tuple[int, ...]) -> bool:
        """Kill what one walk meets; True when nothing is left to kill. `left` are those that refuse it."""
        if self.origin is not None:
            self.origin.forget_ended()
        walk = Walk(0, None, freeze=True, origin=self.origin or Origin(spared=spared))
        killed, denied = walk.kill()
        self._victims.update((process.pid, process.start) for process in killed)
        self._quiet = self._quiet + 1 if walk.steady and not killed else 0
        self.left = [process.pid for process in denied]
        self.due = now() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE if self.reports else LONGEST_LATE_PAUSE)
        return self._quiet >= QUIET_ROUNDS and (bool(denied) or self.origin is not None)


class Root:
    """The guardians of one server by the number of their fork, and the sweeps under way."""

    def __init__(self, control: Control, wake: kernel.Wake, server: int, server_fd: int) -> None:
        self.control = control
        self.wake = wake
        self.server = server
        self.server_fd = server_fd
        self.guardians: dict[int, int] = {}  # pid -> number of its fork
        self.sweeps: list[Sweep] = []
        self.poller = select.poll()
        for fd in (wake.fd, control.fd, server_fd):
            self.poller.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Fork and watch guardians until the server is gone or wants no more.

        SIGTERM is ignored: leaving while the server lives would end all of its sessions.
        """
        while True:
            try:
                # Before the first wait: frames may have come together with the first one.
                while (frame := self.control.next()) is not None:
                    self.obey(frame)
            except ValueError:
                return
            if self.control.ended:
                return
            self.poller.modify(self.control.fd, select.POLLIN | (select.POLLOUT if self.control.pending else 0))
            ready = dict(self.poller.poll(self.rest()))
            self.wake.drain()
            self.reap()
            self.adopt()
            self.sweep()
            if self.server_fd in ready:
                return
            if self.control.fd in ready:
                self.control.flush()
                self.control.fill(with_descriptors=True)

    def obey(self, frame: Frame) -> None:
        """Do one operation. Raises ValueError for one that does not exist."""
        number = integer(frame, "id", 0, 1 << 63)
        if frame.get("op") == "fork":
            if not self.control.descriptors:
                raise ValueError("a fork order comes with a socket")
            self.fork(number, self.control.descriptors.pop(0))
        elif frame.get("op") == "kill":
            for pid, known in self.guardians.items():
                if known == number:
                    # Ours until it is reaped, so the pid is no stranger's.
                    posix.kill(pid, SIGKILL)
        elif frame.get("op") == "sweep":
            pids = frame.get("pids")
            wanted = [integer({"pid": pid}, "pid", 2, 1 << 31) for pid in pids] if isinstance(pids, list) else []
            origin = Origin(self.server, wanted, (posix.getpid(), *self.guardians))
            self.sweeps.append(Sweep(origin))
            self.sweeps[-1].expect({"ev": "swept", "id": number})
        else:
            raise ValueError("there is no such operation")

    def fork(self, number: int, socket: int) -> None:
        """Fork a guardian that serves `socket`, and report it."""
        pid, problem = None, None
        try:
            pid = posix.fork()
            if pid == 0:
                try:
                    self.become_guardian(socket)
                finally:
                    posix._exit(0)
            self.guardians[pid] = number
        except OSError as error:
            problem = in_words(error)
        posix.close(socket)
        self.control.send({"ev": "forked", "id": number, "pid": pid, "error": problem}, vital=True)

    def become_guardian(self, socket: int) -> None:
        """In the fork: be the guardian that serves `socket`. Returns when nothing is left of its child."""
        # A group of its own: a signal to the root's group must not reach it.
        posix.setpgid(0, 0)
        self.control.detach()
        posix.dup2(socket, 0)
        wake = kernel.Wake()
        kernel.close_all_but({0, 1, 2, self.server_fd, wake.fd, wake.writer})
        control = Control(0)
        guard(control, wake, self.server_fd)
        control.finish(FLUSH_LIMIT)

    def reap(self) -> None:
        """Reap guardians that have ended; they are reported when what they left behind is gone, too."""
        for pid in list(self.guardians):
            result = reap(pid)
            if result is None or result[0]:
                code = result[1] if result is not None else None
                self.own().expect({"ev": "reaped", "id": self.guardians.pop(pid), "code": code})

    def own(self) -> Sweep:
        """The one sweep of the orphans of this process."""
        for sweep in self.sweeps:
            if sweep.origin is None:
                return sweep
        self.sweeps.append(Sweep(None))
        return self.sweeps[-1]

    def adopt(self) -> None:
        """Sweep orphans that no report waits for: one sweep may have met what still refused to be killed."""
        if self.orphans():
            self.own()

    def orphans(self) -> list[int]:
        """Children that are no guardians: what a killed one left behind. Those that have ended are reaped."""
        found = []
        for pid in kernel.own_children():
            if pid not in self.guardians:
                ended = reap(pid)
                if ended is not None and not ended[0]:
                    found.append(pid)
        return found

    def rest(self) -> float | None:
        """Milliseconds until a round is due; None without a sweep."""
        return max(min(sweep.due for sweep in self.sweeps) - now(), 0) * 1000 if self.sweeps else None

    def sweep(self) -> None:
        """Do the rounds that are due, and report what is over, or has taken DESTROY_LIMIT.

        The root's own sweep goes on after that, ever slower.
        """
        for sweep in [sweep for sweep in self.sweeps if sweep.due <= now()]:
            if sweep.origin is None and not self.orphans():
                sweep.left, over = [], True
            else:
                over = sweep.round(tuple(self.guardians))
            told = [report for until, report in sweep.reports if over or until < now()]
            for report in told:
                self.control.send(report | {"killed": sweep.killed, "left": sweep.left}, vital=True)
            sweep.reports = [pair for pair in sweep.reports if pair[1] not in told]
            if over or (sweep.origin is not None and not sweep.reports):
                self.sweeps.remove(sweep)
        if not self.sweeps:
            kernel.rejoin_crowd()

    def leave(self) -> None:
        """Let the guardians clean up, then end them, then all that is left."""
        deadline = now() + LEAVE_LIMIT
        while self.guardians and now() < deadline:
            for pid in self.guardians:
                posix.kill(pid, SIGCONT)
            self.wait()
        for pid in self.guardians:
            posix.kill(pid, SIGKILL)
        while self.guardians:
            self.wait()
        self.adopt()
        while self.sweeps:
            self.wait()
        self.control.finish(FLUSH_LIMIT)

    def wait(self) -> None:
        """Wait for the end of a guardian or the next round, and do what is then to be done."""
        waiting = select.poll()
        waiting.register(self.wake.fd, select.POLLIN)
        rest = self.rest()
        waiting.poll(CONTINUE_STEP * 1000 if rest is None else min(rest, CONTINUE_STEP * 1000))
        self.wake.drain()
        self.reap()
        self.sweep()


def open_root(control: Control, wake: kernel.Wake) -> Root | None:
    """Wait for the first frame; None when the server goes away first or is not this process's parent.

    Raises ValueError for a frame that is no beginning, OSError where there are no pidfds.
    """
    poller = select.poll()
    poller.register(control.fd, select.POLLIN)
    deadline = now() + HELLO_WAIT
    while (seconds := deadline - now()) > 0 and not control.ended:
        poller.poll(seconds * 1000)
        control.fill(with_descriptors=True)
        frame = control.next()
        if frame is None:
            continue
        if frame.get("op") != "root" or frame.get("v") != 1:
            raise ValueError("the first frame is not a root order of version 1")
        server = integer(frame, "server", 1, 1 << 31)
        server_fd = kernel.open_pidfd(server)
        # Checked after the pidfd was opened: so it is the server's, not that of a stranger with a recycled pid.
        if server_fd is None or posix.getppid() != server:
            return None
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        # Stopped by somebody, it would not see the end of the server, which this signal then shows it.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, SIGCONT)
        return Root(control, wake, server, server_fd)
    return None


def main() -> None:
    """Be the root guardian of the process that holds the other end of descriptor 0, then leave the process."""
    try:
        kernel.close_all_but({0, 1, 2})
        control = Control(0)
        root = open_root(control, kernel.Wake())
        if root is not None:
            try:
                root.serve()
            finally:
                # Also after a fault of our own: leaving now would set free what a guardian could not end.
                root.leave()
    finally:
        posix._exit(0)
