"""Seeing children end, and reaping them: two things, because an unreaped child keeps its numbers from being reused."""

import errno
import posix
import select
import sys

NOTE_EXITSTATUS = 0x04000000


class ExitPeek:
    """Sees that a child has ended without reaping it, so that its group number cannot be given away meanwhile.

    Without `waitid` (macOS before Python 3.13) a kernel queue sees it. A child that has ended before the queue could be
    told of it is reaped by `next`, which has no other way to see its end: `reaped` is then true. `fd` is readable when
    the queue has something to tell; None without a queue.
    """

    def __init__(self, child: int) -> None:
        self.child = child
        self.reaped = False
        self.fd: int | None = None
        self.queue: object = None
        if not hasattr(posix, "waitid"):
            self._open_queue()

    def next(self) -> tuple[int, int] | None:
        """(pid, exit code; negative = signal) of one ended child, None when there is none.

        May give an ended child again and again until it is reaped, and hide the others behind it. Reaps nothing but a
        child that the queue does not see.
        """
        if not hasattr(posix, "waitid"):
            return self._from_queue()
        try:
            ended = posix.waitid(posix.P_ALL, 0, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
        except ChildProcessError:
            return None
        if ended is None:
            return None
        return ended.si_pid, ended.si_status if ended.si_code == posix.CLD_EXITED else -ended.si_status

    def _open_queue(self) -> None:
        if sys.platform != "linux":
            flags = select.KQ_NOTE_EXIT | NOTE_EXITSTATUS
            wanted = select.kevent(self.child, select.KQ_FILTER_PROC, select.KQ_EV_ADD, flags)
            self.queue = select.kqueue()
            try:
                self.queue.control([wanted], 0, 0)
                self.fd = self.queue.fileno()
            except OSError:
                self.queue = None

    def _from_queue(self) -> tuple[int, int] | None:
        if sys.platform != "linux" and isinstance(self.queue, select.kqueue):
            for event in self.queue.control(None, 1, 0):
                return self.child, posix.waitstatus_to_exitcode(event.data)
        elif not self.reaped and (ended := reap(self.child)) is not None and ended[0]:
            self.reaped = True
            return ended
        return None


def reap(pid: int) -> tuple[int, int] | None:
    """Reap one ended child (-1: any): (pid, exit code), (0, 0) when none has ended, None when there is no child at all.

    None for -1 is the kernel's own proof that nothing of the tree is left, as long as this process is a subreaper.
    """
    try:
        ended, status = posix.waitpid(pid, posix.WNOHANG)
    except OSError as error:
        if error.errno != errno.ECHILD:
            raise
        return None
    return (ended, posix.waitstatus_to_exitcode(status)) if ended else (0, 0)
