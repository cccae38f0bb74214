"""The guardian: starts one child for a server, signals it, and leaves nothing of it behind.

Run as a process of its own: `python -I -S -c "...; import guardian; guardian.main()" FOLDER`, with an AF_UNIX stream
socket on descriptor 0. It needs the standard library alone and never imports the server.

The operations and records are in `docs/guardian.md`: the `spawn` order (`guardian_wire.Order`) with the child's
descriptors comes first; anything malformed is taken as the end of the lifeline.

The lifeline is watched twice: the socket's EOF and the server's pidfd. The second one still works when another process
holds a copy of the socket. When either closes, everything the child ever started is killed and reaped.
"""

import posix
import select

import guardian_kernel as kernel
from guardian_kernel import now
from guardian_reap import ExitPeek, reap
from guardian_spawn import launch, read_error
from guardian_wire import SIGNAL_LIMIT, TARGETS, Control, Frame, Order, integer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIGCONT, SIGKILL, SIGTERM
else:
    from _signal import SIGCONT, SIGKILL, SIGTERM

ORDER_WAIT = 30.0
"""Seconds for the spawn order to come; a server that died before it could send one may not be seen otherwise."""

PARENT_POLL = 0.25
"""Seconds between two looks at the parent's pid where there are no pidfds."""

KILL_ROUND_LIMIT = 1.0
"""Seconds for killing a part of the tree on request; the server waits for the acknowledgement."""

DESTROY_LIMIT = 10.0
"""Seconds for killing everything before the rest is reported as left; goes on while the server is gone."""

FIRST_PAUSE, LONGEST_PAUSE, LONGEST_LATE_PAUSE = 0.0002, 0.01, 1.0
"""Seconds between two kill rounds, doubling: the first, the longest, and the longest after DESTROY_LIMIT."""

QUIET_ROUNDS = 2
"""Kill rounds in a row without a living target, a move or a death, after which there is none.

One is not enough: a process that forks and exits can slip from a list not yet read into one that was read before. After
that it is the guardian's own, and each further step leaves a zombie to reap.
"""

FLUSH_LIMIT = 1.0
"""Seconds for the last frames to be taken by a server that is slow to read."""

PROCESSES_SHOWN = 30_000
"""Processes in one answer to `ps`, so that it stays below the frame limit."""


