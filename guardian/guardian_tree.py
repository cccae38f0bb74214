"""A child with all its descendants: who gets a signal, who is listed, and how all of it is killed and reaped."""

import posix

import guardian_kernel as kernel
from guardian_kernel import now
from guardian_reap import ExitPeek, reap
from guardian_walk import Walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import SIGCONT, SIGKILL, SIGTERM

    from guardian_table import Survey
else:
    from _signal import SIGCONT, SIGKILL, SIGTERM

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


class Tree:
    """One child with its descendants, from the fork to the last reaping.

    The child stays an unreaped zombie until the end of `destroy`, so that the number of its group cannot be given away.
    `mark` is what its environment carries where orphans do not come back to this process, None where they do.
    """

    def __init__(self, child: int, mark: bytes | None, wake: kernel.Wake, exited: "Callable[[int], None]") -> None:
        self.child = child
        self.code: int | None = None
        self.reaped = False
        self.reaps = 0
        self.killed = 0
        self.peek = ExitPeek(child)
        self._wake = wake
        self._exited = exited
        self.table = None
        if mark is not None:
            # Only here: most guardians never need it.
            from guardian_table import Table

            self.table = Table(child, mark)

    # -- finding and signalling ------------------------------------------------------------------------------------

    def walk(self, since: kernel.Moment | None, *, freeze: bool = False) -> "Walk | Survey":
        """One pass over the run that began at that moment, or over the whole tree."""
        if self.table is None:
            return Walk(self.child, since, freeze=freeze)
        from guardian_table import Survey

        self.table.grouped = not self.reaped
        survey = Survey(self.table, since, freeze=freeze)
        # The end of each ps was a signal as well: left in the pipe, it would turn each wait into a busy loop.
        self._wake.drain()
        self.reap_adopted()
        return survey

    @property
    def listed(self) -> bool:
        """Whether processes can be listed at all; without, only the child and its group are reached."""
        return kernel.PROC if self.table is None else self.table.readable

    def descendants(self) -> list[list[int]]:
        """[pid, start] of every living process but the child."""
        living = self.walk(None).living
        return [[process.pid, process.start] for process in living if process.pid != self.child]

    def alive(self) -> bool:
        """Whether any process of the tree lives; without process lists, whether the child does."""
        living = self.walk(None).living
        return bool(living) if self.listed else self.code is None

    def signal(self, target: str, number: int, since: kernel.Moment) -> int:
        """Signal the child, its group, the run that began at that moment, or the tree; returns how many got it."""
        if target == "child":
            if self.code is not None or self.reaped:
                return 0
            return 1 if send_child(self.child, number) else 0
        if target == "group":
            members = sum(process.group == self.child for process in self.walk(None).living)
            sent = not self.reaped and kernel.send_group(self.child, number)
            return (members if self.listed else 1) if sent else 0
        return self.signal_walked(since if target == "run" else None, number)

    def signal_walked(self, since: kernel.Moment | None, number: int) -> int:
        """Signal a target that is found by walking. SIGKILL goes on until none of it lives, or its bound has passed."""
        if number == SIGKILL:
            return self._kill_walked(since)
        walk = self.walk(since)
        if not self.listed and since is None:
            return 1 if not self.reaped and kernel.send_group(self.child, number) else 0
        sent = walk.send(number)
        if number == SIGTERM and since is None:
            # A stopped process would keep the signal pending until it is killed.
            walk.send(SIGCONT)
        return sent

    # -- killing ---------------------------------------------------------------------------------------------------

    def _kill_walked(self, since: kernel.Moment | None) -> int:
        """SIGKILL a target in rounds until no process of it lives that may be killed; returns how many were."""
        try:
            return self._kill_in_rounds(since)
        finally:
            kernel.rejoin_crowd()

    def _kill_in_rounds(self, since: kernel.Moment | None) -> int:
        deadline = now() + KILL_ROUND_LIMIT
        pause = FIRST_PAUSE
        quiet = 0
        victims: set[tuple[int, int]] = set()
        while quiet < QUIET_ROUNDS and now() < deadline:
            reaped = self.reaps
            walk = self.walk(since, freeze=True)
            if not self.listed and since is None:
                return 1 if not self.reaped and kernel.send_group(self.child, SIGKILL) else 0
            killed, _ = walk.kill()
            victims.update((process.pid, process.start) for process in killed)
            self.reap_adopted()
            quiet = quiet + 1 if walk.steady and not killed and reaped == self.reaps else 0
            kernel.pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        return len(victims)

    def destroy(self, server_lives: "Callable[[], bool]") -> list[int]:
        """Kill and reap everything; returns the pids that are still there, [] when none is.

        A pid that refuses the kill (another user's) is not waited for. With the server alive the rest is given up after
        DESTROY_LIMIT; with the server gone nobody else would end it, so the rounds go on, ever slower.
        """
        deadline = now() + DESTROY_LIMIT
        pause = FIRST_PAUSE
        quiet = 0
        victims: set[tuple[int, int]] = set()
        if self.table is None:
            kernel.send_group(self.child, SIGKILL)
        while True:
            reaped = self.reaps
            walk = self.walk(None, freeze=True)
            killed, denied = walk.kill()
            victims.update((process.pid, process.start) for process in killed)
            if not self.reaped:
                # Without a subreaper only after the walk: the group's orphans are lost to it.
                kernel.send_group(self.child, SIGKILL)
            if self.table is None and self.reap_all():
                return []
            left = [process.pid for process in denied]
            late = now() > deadline
            quiet = quiet + 1 if walk.steady and not killed and reaped == self.reaps else 0
            if quiet >= QUIET_ROUNDS and self._settled(left, victims):
                return left
            if late and server_lives():
                return left + [process.pid for process in killed]
            kernel.pause(pause)
            pause = min(pause * 2, LONGEST_LATE_PAUSE if late else LONGEST_PAUSE)

    def _settled(self, left: list[int], victims: set[tuple[int, int]]) -> bool:
        """After quiet rounds: whether this is the end. Where orphans come back, the kernel says that none is left."""
        if self.table is None and kernel.PROC:
            return bool(left)
        self.reap_all()
        if self.table is not None and self.listed:
            self.killed = len(victims)
        return self.reaped or self.child in left

    # -- reaping ---------------------------------------------------------------------------------------------------

    def reap_adopted(self) -> None:
        """Reap every ended process but the child, whose exit is only noted and reported."""
        while not self.reaped and (ended := self.peek.next()) is not None:
            pid, code = ended
            self.reaped = self.peek.reaped
            if pid != self.child:
                self._reap_one(pid)
                continue
            self._note_exit(code)
            for other in kernel.own_children():
                # The child's zombie hides the others from the peek.
                if other != self.child:
                    self._reap_one(other)
            return

    def reap_all(self) -> bool:
        """Reap what has ended, the child included; True when no child of any kind is left."""
        while (ended := self._reap_one(-1)) is not None:
            pid, code = ended
            if pid == 0:
                return False
            if code == -SIGKILL and not (pid == self.child and self.code is not None):
                self.killed += 1
            if pid == self.child:
                self.reaped = True
                self._note_exit(code)
        return True

    def _reap_one(self, pid: int) -> tuple[int, int] | None:
        """`reap`, counted."""
        ended = reap(pid)
        if ended is not None and ended[0]:
            self.reaps += 1
        return ended

    def _note_exit(self, code: int) -> None:
        """Report the child's exit code, once."""
        if self.code is None:
            self.code = code
            self._exited(code)


def send_child(child: int, number: int) -> bool:
    """Signal the unreaped child; False when it may not be signalled any more (it changed its user)."""
    try:
        posix.kill(child, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
