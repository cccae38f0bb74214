"""The two ends that the SDK client reads and writes, over plain pipes.

No queue and no task between the pipe and the client: a message is read in the step that wants it and written in the
step that sends it. They raise what anyio's own streams raise, because the client counts on that.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Self

import trio

from ...process.pipes import BrokenPipe, PipeReader, PipeWriter
from ...wire import jsontext
from .intake import Damaged, Intake, Message

if TYPE_CHECKING:
    from .sdk import JSONRPCMessage, Sdk, SessionMessage

Progress = Callable[[float, float | None, str], None]
"""Takes how far a request is, of how much (None: not known), and the peer's words for it."""

_AT_ONCE = 50
"""messages that are handed over before other tasks get a turn."""
_LINES = 512
"""lines that are read before other tasks get a turn; one that is nearly a message costs twenty microseconds."""
_PART = 1_024
"""bytes. What is read at once of more lines than that."""
_LATE = 256
"""calls whose late answer is still waited for, on one connection."""
_METHODS = 50
"""different requests of a peer that are counted."""
_METHOD = 100
"""characters of their names."""


class Inbound:
    """Messages from a peer, as the SDK's `SessionMessage`.

    `changed` is told the method of each notification that a list has changed, `answered` the id of each request as its
    answer is read: what the peer asks in a later line does not belong to it. `progress` holds, by request id, who is
    told of its progress: here and not by the client, whose tasks would tell it in any order. `late` holds, by request
    id, who wants to know the end of a call that nobody waits for any more. `asked` counts the peer's own requests, by
    method.
    """

    def __init__(
        self,
        sdk: Sdk,
        reader: PipeReader,
        intake: Intake,
        after_each: Callable[[], None],
        at_end: Callable[[], Awaitable[None]],
        on_bug: Callable[[], None],
    ) -> None:
        self.changed: Callable[[str], None] = lambda _method: None
        self.answered: Callable[[int | str], None] = lambda _number: None
        self.progress: dict[object, Progress] = {}
        self.late: OrderedDict[int | str, Callable[[bool], None]] = OrderedDict()
        self.asked: dict[str, int] = {}
        self._sdk = sdk
        self._reader = reader
        self._intake = intake
        self._after_each = after_each  # called when a chunk has been taken
        self._at_end = at_end  # awaited before the end is told
        self._on_bug = on_bug  # called while an exception of ours is handled
        self._ready: deque[SessionMessage] = deque()
        self._unfed = b""  # of the pipe, not looked at yet
        self._given = 0
        self._last = False  # nothing is left in the pipe
        self._ended = False
        self.emptied = trio.Event()  # all that the peer has ever written was handed over

    def expect_late(self, number: int, tell: Callable[[bool], None]) -> None:
        """Have `tell` called when the answer to this request comes after all; with whether it is an error."""
        self.late[number] = tell
        if len(self.late) > _LATE:
            self.late.popitem(last=False)

    def finish(self, left: bytes = b"") -> None:
        """No more bytes will come but these, which somebody else has read from the pipe."""
        self._unfed += left
        self._last = True

    async def receive(self) -> SessionMessage | Exception:
        """The next message. Raises `anyio.EndOfStream`."""
        self._given += 1
        if self._given % _AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        while not self._ready:
            if self._unfed:
                self._feed()
                if self._unfed:
                    await trio.lowlevel.checkpoint()
            elif self._ended:
                self.emptied.set()
                await self._at_end()
                raise self._sdk.EndOfStream
            elif self._last:
                self._ended = True
                self._keep(self._intake.finish)
            elif chunk := await self._reader.receive():
                self._unfed += chunk
            else:
                self._last = True
        return self._ready.popleft()

    async def aclose(self) -> None:
        """The client reads no more; the pipe is the link's to close."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except self._sdk.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        return None

    def _feed(self) -> None:
        """Look at what was read, or at the beginning of it if it has very many lines."""
        chunk, self._unfed = self._unfed, b""
        if chunk.count(b"\n") > _LINES:
            chunk, self._unfed = chunk[:_PART], chunk[_PART:]
        self._keep(self._intake.feed, chunk)
        self._after_each()

    def _keep(self, read: Callable[..., list[Message | Damaged]], *chunks: bytes) -> None:
        try:
            for one in read(*chunks):
                if isinstance(one, Damaged):
                    message = self._damaged(one)
                elif one.get("method") == "notifications/progress":
                    self._tell(one.get("params"))
                    continue
                else:
                    message = self._message(one)
                self._ready.append(self._sdk.SessionMessage(message))
        except Exception:  # noqa: BLE001 - a bug over what a peer sent ends its connection and no more than that
            self._ended = True
            self._unfed = b""
            self._on_bug()

    def _tell(self, params: object) -> None:
        """Progress of a request; of one that nobody waits for any more, or in a form that is none, nothing follows."""
        if type(params) is not dict:
            return
        token = params.get("progressToken")
        if isinstance(token, bool) or not isinstance(token, int | str):
            return
        told, step = self.progress.get(self._sdk.coerce_request_id(token)), _amount(params.get("progress"))
        if told is not None and step is not None:
            words = params.get("message")
            told(step, _amount(params.get("total")), words if isinstance(words, str) else "")

    def _damaged(self, damaged: Damaged) -> JSONRPCMessage:
        """Tell its caller. The mark is an object, so that no peer can make one."""
        sdk = self._sdk
        self._settle(damaged.id, is_error=True)
        error = sdk.ErrorData(code=sdk.INTERNAL_ERROR, message=damaged.reason, data=damaged)
        return sdk.JSONRPCError(jsonrpc="2.0", id=damaged.id, error=error)

    def _message(self, message: Message) -> JSONRPCMessage:
        """The SDK's form of a message that was checked. Nothing in a result is validated, copied or left out."""
        sdk = self._sdk
        number, method, params = message.get("id"), message.get("method"), message.get("params")
        assert number is None or isinstance(number, int | str)
        if "result" in message:
            assert number is not None
            self._settle(number, is_error=False)
            return sdk.JSONRPCResponse.model_construct(jsonrpc="2.0", id=number, result=message["result"])
        if method is None:
            assert number is not None
            self._settle(number, is_error=True)
            return sdk.JSONRPCError(jsonrpc="2.0", id=number, error=sdk.ErrorData.model_validate(message["error"]))
        if number is None:
            if str(method).endswith("/list_changed"):
                self.changed(str(method))
            return sdk.JSONRPCNotification.model_construct(jsonrpc="2.0", method=method, params=params)
        shown = str(method)[:_METHOD]
        if len(self.asked) < _METHODS or shown in self.asked:
            self.asked[shown] = self.asked.get(shown, 0) + 1
        return sdk.JSONRPCRequest.model_construct(jsonrpc="2.0", id=number, method=method, params=params)

    def _settle(self, number: int | str, *, is_error: bool) -> None:
        number = self._sdk.coerce_request_id(number)  # as the dispatcher does: some peers answer 7 with "7"
        self.answered(number)
        if self.late and (tell := self.late.pop(number, None)) is not None:
            tell(is_error)


