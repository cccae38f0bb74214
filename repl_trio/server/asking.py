"""What the client is asked on behalf of peers: our own requests to it, from their line to its answer."""

from __future__ import annotations

from collections.abc import Callable

import trio

from ..limits import Limits
from ..process.pipes import PipeWriter
from ..values import PEER_KEY, ClientAnswer
from ..wire.jsonrpc import INTERNAL_ERROR, Params, Response
from ..wire.mcp import Connection

_TOO_LATE = "what asked this does not wait for an answer any more"


class Asking:
    """The requests to the client that are not answered yet (`values.AskClient`). `send` puts a line on the wire."""

    def __init__(
        self, connection: Connection, writer: PipeWriter, send: Callable[[bytes], None], limits: Limits
    ) -> None:
        self._connection = connection
        self._writer = writer
        self._send = send
        self._limits = limits
        self._places = limits.client_requests
        self._waiting: dict[str, _Wait] = {}

    @property
    def offers(self) -> dict[str, object]:
        """What the client answers, in the words of its capabilities."""
        return self._connection.offers

    async def ask(self, method: str, params: dict[str, object]) -> ClientAnswer:
        """Ask the client and wait for its answer; an error when there is none in `client_answer` seconds.

        Cancelled here, or over its time, the request is taken back.
        """
        limits = self._limits
        if not self._places:
            return _refused(f"{limits.client_requests} requests wait for the client already (limit client_requests)")
        self._places -= 1
        try:
            with trio.move_on_after(limits.client_answer):
                # One that asks and cancels in a loop must not fill what a client that reads slowly has yet to read.
                while self._writer.unread > limits.answers_ahead:
                    await self._writer.flushed()
                return await self._answer(method, params)
        finally:
            self._places += 1
        return _refused(f"the client did not answer in {limits.client_answer:g} s (limit client_answer)")

    def take(self, response: Response) -> None:
        """The client's answer to an open request."""
        wait = self._waiting.pop(str(response.id))
        wait.answer = ClientAnswer(response.result, response.error)
        wait.over.set()

    def open(self) -> list[Params]:
        """The requests that are not answered, oldest first, as `python_health` tells of them."""
        return [
            {"id": request_id, "method": wait.method, "server": wait.peer, "age_s": wait.age}
            for request_id, wait in self._waiting.items()
        ]

    async def _answer(self, method: str, params: Params) -> ClientAnswer:
        request_id, line = self._connection.ask(method, params)
        wait = self._waiting[request_id] = _Wait(method, params)
        try:
            self._send(line)
            await wait.over.wait()
        finally:
            if self._waiting.pop(request_id, None) is not None:
                self._send(self._connection.give_up(request_id, _TOO_LATE))
        assert wait.answer is not None
        return wait.answer


class _Wait:
    def __init__(self, method: str, params: Params) -> None:
        meta = params.get("_meta")
        self.method = method
        self.peer = meta.get(PEER_KEY) if isinstance(meta, dict) else None
        self.over = trio.Event()
        self.answer: ClientAnswer | None = None
        self._since = trio.current_time()

    @property
    def age(self) -> float:
        """seconds."""
        return round(trio.current_time() - self._since, 3)


def _refused(words: str) -> ClientAnswer:
    return ClientAnswer(None, {"code": INTERNAL_ERROR, "message": words})
