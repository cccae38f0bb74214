"""A generation: one worker life, from the launch of its guardian to the record that nothing is left of it."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import trio

from ..errors import InterpreterBroken, LimitReached, ReplError, WorkerStartFailed
from ..limits import Limits
from ..machines import generation as table
from ..process.guard import Guard
from ..process.moment import Clock
from ..process.pipes import BrokenPipe, PipeReader, PipeWriter
from ..process.start import WorkerStart
from ..values import MEMORY_LIMIT
from ..wire import frames
from ..wire.frames import Frame, FrameError
from ..wire.framing import LineDecoder
from .capture import Capture
from .flood import thin_out
from .kept import Kept
from .memory import MemoryWatch
from .run import Run
from .stack import tidy
from .tap import Tap

_LINK_CLOSED = "The worker's link to the server was closed, by code that closes descriptors it did not open"


Background = dict[str, Capture]
"""Output between runs, by stream. The session owns it: what a worker says at its end comes with the next result."""


def new_background(limits: Limits) -> Background:
    """Nothing yet."""
    return {name: Capture(limits.output_tail, limits.output_tail) for name in ("stdout", "stderr")}


class Generation:
    """A worker and everything the server holds of it.

    Owners: `open_generation` owns the tasks and descriptors; at most one run is `current`. `dead` is set as soon as the
    worker can run nothing any more, `gone` when the guardian has reported that nothing below it is left.
    """

    def __init__(
        self,
        number: int,
        start: WorkerStart,
        guard: Guard,
        limits: Limits,
        tap: Tap | None = None,
        background: Background | None = None,
    ) -> None:
        self.number = number
        self.tap = tap
        self.guard = guard
        self.machine = table.machine()
        self.python_version: str | None = None
        self.current: Run | None = None
        self.ready = trio.Event()
        self.dead = trio.Event()
        self.death = ""  # how the worker ended, as a sentence without its full stop
        self.problem: ReplError | None = None  # why the worker never became ready
        self._words = b""  # what faulthandler wrote before the pipe was closed
        self.runs = 0
        self.ordered = False  # the end was asked for: a reset, a close, a shutdown
        self.ending = trio.Event()  # set by the worker's death or by an order to end: its owner then closes it
        self.over = trio.Event()  # set when its owner has closed it
        self.python = start.python
        self._ended: str | None = None  # the newest run that has its result
        self._refusal: str | None = None
        self._inspections = 0
        self._inspected: dict[str, trio.Event] = {}
        self._namespaces: dict[str, Frame] = {}
        self._limits = limits
        self._commands = PipeWriter(start.stdin, frames=limits.frames_queued)
        self._events = PipeReader(start.events)
        self._trace = PipeReader(start.trace)
        self._clock = Clock()
        self._streams = {"stdout": PipeReader(start.stdout), "stderr": PipeReader(start.stderr)}
        self._background = background or new_background(limits)
        self.kept = Kept(limits.runs_retained)
        self.memory = MemoryWatch(limits.memory_mib, limits.memory_interval)

    # -- running cells -----------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the worker can take a cell now or after its current one."""
        return table.alive(self.machine)

    @property
    def gone(self) -> trio.Event:
        """Set when nothing is left."""
        return self.guard.gone

    def begin(self, run: Run) -> None:
        """Send a run's cell to the idle worker. Raises `LimitReached`, nothing sent, for one over the frame limit."""
        cell = run.cell
        argv = list(cell.argv) if cell.path is not None else None
        try:
            frame = frames.encode(
                {"frame": "execute", "id": run.id, "code": cell.code, "path": cell.path, "argv": argv},
                self._limits.frame_bytes,
            )
        except FrameError as error:
            raise LimitReached(f"The cell does not fit into a frame ({error}). It was not run.") from None
        self.drain()
        # A dump that came too late for the run before is in no later report.
        self._trace.drain()
        self._words = b""
        self._hand_over_background(run)
        run.generation = self.number
        run.state_reset = self.runs == 0
        run.since = self._clock.now()
        run.sent = trio.current_time()
        # Before the frame: its result may not find a generation that does not expect one.
        self.machine.advance("execute")
        self.runs += 1
        self.current = run
        self.memory.wake()
        self.kept.begin(run.id, run.since)
        try:
            sent = self._commands.send_now(frame)
        except BrokenPipe:
            sent = False
        if not sent:
            self.end("The worker took no commands any more")
            self.guard.stop()

    @property
    def undelivered(self) -> bool:
        """Whether the worker has not taken all of what was sent to it."""
        return self._commands.queued

    async def deliver(self) -> None:
        """Wait until the worker has taken the cell; a worker that does not in `write_stall` seconds is ended."""
        with trio.move_on_after(self._limits.write_stall) as scope:
            await self._commands.flushed()
        if scope.cancelled_caught:
            self.end(f"The worker did not read its cell for {self._limits.write_stall:g} s")
            self.guard.stop()

    async def names(self) -> tuple[list[tuple[str, str]], int] | None:
        """Names and types in the namespace, and how many there are, read without running user code.

        None when the worker does not answer within `guardian_ack` seconds: C code may hold its GIL.
        """
        self._inspections += 1
        number = str(self._inspections)
        answered = self._inspected[number] = trio.Event()
        try:
            with suppress(BrokenPipe), trio.move_on_after(self._limits.guardian_ack):
                await self._commands.send(frames.encode({"frame": "inspect", "id": number}, self._limits.frame_bytes))
                await answered.wait()
        finally:
            del self._inspected[number]
            frame = self._namespaces.pop(number, None)
        if frame is None:
            return None
        names, total = frame["names"], frame["total"]
        assert isinstance(names, list)
        assert isinstance(total, int)
        return [(str(name), str(kind)) for name, kind in names], total

    @property
    def busy(self) -> bool:
        """Whether a cell runs."""
        return self.current is not None

    def overrun(self, death: str) -> None:
        """The worker uses more memory than it may: kill it at once."""
        if self.current is not None and self.current.stop_reason is None:
            self.current.stop_reason = MEMORY_LIMIT
            self.current.passed("kill", 1)
        self.end(death)
        self.guard.stop()

    def leave(self) -> None:
        """Order the end of the worker: from here on it takes no cell, and its owner closes it."""
        if self.alive:
            self.ordered = True
            self.machine.advance("stop")
        self.ending.set()

    async def stop(self) -> None:
        """Order the end and wait until the owner has closed the worker. Cancelled here: it ends all the same."""
        self.leave()
        await self.over.wait()

    def ask_to_end(self) -> None:
        """Tell the worker to run its atexit handlers and end."""
        with suppress(BrokenPipe):  # it is ending by itself; the exit record follows
            self._commands.send_now(frames.encode({"frame": "shutdown"}, self._limits.frame_bytes))

    async def kill(self) -> None:
        """SIGKILL to everything below the guardian. Afterwards the worker is dead, whatever its guardian does."""
        if not self.gone.is_set():
            self.guard.stop()
        with trio.move_on_after(self._limits.guardian_clean):
            await self.gone.wait()
        if not self.gone.is_set():
            self.guard.give_up()
            with trio.move_on_after(self._limits.guardian_ack):
                await self.gone.wait()
        self.end("The worker had to be killed")
        self.drain()

    def end(self, death: str) -> None:
        """The worker is lost: `death` says why. Its run, if any, gets no result any more."""
        if not self.dead.is_set():
            self.death = death
            self.last_words()
            self.machine.advance("died")
            self.dead.set()
            self.ending.set()
            self.ready.set()
            for answered in self._inspected.values():
                answered.set()
        if self.current is not None and self.current.reply is None:
            self.drain()
            self.current.arrived.set()

    def last_words(self) -> str:
        """What faulthandler wrote: the stack of a crash or of the dump rung. Empty when there is nothing."""
        self._words = (self._words + b"".join(self._trace.drain()))[-16_000:]
        return tidy(self._words.decode("utf-8", "replace"))

    # -- what the worker sends ---------------------------------------------------------------------------------

    async def _listen(self) -> None:
        decoder = LineDecoder(self._limits.frame_bytes)
        while chunk := await self._events.receive():
            for line in decoder.feed(chunk):
                try:
                    if not isinstance(line, bytes):
                        raise FrameError(f"a frame of {line.size} bytes; the limit is {self._limits.frame_bytes}")
                    self._frame(frames.decode(line, frames.FROM_WORKER))
                    if self.current is not None and self.current.crowded:
                        await trio.lowlevel.checkpoint()  # one read may hold hundreds that are cancelled at once
                except FrameError as error:
                    self.end(f"The worker broke its protocol ({error})")
                    self.guard.stop()
                    return
        # EOF alone is no death: the exit record follows, with the code. But a worker whose link is closed and who lives
        # on (os.closerange in a cell) can never report again.
        with trio.move_on_after(self._limits.guardian_ack):
            await self.guard.exited.wait()
        if not self.guard.exited.is_set():
            self.end(_LINK_CLOSED)
            self.guard.stop()

    def _frame(self, frame: Frame) -> None:
        kind = frame["frame"]
        if kind == "result":
            run = self.current
            if run is None or frame["id"] != run.id or run.reply is not None:
                raise FrameError("a result nobody waits for")
            self.drain()
            self._ended = run.id
            self.machine.advance("done")
            run.take(frame)
        elif kind == "output":
            run = self.current
            if run is not None and frame["id"] == run.id and run.reply is None:
                run.show(frame)
            elif frame["id"] != self._ended:  # a thread of the run before may have been late
                raise FrameError("an output frame of no run")
        elif kind in ("rpc", "rpc_cancel"):
            run = self.current
            if run is not None and frame["run_id"] == run.id and run.reply is None:
                run.ask(frame, self._commands)
            elif frame["run_id"] != self._ended:  # as above
                raise FrameError(f"an {kind} frame of no run")
        elif kind == "namespace":
            # One that nobody waits for any more is dropped: kept, they would pile up behind a busy GIL.
            if (answered := self._inspected.get(str(frame["id"]))) is not None:
                self._namespaces[str(frame["id"])] = frame
                answered.set()
        elif self.ready.is_set():
            raise FrameError(f"{kind} frame after ready")
        elif kind == "output":
            raise FrameError("an output frame of no run")
        elif kind == "refused":
            self._refusal = str(frame["reason"])
            self.ready.set()
        elif frame["version"] != frames.VERSION:
            raise FrameError(f"contract version {frame['version']}")
        else:
            self.python_version = str(frame["python_version"])
            self.machine.advance("ready")
            self.ready.set()

    async def _watch(self) -> None:
        """Wait for the child's end, then say how it was."""
        await self.guard.exited.wait()
        self.end(self._describe_exit())
        self.drain()

    def _describe_exit(self) -> str:
        code = self.guard.exit_code
        if code is None:
            if self.guard.error is not None:
                return f"The interpreter could not be started ({self.guard.error})"
            return "The guardian was killed, and its worker with it"
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            return f"The worker was ended by {name}"
        if code == frames.EXIT_LINK_CLOSED:
            return _LINK_CLOSED
        return f"The worker exited with code {code}"

    # -- output ------------------------------------------------------------------------------------------------

    def _keep(self, name: str, chunk: bytes) -> None:
        if self.tap is None or self._writing is not None:
            self._capture(name).write(chunk)
        if self.tap is not None:
            self.tap.write(name, chunk)

    def drain(self) -> None:
        """Take what both pipes hold now. Called at both ends of a run, so that every byte has one owner."""
        for name, stream in self._streams.items():
            for chunk in stream.drain():
                self._keep(name, chunk)

    async def _pump(self, name: str) -> None:
        stream = self._streams[name]
        while chunk := await stream.receive():
            self._keep(name, chunk)
            if self.tap is not None:
                await self.tap.drained()
            elif self._capture(name).settled(self._limits.artifact_bytes):
                await thin_out(stream, lambda: self._capture(name), self._limits.artifact_bytes)

    @property
    def _writing(self) -> Run | None:
        """Whose output it is: a run's until it is answered, what the processes of a stopped one write last included."""
        return self.current if self.current is not None and not self.current.finished else None

    def _capture(self, name: str) -> Capture:
        run = self._writing
        return self._background[name] if run is None else run.stdout if name == "stdout" else run.stderr

    def _hand_over_background(self, run: Run) -> None:
        """What arrived between runs comes with the next result, marked."""
        for name, capture in self._background.items():
            if capture.total:
                text = capture.render()[0]
                marked = f"[output since the last run]\n{text.rstrip()}\n[end of it]\n"
                run.write(name, marked.encode("utf-8", "replace"))
        self._background.update(new_background(self._limits))

    # -- life --------------------------------------------------------------------------------------------------

    def tasks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What has to run for as long as the generation lives, by what it does."""
        return {
            "writes frames": self._commands.run,
            "reads frames": self._listen,
            "waits for the worker's end": self._watch,
            "watches the worker's memory": partial(self.memory.watch, self),
            **{f"reads the worker's {name}": partial(self._pump, name) for name in self._streams},
        }

    async def become_ready(self) -> None:
        """Wait for `ready`; `problem` says why it will not come."""
        with trio.move_on_after(self._limits.worker_start):
            await self.ready.wait()
        self.problem = None if self.alive else self._fault()

    def _fault(self) -> ReplError:
        """Why the worker is not ready."""
        if self._refusal is not None:
            return InterpreterBroken(f"{self.python}: {self._refusal}.")
        if self.guard.error is not None:
            return InterpreterBroken(f"{self.python} could not be started ({self.guard.error}).")
        self.drain()
        words = self._background["stderr"].render(2_000)[0].strip()
        how = self.death or f"The worker did not become ready in {self._limits.worker_start:g} s"
        said = f" Its stderr ends with:\n{words}" if words else ""
        return WorkerStartFailed(f"No worker came up with {self.python}. {how}. `repl-trio doctor` checks more.{said}")

    def close(self) -> None:
        """Close what is held of the worker."""
        self._commands.close()
        self._clock.close()
        for reader in (self._events, self._trace, *self._streams.values()):
            reader.close()
