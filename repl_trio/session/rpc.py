"""What the cell of a run asks of the peers: one task for each `rpc` frame, all of them the run's."""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from ..errors import BrokerError
from ..process.named import named
from ..process.pipes import BrokenPipe
from ..wire import frames, jsontext
from ..wire.frames import Frame, FrameError

if TYPE_CHECKING:
    from ..limits import Limits
    from ..process.pipes import PipeWriter
    from ..values import Artifact, CallTool, Origin
    from .artifacts import Artifacts

_log = logging.getLogger("repl_trio.session")

_MESSAGE = 10_000  # characters of an error's message
_LEAVING = 4  # times the limit: what waits for answers, and what was cancelled and is not gone yet
_CANCELLED = "The run is being stopped"
_NO_PEERS = "This server reaches no peers"


class Kept:
    """Where a run keeps an answer that no frame can hold. `store` None: nowhere."""

    def __init__(self, store: Artifacts | None, into: list[Artifact]) -> None:
        self._store = store
        self._into = into

    def keep(self, name: str, text: str, run_id: str) -> Artifact | None:
        """Make an artifact of a JSON text; it comes with the run's result."""
        if self._store is None:
            return None
        draft = self._store.begin(name, "result", "application/json", run_id)
        draft.write(text.encode("ascii"))
        artifact = draft.finish()
        self._into.append(artifact)
        return artifact


