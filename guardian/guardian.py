"""The guardian: starts one child for a server, signals it, and leaves nothing of it behind.

Run as a process of its own: `python -I -S -c "...; import guardian; guardian.main()" FOLDER`, with an AF_UNIX stream
socket on descriptor 0. It needs the standard library alone and never imports the server.

The operations and records are in `docs/guardian.md`: the `spawn` order (`guardian_wire.Order`) with the child's
descriptors comes first; anything malformed is taken as the end of the lifeline.

The lifeline is watched twice: the socket's EOF and the server's pidfd (macOS: a kernel queue). The second one still
works when another process holds a copy of the socket. When either closes, everything the child ever started is killed
and reaped.
"""

import posix
import select

import guardian_kernel as kernel
from guardian_kernel import now
from guardian_spawn import give_mark, in_words, launch, read_error
from guardian_tree import Tree
from guardian_wire import SIGNAL_LIMIT, TARGETS, Control, Frame, Order, integer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIGCONT, SIGKILL
else:
    from _signal import SIGCONT, SIGKILL

ORDER_WAIT = 30.0
"""Seconds for the spawn order to come; a server that died before it could send one may not be seen otherwise."""

PARENT_POLL = 0.25
"""Seconds between two looks at the parent's pid where nothing tells of its end."""

LISTED_STEP = 0.025
"""Seconds between two looks, before a kill, at what must be listed to be seen: its end wakes nobody here."""

FLUSH_LIMIT = 1.0
"""Seconds for the last frames to be taken by a server that is slow to read."""

PROCESSES_SHOWN = 30_000
"""Processes in one answer to `ps`, so that it stays below the frame limit."""


class Guardian:
    """One child and its lifeline, from the fork to the last record; `tree` is the child with its descendants."""

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
        # What may catch the guardian while it is stopped: the end of the server, or of the root, continues it.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, SIGCONT)
        self.deaf = False
        self.poller = select.poll()
        self.poller.register(wake.fd, select.POLLIN)
        self.poller.register(control.fd, select.POLLIN)
        if server_fd is not None:
            self.poller.register(server_fd, select.POLLIN)
        mark = None if self.subreaper else give_mark(order)
        child, self.errors = launch(order)
        self.tree = Tree(child, mark, wake, self.note_exit)
        if self.tree.peek.fd is not None:
            self.poller.register(self.tree.peek.fd, select.POLLIN)

    def start(self) -> bool:
        """Wait for exec and report it; False when there is no child, which is then already reaped."""
        error = read_error(self.errors, self.control.fd, self.server_fd)
        pid = self.tree.child
        if error is not None:
            posix.waitpid(pid, 0)
            self.tree.reaped = True
        catching, faults = kernel_faults(pid if error is None else None, subreaper=self.subreaper)
        report_start(self.control, pid if error is None else None, error, subreaper=catching, faults=faults)
        return error is None

    def watch(self) -> str | None:
        """Serve until the child has exited (None) or must end: "eof", "pidfd", "sigterm" or "stop"."""
        while True:
            reason = self.listen(None)
            self.tree.reap_adopted()
            if reason is not None or self.tree.code is not None:
                return reason

    def listen(self, seconds: float | None) -> str | None:
        """Wait for one event, at most so long, and act on it; returns why the child must end, None if it need not."""
        if not self.deaf:
            self.poller.modify(self.control.fd, select.POLLIN | (select.POLLOUT if self.control.pending else 0))
        if self.server_fd is None and not self.deaf:
            seconds = PARENT_POLL if seconds is None else min(seconds, PARENT_POLL)
        if self.wake.terminated:
            seconds = 0  # its byte may have been drained
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
            self.control.send({"ev": "ps", "id": number, "pids": self.tree.descendants()[:PROCESSES_SHOWN]})
        elif frame.get("op") == "signal" and frame.get("to") in TARGETS:
            signal = integer(frame, "sig", 0, SIGNAL_LIMIT)
            since = integer({"since": 0, **frame}, "since", 0, 1 << 63)
            after = integer({"after": 0, **frame}, "after", 0, 1 << 31)
            count = self.tree.signal(str(frame["to"]), signal, kernel.Moment(since, after))
            self.control.send({"ev": "signalled", "id": number, "n": count})
        else:
            raise ValueError("there is no such operation")

    def note_exit(self, code: int) -> None:
        """Report the child's exit code."""
        self.control.send({"ev": "exit", "code": code}, vital=True)

    def finish(self, reason: str | None) -> None:
        """End everything that is left, as the order says for this reason, and write the last record."""
        began = now()
        self.tree.reap_adopted()
        if reason in ("eof", "pidfd"):
            self.stop_listening()
        if reason != "stop":
            self.climb(self.leftover if reason is None else self.orphan)
        left = self.tree.destroy(self.server_lives)
        milliseconds = round((now() - began) * 1000, 1)
        record: Frame = {"ev": "clean", "killed": self.tree.killed, "left": left, "ms": milliseconds, "why": reason}
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
            if number == SIGKILL or not self.tree.alive():
                return
            self.tree.signal_walked(None, number)
            deadline = now() + milliseconds / 1000
            while (seconds := deadline - now()) > 0:
                if self.listen(seconds if self.tree.table is None else min(seconds, LISTED_STEP)) is not None:
                    return
                self.tree.reap_adopted()
                if not self.tree.alive():
                    return


def kernel_faults(child: int | None, *, subreaper: bool) -> tuple[bool, list[str]]:
    """(whether every orphan comes back and can be found, what the kernel withholds: sentences that name the fix)."""
    hidden = child is not None and kernel.PROC and kernel.read_process(child) is None
    if subreaper and kernel.PIDFDS and kernel.CHILDREN_FILES and not hidden:
        return True, []
    import guardian_facts as facts  # only here: most kernels withhold nothing

    return subreaper and kernel.PROC and not hidden, facts.faults(subreaper=subreaper, hidden=hidden)


def report_start(
    control: Control, pid: int | None, error: str | None, *, subreaper: bool, faults: list[str] | None = None
) -> None:
    """Send the answer to the spawn order."""
    record: Frame = {"ev": "spawned", "pid": pid, "guardian": posix.getpid(), "subreaper": subreaper, "error": error}
    record["faults"] = faults or []
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
            server_fd = kernel.watch_death(order.server)
            if posix.getppid() != order.server:
                # Checked after the watch has begun: so it is the server's, not that of a stranger with a recycled pid.
                return
        guardian = Guardian(control, wake, order, server_fd, direct=direct)
    except (ValueError, OSError) as error:
        report_start(control, None, in_words(error), subreaper=False)
        return
    del order
    reason: str | None = "fault"
    try:
        if not guardian.start():
            return
        reason = guardian.watch()
    finally:
        # Also after a fault of our own: leaving now would set free whatever has detached itself from the child.
        if not guardian.tree.reaped or reason != "fault":
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
