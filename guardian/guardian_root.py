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
from guardian import DESTROY_LIMIT, FIRST_PAUSE, FLUSH_LIMIT, LONGEST_LATE_PAUSE, LONGEST_PAUSE, QUIET_ROUNDS, guard
from guardian_kernel import now
from guardian_reap import reap
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


class Root:
    """The guardians of one server by the number of their fork."""

    def __init__(self, control: Control, wake: kernel.Wake, server: int, server_fd: int) -> None:
        self.control = control
        self.wake = wake
        self.server = server
        self.server_fd = server_fd
        self.guardians: dict[int, int] = {}  # pid -> number of its fork
        self.poller = select.poll()
        for fd in (wake.fd, control.fd, server_fd):
            self.poller.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Fork and watch guardians until the server is gone or wants no more."""
        while not self.wake.terminated:
            try:
                # Before the first wait: frames may have come together with the first one.
                while (frame := self.control.next()) is not None:
                    self.obey(frame)
            except ValueError:
                return
            if self.control.ended:
                return
            self.poller.modify(self.control.fd, select.POLLIN | (select.POLLOUT if self.control.pending else 0))
            ready = dict(self.poller.poll())
            self.wake.drain()
            self.reap()
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
            killed, left = self.sweep(kernel.Origin(self.server, wanted, (posix.getpid(), *self.guardians)))
            self.control.send({"ev": "swept", "id": number, "killed": killed, "left": left}, vital=True)
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
            problem = f"{type(error).__name__}: {error}"
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
        """Reap guardians that have ended, then end what they left behind, then report them."""
        ended = []
        for pid in list(self.guardians):
            result = reap(pid)
            if result is None or result[0]:
                ended.append((self.guardians.pop(pid), result[1] if result is not None else None))
        killed, left = self.sweep()
        for number, code in ended:
            record: Frame = {"ev": "reaped", "id": number, "code": code, "killed": killed, "left": left}
            self.control.send(record, vital=True)

    def orphans(self) -> list[int]:
        """Children that are no guardians: what a killed one left behind. Those that have ended are reaped."""
        found = []
        for pid in kernel.own_children():
            if pid not in self.guardians:
                ended = reap(pid)
                if ended is not None and not ended[0]:
                    found.append(pid)
        return found

    def sweep(self, origin: kernel.Origin | None = None) -> tuple[int, list[int]]:
        """Kill what `origin` names, or all orphans, with their descendants: (how many, pids that may not be killed).

        Orphans are reaped too. Without any, which is the rule, this reads one small file. While the server is alive it
        ends after DESTROY_LIMIT, so that the guardians of other sessions are served.
        """
        deadline = now() + DESTROY_LIMIT
        pause = FIRST_PAUSE
        quiet = 0
        victims: set[tuple[int, int]] = set()
        while origin is not None or self.orphans():
            if origin is not None:
                origin.forget_ended()
            walk = kernel.Walk(0, None, freeze=True, origin=origin or kernel.Origin(spared=tuple(self.guardians)))
            killed, denied = walk.kill()
            victims.update((process.pid, process.start) for process in killed)
            quiet = quiet + 1 if walk.steady and not killed else 0
            late = now() > deadline
            if quiet == QUIET_ROUNDS and (denied or origin is not None):
                return len(victims), [process.pid for process in denied]
            if late and not kernel.readable(self.server_fd):
                return len(victims), [process.pid for process in denied]
            kernel.pause(pause)
            pause = min(pause * 2, LONGEST_LATE_PAUSE if late else LONGEST_PAUSE)
        return len(victims), []

    def leave(self) -> None:
        """Let the guardians clean up, then end them, then all that is left."""
        waiting = select.poll()
        waiting.register(self.wake.fd, select.POLLIN)
        deadline = now() + LEAVE_LIMIT
        while self.guardians and now() < deadline:
            for pid in self.guardians:
                posix.kill(pid, SIGCONT)
            waiting.poll(CONTINUE_STEP * 1000)
            self.wake.drain()
            self.reap()
        for pid in self.guardians:
            posix.kill(pid, SIGKILL)
        while self.guardians:
            waiting.poll(CONTINUE_STEP * 1000)
            self.wake.drain()
            self.reap()
        self.sweep()
        self.control.finish(FLUSH_LIMIT)


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
