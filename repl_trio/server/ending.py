"""How the server ends: the first reason, the exit status, the bound, and one line about it on stderr.

No trio and nothing heavy: a signal can come, and something can fail, before the runtime is there.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found,unused-ignore]  # no stub; `signal` costs 5 ms for its enums
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLOSED_STDIN = "the client closed stdin"
READS_NO_MORE = "the client no longer reads stdout"
BUG = "a bug in repl-trio"

BUG_STATUS = 70
"""Exit status after a bug of ours (EX_SOFTWARE). Every end that somebody asked for has 0."""
BROKEN_STATUS = 1
"""Exit status of a start that cannot work."""

_NAMES = {_signal.SIGINT: "SIGINT", _signal.SIGTERM: "SIGTERM", _signal.SIGHUP: "SIGHUP"}
_STUCK = 0.5
"""seconds after the bound. Then not even signals are received: C code of ours holds the GIL."""
_MESSAGE = 200
"""characters of an exception's message in the line."""
_TRACEBACK = 10_000
"""characters of a traceback in the log; its end is kept."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Ending:
    """The one end of this process. `begin` and `fail` may come from a signal, at any moment and any number of times.

    `wake` becomes readable with the first signal, `left` counts the (runs, workers) that are there now. `bound` is in
    seconds from the beginning of the end to the exit.
    """

    def __init__(self, bound: float) -> None:
        self.why = ""
        self.status = 0
        self.left: Callable[[], tuple[int, int]] = _nothing
        self.unread = 0  # bytes of answers that the client did not take
        self.overdue = False  # what was going on had to be cancelled at the bound
        self.wake, self._woken = os.pipe()
        self.signal = ""  # the first that came
        self._bound = bound
        self._begun: float | None = None
        self._stopped = (0, 0)  # runs and workers that the end found
        self._bug = ""
        self._said = False

    def __enter__(self) -> None:
        """Inside, whatever is raised is a bug of ours: it is told, and goes no further."""

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> bool:
        if error is not None:
            self.fail(error)
        return True

    @property
    def begun(self) -> bool:
        """Whether there is a reason to end."""
        return self._begun is not None

    def receive_signals(self) -> None:
        """Let SIGINT, SIGTERM and SIGHUP begin the end. Also undoes a SIGINT that a shell's `&` left ignored.

        For as long as the process lives, and not through the event loop: one that is stuck would never hear of them.
        """

        def told(number: int, _frame: object) -> None:
            if not self.signal:
                self.signal = _NAMES[number]
                os.write(self._woken, b".")
            self.begin(_NAMES[number])

        for number in _NAMES:
            _signal.signal(number, told)

    def begin(self, why: str) -> None:
        """There is a reason to end. The first counts; from then on the process has `bound` seconds."""
        if self._begun is None:
            self._begun = time.monotonic()
            self.why = why
            if why == BUG:
                self.status = BUG_STATUS
            self.take_stock()
            self._arm()

    def take_stock(self) -> None:
        """Count what is going to be stopped now."""
        self._stopped = self.left()

    def until(self, share: float) -> float:
        """Seconds from now to this share of the bound, 0 when it is over."""
        elapsed = 0.0 if self._begun is None else time.monotonic() - self._begun
        return max(0.0, share * self._bound - elapsed)

    def fail(self, error: BaseException) -> None:
        """Something of ours has failed: that decides the status and the line. The traceback goes to the log."""
        self.status = BUG_STATUS
        first = next(_leaves(error))
        if not self._bug:
            self._bug = f"{_described(first)} at {_place(first)}"
        self.begin(BUG)
        _log_failure(first)

    def give_up(self, why: str) -> None:
        """The start cannot work."""
        self.status = BROKEN_STATUS
        self.begin(why)

    def say(self, *, by_force: bool = False) -> str:
        """Write the line, once; returns it without its newline. A signal that comes later changes nothing: the
        interpreter takes our handlers away before it has ended."""
        for number in _NAMES:
            _signal.signal(number, _signal.SIG_IGN)
        line = f"repl-trio: {self._sentence(by_force=by_force)}"
        if not self._said:
            self._said = True
            write_now(f"{line}\n")
        return line

    # -- the bound ---------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Exit at the bound, whatever the loop does then. The end of this process closes every lifeline, and the
        guardians kill what is left."""
        import faulthandler

        _signal.signal(_signal.SIGALRM, self._leave_by_force)
        _signal.setitimer(_signal.ITIMER_REAL, self._bound)
        # fd 0 takes nothing: where stderr would block, the exit is worth more than the stack.
        faulthandler.dump_traceback_later(self._bound + _STUCK, exit=True, file=2 if _takes(2) else 0)

    def _leave_by_force(self, _number: int, _frame: object) -> None:
        try:
            if not self._said:
                self.say(by_force=True)
        finally:
            os._exit(self.status)

    # -- the words ---------------------------------------------------------------------------------------------

    def _sentence(self, *, by_force: bool) -> str:
        parts = [*self._cut_short(by_force=by_force)]
        if self.unread:
            parts.append(f"{self.unread} bytes of answers were not read")
        seconds = 0.0 if self._begun is None else time.monotonic() - self._begun
        parts.append(f"{seconds:.1f} s")
        how = "ended by force" if by_force else "ended at the bound" if self.overdue else "ended"
        why = self.why
        if self._bug:
            why = f"{BUG}: {self._bug}" if self.why == BUG else f"{BUG}: {self._bug} (after: {self.why})"
        return f"{how}: {why}; {', '.join(parts)}"

    def _cut_short(self, *, by_force: bool) -> Iterator[str]:
        runs, workers = self.left()
        stopped, ended = self._stopped
        if by_force and runs:
            yield f"{_counted(runs, 'run')} not answered"
        elif not by_force and stopped:
            yield f"{_counted(stopped, 'run')} cancelled"
        if ended > workers:
            yield f"{_number(ended - workers, 'worker')} ended"
        if workers:
            yield f"{_counted(workers, 'worker')} left to {'its guardian' if workers == 1 else 'their guardians'}"