class Guardian:
    """One child with all its descendants, from the fork to the last reaping.

    The child stays an unreaped zombie until the end of `finish`, so that the number of its group cannot be given away.
    """

    def __init__(
        self, control: Control, wake: kernel.Wake, order: Order, server_fd: int | None, *, direct: bool
    ) -> None:
        self.control = control
        self.wake = wake
        self.server = order.server
        self.server_fd = server_fd
        self.direct = direct
        self.orphan = order.orphan
        self.leftover = order.leftover
        self.subreaper = kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        self.code: int | None = None
        self.reaped = False
        self.reaps = 0
        self.killed = 0
        self.deaf = False
        self.poller = select.poll()
        self.poller.register(wake.fd, select.POLLIN)
        self.poller.register(control.fd, select.POLLIN)
        if server_fd is not None:
            self.poller.register(server_fd, select.POLLIN)
        self.child, self.errors = launch(order)
        self.peek = ExitPeek(self.child)

    def start(self) -> bool:
        """Wait for exec and report it; False when there is no child, which is then already reaped."""
        error = read_error(self.errors, self.control.fd, self.server_fd)
        if error is not None:
            posix.waitpid(self.child, 0)
            self.reaped = True
        pid = self.child if error is None else None
        report_start(self.control, pid, error, subreaper=self.subreaper)
        return error is None

    def watch(self) -> str | None:
        """Serve until the child has exited (None) or must end: "eof", "pidfd", "sigterm" or "stop"."""
        while True:
            reason = self.listen(None)
            self.reap_adopted()
            if reason is not None or self.code is not None:
                return reason

    def listen(self, seconds: float | None) -> str | None:
        """Wait for one event, at most so long, and act on it; returns why the child must end, None if it need not."""
        if not self.deaf:
            self.poller.modify(self.control.fd, select.POLLIN | (select.POLLOUT if self.control.pending else 0))
        if self.server_fd is None and not self.deaf:
            seconds = PARENT_POLL if seconds is None else min(seconds, PARENT_POLL)
        ready = dict(self.poller.poll(None if seconds is None else seconds * 1000))
        if self.wake.fd in ready:
            self.wake.drain()
        reason = self.read(ready[self.control.fd]) if self.control.fd in ready else None
        if reason is None and not self.deaf and (self.server_fd in ready or self.orphaned()):
            reason = "pidfd"
        if reason is None and self.wake.terminated:
            self.wake.terminated = False
            reason = "sigterm"
        return reason

    def orphaned(self) -> bool:
        """Whether the parent is no longer the server. Says nothing below a root guardian, which may die alone."""
        return self.direct and posix.getppid() != self.server

    def server_lives(self) -> bool:
        """Whether the server process is there."""
        if self.server_fd is None:
            return not self.orphaned()
        return not kernel.readable(self.server_fd)

    def read(self, events: int) -> str | None:
        """Take and serve frames; returns "stop" or "eof" (also for what nobody could have meant), None otherwise."""
        self.control.flush()
        if events & ~select.POLLOUT:
            self.control.fill()
        try:
            while (frame := self.control.next()) is not None:
                if frame.get("op") == "stop":
                    integer(frame, "id", 0, 1 << 63)
                    return "stop"
                self.serve(frame)
        except ValueError:
            return "eof"
        return "eof" if self.control.ended else None

    def serve(self, frame: Frame) -> None:
        """Do one operation and acknowledge it. Raises ValueError for one that does not exist."""
        number = integer(frame, "id", 0, 1 << 63)
        if frame.get("op") == "ps":
            self.control.send({"ev": "ps", "id": number, "pids": self.descendants()[:PROCESSES_SHOWN]})
        elif frame.get("op") == "signal" and frame.get("to") in TARGETS:
            signal = integer(frame, "sig", 0, SIGNAL_LIMIT)
            since = integer({"since": 0, **frame}, "since", 0, 1 << 63)
            after = integer({"after": 0, **frame}, "after", 0, 1 << 31)
            count = self.signal(str(frame["to"]), signal, kernel.Moment(since, after))
            self.control.send({"ev": "signalled", "id": number, "n": count})
        else:
            raise ValueError("there is no such operation")

    def descendants(self) -> list[list[int]]:
        """[pid, start in clock ticks] of every living process but the child."""
        living = self.walk(None).living
        return [[process.pid, process.start] for process in living if process.pid != self.child]

    def signal(self, target: str, number: int, since: kernel.Moment) -> int:
        """Signal the child, its group, the run that began at that moment, or the tree; returns how many got it."""
        if target == "child":
            if self.code is not None or self.reaped:
                return 0
            return 1 if send_child(self.child, number) else 0
        if target == "group":
            members = sum(process.group == self.child for process in self.walk(None).living)
            sent = not self.reaped and kernel.send_group(self.child, number)
            return (members if kernel.PROC else 1) if sent else 0
        return self.signal_walked(since if target == "run" else None, number)

    def signal_walked(self, since: kernel.Moment | None, number: int) -> int:
        """Signal a target that is found by walking. SIGKILL goes on until none of it lives, or its bound has passed."""
        if not kernel.PROC and since is None:
            return 1 if not self.reaped and kernel.send_group(self.child, number) else 0
        if number == SIGKILL:
            return self.kill_walked(since)
        walk = self.walk(since)
        sent = walk.send(number)
        if number == SIGTERM and since is None:
            # A stopped process would keep the signal pending until it is killed.
            walk.send(SIGCONT)
        return sent

    def walk(self, since: kernel.Moment | None, *, freeze: bool = False) -> kernel.Walk:
        """One pass over the run that began at that moment, or over the whole tree."""
        return kernel.Walk(self.child, since, freeze=freeze)

    def kill_walked(self, since: kernel.Moment | None) -> int:
        """SIGKILL a target in rounds until no process of it lives that may be killed; returns how many were."""
        deadline = now() + KILL_ROUND_LIMIT
        pause = FIRST_PAUSE
        quiet = 0
        victims: set[tuple[int, int]] = set()
        while quiet < QUIET_ROUNDS and now() < deadline:
            reaped = self.reaps
            walk = self.walk(since, freeze=True)
            killed, _ = walk.kill()
            victims.update((process.pid, process.start) for process in killed)
            self.reap_adopted()
            quiet = quiet + 1 if walk.steady and not killed and reaped == self.reaps else 0
            kernel.pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        return len(victims)

    def reap_adopted(self) -> None:
        """Reap every ended process but the child, whose exit is only noted and reported."""
        while not self.reaped and (ended := self.peek.next()) is not None:
            pid, code = ended
            if pid != self.child:
                self.reap_one(pid)
                continue
            self.note_exit(code)
            for other in kernel.own_children():
                # The child's zombie hides the others from the peek.
                if other != self.child:
                    self.reap_one(other)
            return

    def note_exit(self, code: int) -> None:
        """Report the child's exit code, once."""
        if self.code is None:
            self.code = code
            self.control.send({"ev": "exit", "code": code}, vital=True)

    def finish(self, reason: str | None) -> None:
        """End everything that is left, as the order says for this reason, and write the last record."""
        began = now()
        self.reap_adopted()
        if reason in ("eof", "pidfd"):
            self.stop_listening()
        if reason != "stop":
            self.climb(self.leftover if reason is None else self.orphan)
        left = self.destroy()
        milliseconds = round((now() - began) * 1000, 1)
        record: Frame = {"ev": "clean", "killed": self.killed, "left": left, "ms": milliseconds, "why": reason}
        self.control.send(record, vital=True)
        self.control.finish(FLUSH_LIMIT)

    def stop_listening(self) -> None:
        """Stop watching the lifeline: closed, it would be ready for ever and turn each wait into a busy loop."""
        self.deaf = True
        self.poller.unregister(self.control.fd)
        if self.server_fd is not None:
            self.poller.unregister(self.server_fd)

    def climb(self, steps: list[tuple[int, int]]) -> None:
        """Signal the tree step by step, until nothing is left, a stronger reason comes, or it is time to destroy."""
        for number, milliseconds in steps:
            if number == SIGKILL or not self.alive():
                return
            self.signal_walked(None, number)
            deadline = now() + milliseconds / 1000
            while (seconds := deadline - now()) > 0:
                if self.listen(seconds) is not None:
                    return
                self.reap_adopted()
                if not self.alive():
                    return

    def alive(self) -> bool:
        """Whether any process of the tree lives; without process lists, whether the child does."""
        if not kernel.PROC:
            return self.code is None
        return bool(self.walk(None).living)

    def destroy(self) -> list[int]:
        """Kill and reap everything; returns the pids that are still there, [] when the kernel says that none is.

        A pid that refuses the kill (another user's) is not waited for. With the server alive the rest is given up after
        DESTROY_LIMIT; with the server gone nobody else would end it, so the rounds go on, ever slower.
        """
        deadline = now() + DESTROY_LIMIT
        pause = FIRST_PAUSE
        quiet = 0
        if self.subreaper:
            kernel.send_group(self.child, SIGKILL)
        while True:
            reaped = self.reaps
            walk = self.walk(None, freeze=True)
            killed, denied = walk.kill()
            if not self.reaped:
                # Without a subreaper only after the walk: the group's orphans are lost to it.
                kernel.send_group(self.child, SIGKILL)
            if self.reap_all():
                return []
            left = [process.pid for process in denied]
            late = now() > deadline
            quiet = quiet + 1 if walk.steady and not killed and reaped == self.reaps else 0
            if (left and quiet == QUIET_ROUNDS) or (self.reaped and not (self.subreaper and kernel.PROC)):
                return left
            if late and self.server_lives():
                return left + [process.pid for process in killed]
            kernel.pause(pause)
            pause = min(pause * 2, LONGEST_LATE_PAUSE if late else LONGEST_PAUSE)

    def reap_one(self, pid: int) -> tuple[int, int] | None:
        """`reap`, counted."""
        ended = reap(pid)
        if ended is not None and ended[0]:
            self.reaps += 1
        return ended

    def reap_all(self) -> bool:
        """Reap what has ended, the child included; True when no child of any kind is left."""
        while (ended := self.reap_one(-1)) is not None:
            pid, code = ended
            if pid == 0:
                return False
            if code == -SIGKILL and not (pid == self.child and self.code is not None):
                self.killed += 1
            if pid == self.child:
                self.reaped = True
                self.note_exit(code)
        return True