def _amount(value: object) -> float | None:
    """A number as a float; None for what is none, and for an integer beyond every float."""
    try:
        return float(value) if type(value) is int or type(value) is float else None
    except OverflowError:
        return None


class Outbound:
    """Messages to a peer. `issued` holds the ids of requests that were accepted for writing.

    A request waits for its turn while the peer does not read, and one that is cancelled meanwhile was not sent. What
    must not wait (a cancellation, an answer) is queued, within a bound.
    """

    def __init__(self, sdk: Sdk, writer: PipeWriter) -> None:
        self.issued: set[int | str] = set()
        self._sdk = sdk
        self._writer = writer

    async def send(self, item: SessionMessage) -> None:
        """Accept one message. Raises `anyio.BrokenResourceError` when the peer takes no more."""
        sdk, message = self._sdk, item.message
        whole: dict[str, object] = {"jsonrpc": "2.0"}
        if isinstance(message, sdk.JSONRPCResponse):
            whole |= {"id": message.id, "result": message.result}
        elif isinstance(message, sdk.JSONRPCError):
            whole |= {"id": message.id, "error": message.error.model_dump(mode="json", exclude_none=True)}
        elif isinstance(message, sdk.JSONRPCNotification) and self._names_nothing(message.method, message.params):
            return
        else:
            # By hand: the model's own dump copies every argument.
            if isinstance(message, sdk.JSONRPCRequest):
                whole["id"] = message.id
            whole["method"] = message.method
            if message.params is not None:
                whole["params"] = message.params
        line = jsontext.dumps(whole).encode("ascii") + b"\n"
        if isinstance(message, sdk.JSONRPCRequest):
            while self._writer.queued and not self._writer.broken.is_set():
                await self._writer.flushed()
        try:
            self._writer.send_now(line)
        except BrokenPipe:
            raise self._sdk.BrokenResourceError from None
        if isinstance(message, sdk.JSONRPCRequest):
            self.issued.add(message.id)

    def _names_nothing(self, method: str, params: dict[str, object] | None) -> bool:
        """Whether this cancels a request that never left."""
        return method == "notifications/cancelled" and (params or {}).get("requestId") not in self.issued

    async def aclose(self) -> None:
        """The client writes no more; the pipe is the link's to close."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        return None