def write_now(text: str) -> None:
    """Write to stderr what it takes without waiting and drop the rest: nobody may be reading it."""
    rest = text.encode("utf-8", "backslashreplace")
    while rest and _takes(2):
        try:
            # A pipe that can be written takes that much whole.
            rest = rest[os.write(2, rest[: select.PIPE_BUF]) :]
        except OSError:
            return  # a full disk, a terminal that is gone: there is nowhere to say so


def _takes(fd: int) -> bool:
    """Whether a write would not block."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return any(event & select.POLLOUT for _, event in poll.poll(0))


def _nothing() -> tuple[int, int]:
    return 0, 0


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _counted(count: int, noun: str) -> str:
    return f"{_number(count, noun)} {'was' if count == 1 else 'were'}"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _described(error: BaseException) -> str:
    """Type and message on one line."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - whatever an exception's own text raises, the end goes on
        message = ""
    name = type(error).__name__
    return f"{name}: {message[:_MESSAGE]}" if message else name


def _place(error: BaseException) -> str:
    """Where it was raised: the innermost line of this package, or of whatever there is."""
    found, ours = "an unknown place", False
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        inside = code.co_filename.startswith(_PACKAGE + os.sep)
        if inside or not ours:
            name = os.path.relpath(code.co_filename, _PACKAGE) if inside else os.path.basename(code.co_filename)
            found, ours = f"{name}:{trace.tb_lineno} in {code.co_name}", ours or inside
        trace = trace.tb_next
    return found


def _log_failure(error: BaseException) -> None:
    import logging
    import traceback

    try:
        # A group would be written out with all that it has collected on its way.
        chain = not isinstance(error.__context__, BaseExceptionGroup)
        text = "".join(traceback.format_exception(error, chain=chain))
        logging.getLogger("repl_trio.server").critical("%s\n%s", BUG, text[-_TRACEBACK:])
    except Exception:  # noqa: BLE001 - without memory, or with a log that is gone: the line on stderr is still said
        return
