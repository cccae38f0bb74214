"""A run: one execution of one cell, from acceptance to its result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import trio

from ..errors import ReplError, SessionClosing
from ..limits import Limits
from ..machines import run as table
from ..process.moment import Moment
from ..process.pipes import PipeWriter
from ..values import (
    CANCELLED,
    CLEARED,
    EXCEPTION,
    PRESERVED,
    SYSTEM_EXIT,
    TIMEOUT,
    UNFINISHED_WORK,
    WORKER_DIED,
    Artifact,
    Cell,
    ExecutionResult,
    Step,
)
from ..wire.frames import Frame, FrameError
from .artifacts import Artifacts
from .capture import Capture
from .items import Items
from .rpc import Calls

_log = logging.getLogger(__name__)


class Run:
    """One run of one session. What is too large for its result goes into the session's `artifacts`, if there are any.

    Owners: the session's driver task leads it; the generation writes output and `reply` into it; anybody may `cancel`.
    `scope` is the run's lifetime: its deadline is the timeout, cancelling it cancels the run. `arrived` is set when the
    worker's result is there or can no longer come, `answered` when `result` is.
    """

    def __init__(
        self, run_id: str, session_id: str, cell: Cell, limits: Limits, store: Artifacts | None = None
    ) -> None:
        self.id = run_id
        self.session_id = session_id
        self.cell = cell
        self.machine = table.machine()
        self.scope = trio.CancelScope()
        self.arrived = trio.Event()
        self.answered = trio.Event()
        self.when_answered: Callable[[], None] | None = None  # called in the step that sets `answered`
        self.reply: Frame | None = None
        self.result: ExecutionResult | None = None
        self.generation = 0
        self.reset = False  # whether a new worker was asked for
        self.state_reset = False
        self.since = Moment(0, 0)  # what began later below the worker belongs to this run
        self.accepted = trio.current_time()
        self.sent = 0.0  # when the worker was given the cell, on trio's clock
        self.stop_reason: str | None = None  # TIMEOUT or CANCELLED, from the moment the ladder is due
        self.stop_detail = ""
        self.stopped = 0.0  # when the first step of stopping it was due, on trio's clock
        self.steps: list[Step] = []  # what was done since, each acknowledged by the guardian
        self.touched = False  # a signal of the ladder reached processes of this run
        self.lost: str | None = None  # how the namespace before this run was lost, if it was
        self.artifacts: list[Artifact] = []  # the finished ones, whether or not the session still keeps them
        self.store = store
        self.calls: Calls | None = None  # what the cell asks of the peers, from the first time it does
        self.open_calls: Callable[[Run, PipeWriter], Calls] | None = None  # set by the session
        self._noted = ("", 0)
        self._limits = limits
        self._items: Items | None = None
        self.stdout = self._capture("stdout")
        self.stderr = self._capture("stderr")

    @property
    def finished(self) -> bool:
        """Whether the session is free for the next run."""
        return self.machine.state == table.FINISHED

    @property
    def stopping(self) -> bool:
        """Whether the run is on its way out: cancelled or timed out, not yet answered."""
        return self.stop_reason is not None and not self.finished

    @property
    def status(self) -> str:
        """`running`, `cancelling` or `finished`."""
        return "finished" if self.finished else "cancelling" if self.stopping else "running"

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since acceptance; fixed once there is a result."""
        if self.result is not None:
            return self.result.elapsed_ms
        return int((trio.current_time() - self.accepted) * 1000)

    def cancel(self, detail: str) -> None:
        """Ask for the end of this run; `detail` says who asked. Idempotent, returns at once."""
        if self.stop_reason is None and not self.finished:
            self.stop_reason = CANCELLED
            self.stop_detail = detail
            self.scope.cancel()

    def passed(self, name: str, processes: int) -> None:
        """A step of stopping this run is done; it met so many processes."""
        self.stopped = self.stopped or trio.current_time()
        step = Step(name, trio.current_time() - self.stopped, processes)
        self.steps.append(step)
        _log.debug("run %s: %s after %.3f s, met %d process(es)", self.id, name, step.after, processes)

    def write(self, stream: str, chunk: bytes) -> None:
        """Keep output of `stdout` or `stderr`."""
        (self.stdout if stream == "stdout" else self.stderr).write(chunk)

    def note(self, line: str) -> None:
        """A line for the live view; the next output of the cell replaces it."""
        self._noted = (line, self.stdout.total + self.stderr.total)

    def last_line(self) -> str:
        """What a person who waits is shown."""
        line, total = self._noted
        if line and total == self.stdout.total + self.stderr.total:
            return line
        return self.stdout.last_line() or self.stderr.last_line()

    @property
    def crowded(self) -> bool:
        """Whether what it has asked of the peers, and has cancelled, needs a moment to go."""
        return self.calls is not None and self.calls.crowded

    def ask(self, frame: Frame, commands: PipeWriter) -> None:
        """An `rpc` or `rpc_cancel` frame of the cell, to be answered through `commands`. Raises `FrameError`."""
        if frame["frame"] == "rpc_cancel":
            if self.calls is not None:
                self.calls.cancel(frame)
            return
        if self.calls is None:
            if self.open_calls is None:
                raise FrameError("an rpc frame where nobody answers")
            self.calls = self.open_calls(self, commands)
            if self.stop_reason is not None:
                self.calls.halt()
        self.calls.ask(frame)

    @property
    def completed(self) -> bool:
        """Whether the cell has ended by itself and its worker is fit for the next; the run may still be answered."""
        fit = self.reply is not None and self.reply["keep"] is True
        return fit and self.machine.state == table.RUNNING and self.stop_reason is None

    def show(self, frame: Frame) -> None:
        """A part of something that the cell shows. Raises `FrameError`; dropped once the run is over."""
        if self.finished:
            return
        if self.store is None:
            raise FrameError("an output frame where nothing is kept")
        if self._items is None:
            self._items = Items(self.store, self.id, self._limits)
        artifact = self._items.take(frame)
        if artifact is not None:
            self.artifacts.append(artifact)

    def take(self, reply: Frame) -> None:
        """The worker's result frame. Output before it has been captured.

        A plain result finishes the run right here, in the step that read the frame: no task switch between the worker's
        answer and ours. Everything else is left to the driver, as is a run whose peers have not answered yet.
        """
        self.reply = reply
        if self.completed and (self.calls is None or not self.calls.active):
            self.finish("result", PRESERVED)
        self.arrived.set()

    def finish(self, event: str, state: str, loss: str = "", words: str = "") -> None:
        """Move to the end by `event` and answer. `loss` says how the namespace was lost, `words` where the code was."""
        self.machine.advance(event)
        self._answer(self._result(state, loss, f"\nIt was here:\n{words}" if words else ""))

    def fail(self, error: ReplError, state: str) -> None:
        """End a run that never began, because of `error`."""
        self.machine.advance("failed")
        self._answer(self._build(success=False, state=state, error=error.message, error_code=error.code))

    def abandon(self) -> None:
        """Answer a run whose driver ends early (a shutdown that takes too long, a bug): no caller is left waiting."""
        if self.finished:
            return
        self.machine.state = table.FINISHED
        error = "The server is going away and did not wait for this run; whether it had an effect is not known."
        self.arrived.set()
        self._answer(self._build(success=False, state=CLEARED, error=error, error_code=SessionClosing.code))

    def _answer(self, result: ExecutionResult) -> None:
        self.result = result
        if self.calls is not None:
            # It holds this run's `note`: a cycle, were it kept.
            self.calls.halt()
            self.calls = None
        self.answered.set()
        tell, self.when_answered = self.when_answered, None
        if tell is not None:
            tell()

    # -- the result --------------------------------------------------------------------------------------------

    def _result(self, state: str, loss: str, words: str) -> ExecutionResult:
        reply = self.reply
        if reply is None:
            sentence = self._sentence(state, loss) + words
            return self._build(success=False, state=state, error=sentence, error_code=self.stop_reason or WORKER_DIED)
        # A cell that was through before the first signal reached it has simply finished.
        stopped = self.stop_reason is not None and bool(reply["interrupted"] or not reply["success"] or self.touched)
        error = reply["error"]
        if stopped:
            text = self._sentence(state, loss) + words + (f"\n{error}" if error else "")
            return self._build(success=False, state=state, error=text, error_code=self.stop_reason)
        if not reply["keep"]:
            return self._build(success=False, state=state, error=str(error or loss), error_code=UNFINISHED_WORK)
        code = None if reply["success"] else SYSTEM_EXIT if reply["exit_code"] is not None else EXCEPTION
        return self._build(success=bool(reply["success"]), state=state, error=error, error_code=code)

    def _sentence(self, state: str, loss: str) -> str:
        """What happened and what is left, for a run that did not end by itself."""
        if self.stop_reason == TIMEOUT:
            what = f"The cell timed out: its time limit of {self.cell.timeout:g} s was over"
        elif self.stop_reason == CANCELLED:
            what = f"The run was cancelled ({self.stop_detail})"
        else:
            what = loss or "The worker ended"
            return f"{what}. The namespace is lost; the next cell starts in a new one."
        if state == PRESERVED:
            return f"{what}. It was interrupted and the namespace is preserved."
        loss = loss or "The worker had to be killed"
        return f"{what}. {loss}. The namespace is lost; the next cell starts in a new one."

    def _build(
        self, *, success: bool, state: str, error: object = None, error_code: str | None = None
    ) -> ExecutionResult:
        reply = self.reply or {}
        self._end_artifacts()
        return ExecutionResult(
            run_id=self.id,
            session_id=self.session_id,
            generation=self.generation,
            state_reset=self.state_reset,
            success=success,
            elapsed_ms=self.elapsed_ms,
            state=state,
            return_value=_text(reply.get("return_value")),
            value=reply.get("value"),
            has_value=bool(reply.get("has_value")),
            error=_text(error),
            error_code=error_code,
            truncated_return=bool(reply.get("truncated_return")),
            truncated_error=bool(reply.get("truncated_error")),
            tasks_cancelled=_whole(reply.get("tasks_cancelled")) or 0,
            background_tasks=_names(reply.get("background_tasks")),
            background_threads=_names(reply.get("background_threads")),
            exit_code=_whole(reply.get("exit_code")),
            lost=self.lost,
            artifacts=tuple(self.artifacts),
            steps=tuple(self.steps),
        )

    # -- what is kept outside ----------------------------------------------------------------------------------

    def _capture(self, stream: str) -> Capture:
        head, tail = self._limits.output_head, self._limits.output_tail
        if self.store is None:
            return Capture(head, tail)
        # No method of this run: that would be a cycle, and the memory of a run then waits for the collector.
        return Capture(head, tail, spill=partial(self.store.begin, stream, "output", "text/plain", self.id))

    def _end_artifacts(self) -> None:
        if self._items is not None:
            self._items.discard()
        for capture in (self.stdout, self.stderr):
            artifact = capture.finish_spill()
            if artifact is not None:
                self.artifacts.append(artifact)


def _text(value: object) -> str | None:
    return value if type(value) is str else None


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


def _names(value: object) -> tuple[str, ...]:
    # None at all is the rule, and a generator costs more than everything else here.
    return tuple(str(name)[:60] for name in value[:10]) if type(value) is list and value else ()
