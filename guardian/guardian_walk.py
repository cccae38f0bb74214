"""One pass over what descends from a guardian, on systems where orphans come back to it."""

import posix

import guardian_kernel as kernel
from guardian_kernel import CROWD, GONE, SENT, Moment, Process, outrank_crowd, read_process, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIGKILL, SIGSTOP
else:
    from _signal import SIGKILL, SIGSTOP


class Origin:
    """Where a walk begins: at the children of `parent` (this process), all of them or those named, but the `spared`."""

    def __init__(self, parent: int = 0, children: list[int] | None = None, spared: tuple[int, ...] = ()) -> None:
        self.parent = parent or posix.getpid()
        self.children = children
        self.spared = spared

    def forget_ended(self) -> None:
        """Drop the named children that are gone: a walk would take each for one that moves, and never find rest."""
        if self.children is not None:
            found = [(pid, read_process(pid)) for pid in self.children]
            self.children = [pid for pid, process in found if process is not None and process.parent == self.parent]


class Walk:
    """One pass over a target: the processes met, parents before children, and what was seen on the way.

    `since` None means the tree: the child and all its descendants, adopted ones included. A moment means the run: every
    descendant except the child that started later, and the descendants of those; but not what a process from before
    that moment has started (a server that an earlier cell left running serves on). `freeze` stops
    each process of the target before its children are listed, so that one pass meets what a forking process would hide.

    `known` holds the pids that may be the parent of a target. `steady` is false when something ended or moved during
    the pass: a process that forks and exits all the time may then have been in none of the lists.
    """

    def __init__(self, child: int, since: Moment | None, *, freeze: bool, origin: "Origin | None" = None) -> None:
        self.origin = origin or Origin()
        self.known = {self.origin.parent, *self.origin.spared}
        self.met: list[Process] = []
        self.steady = True
        self._table = None if kernel.CHILDREN_FILES else kernel.scan_parents() if kernel.PROC else {}
        # What is known of a branch: True, it belongs to the target; False, it does not; None, its processes decide.
        queue: list[tuple[int, bool | None]] = [(self.origin.parent, None if since else True)]
        for parent, branch in queue:
            for process in self._children(parent):
                chosen = branch
                if branch is None and since is not None and process.pid != child:
                    chosen = since.before(process)
                if chosen:
                    self.met.append(process)
                    if freeze and process.live:
                        send(process, SIGSTOP, self.known)
                if process.live:
                    # A zombie has no children: they moved to another parent before it became one.
                    queue.append((process.pid, chosen))

    def _children(self, parent: int) -> list[Process]:
        found: list[Process] = []
        if parent == self.origin.parent and self.origin.children is not None:
            pids = self.origin.children
        else:
            pids = kernel.children(parent) if self._table is None else self._table.get(parent, [])
        for pid in pids:
            if pid in self.known:
                continue
            process = read_process(pid)
            if process is None or process.parent not in self.known:
                self.steady = False
                continue
            self.known.add(pid)
            found.append(process)
        return found

    @property
    def living(self) -> list[Process]:
        """The processes met that were not zombies."""
        return [process for process in self.met if process.live]

    def send(self, number: int) -> int:
        """Signal the living, parents first; returns how many got it."""
        return sum(send(process, number, self.known) == SENT for process in self.living)

    def kill(self) -> tuple[list[Process], list[Process]]:
        """SIGKILL the living; returns those that got it and those that refused it (another user's).

        Children first: the death of a stopped parent would move its children, without a subreaper out of reach.
        """
        if len(self.met) >= CROWD:
            outrank_crowd()
        killed: list[Process] = []
        denied: list[Process] = []
        for process in reversed(self.living):
            result = send(process, SIGKILL, self.known)
            if result == GONE:
                self.steady = False
            else:
                (killed if result == SENT else denied).append(process)
        return killed, denied