def send_child(child: int, number: int) -> bool:
    """Signal the unreaped child; False when it may not be signalled any more (it changed its user)."""
    try:
        posix.kill(child, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def report_start(control: Control, pid: int | None, error: str | None, *, subreaper: bool) -> None:
    """Send the answer to the spawn order."""
    record: Frame = {"ev": "spawned", "pid": pid, "guardian": posix.getpid(), "subreaper": subreaper, "error": error}
    control.send(record, vital=True)


def receive_order(control: Control, wake: kernel.Wake) -> Order | None:
    """Wait for the spawn order; None when the server goes away first. Raises ValueError when it is malformed."""
    poller = select.poll()
    poller.register(control.fd, select.POLLIN)
    poller.register(wake.fd, select.POLLIN)
    deadline = now() + ORDER_WAIT
    while (seconds := deadline - now()) > 0 and not wake.terminated and not control.ended:
        ready = dict(poller.poll(seconds * 1000))
        if wake.fd in ready:
            wake.drain()
        if control.fd in ready:
            control.fill(with_descriptors=True)
            frame = control.next()
            if frame is not None:
                return Order(frame, control.descriptors)
    return None


def guard(control: Control, wake: kernel.Wake, server_fd: int | None = None) -> None:
    """Receive the order, start the child and stay until nothing of it is left.

    `server_fd` is the server's pidfd, given by a root guardian; without it the server is this process's parent.
    """
    direct = server_fd is None
    try:
        order = receive_order(control, wake)
        if order is None:
            return
        if direct:
            server_fd = kernel.open_pidfd(order.server)
            if posix.getppid() != order.server:
                # Checked after the pidfd was opened: so it is the server's, not that of a stranger with a recycled pid.
                return
        guardian = Guardian(control, wake, order, server_fd, direct=direct)
    except (ValueError, OSError) as error:
        report_start(control, None, f"{type(error).__name__}: {error}", subreaper=False)
        return
    del order
    reason: str | None = "fault"
    try:
        if not guardian.start():
            return
        reason = guardian.watch()
    finally:
        # Also after a fault of our own: leaving now would set free whatever has detached itself from the child.
        if not guardian.reaped:
            guardian.finish(reason)


def main() -> None:
    """Be the guardian of the process that holds the other end of descriptor 0, then leave the process."""
    try:
        kernel.close_all_but({0, 1, 2})
        control = Control(0)
        guard(control, kernel.Wake())
        control.finish(FLUSH_LIMIT)
    finally:
        # At once, without the interpreter's own clean-up: it costs a millisecond and there is nothing to clean.
        posix._exit(0)