class Calls:
    """The RPCs of one run.

    Owner: `serve`, a task of the sessions' nursery, from the first `rpc` to the end of the run; each RPC is a task
    below it with a cancel scope of its own. `ended` is set when none of them is left. An exception of `peers` is an
    answer and never leaves here.
    """

    def __init__(
        self, peers: CallTool | None, origin: Origin, commands: PipeWriter, kept: Kept, limits: Limits
    ) -> None:
        self._peers = peers
        self._origin = origin
        self._commands = commands
        self._kept = kept
        self._limits = limits
        self._scopes: dict[int, trio.CancelScope] = {}  # by id, those that are not answered
        self._leaving: set[int] = set()  # of them, those that the worker waits for no more
        self._early: list[Frame] | None = []  # what came before there was a nursery
        self._nursery: trio.Nursery | None = None
        self._turn = trio.Lock()  # one answer at a time in the writer's queue: a cell finds room there
        self._over = trio.Event()
        self.ended = trio.Event()

    @property
    def active(self) -> bool:
        """Whether something is not answered yet."""
        return bool(self._scopes)

    @property
    def crowded(self) -> bool:
        """Whether as many take their leave as may be asked at once: their tasks want a turn before the next comes."""
        return len(self._leaving) >= self._limits.rpc_pending

    async def serve(self) -> None:
        """Own the RPCs until `halt`."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                early, self._early = self._early or [], None
                for frame in early:
                    self._start(nursery, frame)
                await self._over.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.ended.set()

    def ask(self, frame: Frame) -> None:
        """Begin what an `rpc` frame asks. Raises `FrameError` for an id that is in use, or when refusals pile up."""
        number = _number(frame)
        if number in self._scopes:
            raise FrameError("an rpc with the id of another")
        pending = len(self._scopes) - len(self._leaving)
        if self._over.is_set():
            self._tell(number, _cancelled("no"))
        elif pending >= self._limits.rpc_pending or len(self._scopes) >= _LEAVING * self._limits.rpc_pending:
            taken = f"{len(self._scopes)} requests of this run wait for answers or take their leave"
            allowed = f"the limit `rpc_pending` is {self._limits.rpc_pending}"
            if not self._tell(number, BrokerError("LIMIT_REACHED", f"Not sent: {taken} and {allowed}")):
                raise FrameError("an rpc over the limit, from a worker that takes no answers")
        else:
            self._scopes[number] = trio.CancelScope()
            if self._nursery is not None:
                self._start(self._nursery, frame)
            elif self._early is not None:
                self._early.append(frame)

    def cancel(self, frame: Frame) -> None:
        """Cancel what an `rpc_cancel` frame names. One that is answered already is none any more."""
        number = _number(frame)
        if number in self._scopes:
            self._scopes[number].cancel()
            # The worker counts it no more and may send another at once.
            self._leaving.add(number)

    def halt(self) -> None:
        """Cancel everything, at once: the run ends. Idempotent."""
        self._over.set()
        for scope in self._scopes.values():
            scope.cancel()

    async def stop(self, bound: float) -> None:
        """`halt`, and wait until nothing is left, at most `bound` seconds: a peer may be slow in taking its leave."""
        self.halt()
        with trio.move_on_after(bound):
            await self.ended.wait()

    def _start(self, nursery: trio.Nursery, frame: Frame) -> None:
        name = named(f"answers request {_number(frame)} of run {self._origin.run_id}")
        nursery.start_soon(self._answer, frame, name=name)

    async def _answer(self, frame: Frame) -> None:
        number = _number(frame)
        try:
            with self._scopes[number]:
                answer = await self._perform(number, str(frame["op"]), frame["params"])
                await self._hand_over(number, answer)
        finally:
            if number in self._scopes and self._over.is_set():
                # A thread of the cell may wait for it, which no interrupt reaches.
                self._tell(number, _cancelled("unknown"))
            self._forget(number)

    async def _hand_over(self, number: int, answer: bytes) -> None:
        """Give the worker its answer. As long as it takes: the cell may hold its GIL until the deadline of the run."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._turn.acquire_nowait()  # to wait for a lock that is free would be a scheduler step in each call
        except trio.WouldBlock:
            await self._turn.acquire()
        try:
            with suppress(BrokenPipe):
                await self._commands.send(answer)
            # In the step in which the answer was taken: the worker's next may come before this task goes on.
            self._forget(number)
            await self._commands.flushed()
        finally:
            self._turn.release()

    def _forget(self, number: int) -> None:
        self._scopes.pop(number, None)
        self._leaving.discard(number)

    async def _perform(self, number: int, op: str, params: object) -> bytes:
        """The `rpc_result` frame of one operation."""
        assert isinstance(params, dict)
        text: str | None = None
        error: BrokerError | None = None
        artifact: Artifact | None = None
        try:
            if self._peers is None:
                raise BrokerError("UNSUPPORTED", f"{_NO_PEERS}; not sent.")
            value = await self._peers.perform(op, params, self._origin)
            text = _text(value)
            return self._frame(number, text, None)
        except BrokerError as refused:
            error = refused
        except FrameError:
            assert text is not None
            error, artifact = self._too_large(op, params, text)
        except Exception as bug:  # noqa: BLE001 - the boundary: a bug in one call must not take the server down
            # Without its message, which may quote what only the broker could redact.
            told = f"{''.join(traceback.format_tb(bug.__traceback__))}{type(bug).__name__}"
            _log.error("bug in the operation %s of run %s\n%s", op, self._origin.run_id, told)
            error = BrokerError("INTERNAL_ERROR", "A bug in repl-trio, see its log", sent="unknown")
        return self._frame(number, None, _described(error, params, artifact))

    def _too_large(self, op: str, params: Frame, text: str) -> tuple[BrokerError, Artifact | None]:
        """(the error that stands for an answer over the frame limit, the artifact that holds it)."""
        name = ".".join(str(params[key]) for key in ("server", "tool", "name", "uri") if params.get(key)) or op
        artifact = self._kept.keep(f"{name}.json", text, self._origin.run_id)
        size = f"The answer has {len(text):,} bytes and the limit `frame_bytes` is {self._limits.frame_bytes:,}"
        if artifact is None:
            return BrokerError("LIMIT_REACHED", f"{size}; it was dropped", sent="done"), None
        part = "" if artifact.complete else f" as far as it got ({artifact.fault})"
        where = f"it is kept as artifact {artifact.id}{part}: read it with artifact_read, or ask for less"
        return BrokerError("LIMIT_REACHED", f"{size}; {where}", sent="done"), artifact

    def _tell(self, number: int, error: BrokerError) -> bool:
        """Answer without waiting; False when the worker has not taken what was sent before."""
        if self._commands.queued:
            return False
        with suppress(BrokenPipe):
            self._commands.send_now(self._frame(number, None, _described(error, {}, None)))
        return True

    def _frame(self, number: int, text: str | None, error: Frame | None) -> bytes:
        frame: Frame = {"frame": "rpc_result", "id": number, "result": text, "error": error}
        return frames.encode(frame, self._limits.frame_bytes)


def _number(frame: Frame) -> int:
    number = frame["id"]
    assert isinstance(number, int)
    return number


def _text(value: object) -> str:
    try:
        return jsontext.dumps(value)
    except (TypeError, ValueError) as error:
        raise BrokerError("PROTOCOL_ERROR", f"The answer is no JSON value ({error})", sent="done") from None


def _cancelled(sent: str) -> BrokerError:
    return BrokerError("CALL_CANCELLED", _CANCELLED, sent=sent)


def _described(error: BrokerError, params: Frame, artifact: Artifact | None) -> Frame:
    """An error as its frame has it. Names that it does not carry are those that were asked for."""
    return {
        "code": error.code,
        "message": error.message[:_MESSAGE],
        "sent": error.sent,
        "server": error.server or _name(params.get("server")),
        "tool": error.tool or _name(params.get("tool")),
        "artifact": artifact.id if artifact is not None else None,
    }


def _name(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None
