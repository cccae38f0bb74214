"""A blocking MCP client (handshake era) over the pipes of one measured server.

One request is sent and timed at a time, unless a cell is left running on purpose. Requests of the server are answered
(`ping`) or refused, so that none of them hangs; its notifications, and lines that are no JSON, are passed over.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.process import MeasuredProcess

PROTOCOL_VERSION = "2025-11-25"
ANSWER_SECONDS = 30.0
"""The bound of every wait for an answer, unless the caller has a tighter one; slow peers take 10 s for a first cell."""
TOOL_PAGES = 16
MISSING = -32601


@dataclass(frozen=True, slots=True)
class Sent:
    """One request on its way: its id and the moment before it was written."""

    id: int
    method: str
    at: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one request, when its line was complete, and the seconds from sending to then."""

    result: dict[str, Any]
    arrived: float
    seconds: float


class Client(MeasuredProcess):
    """A server process and the one client it serves. The constructor starts it and says nothing yet."""

    def __init__(self, command: Sequence[str], cwd: str) -> None:
        super().__init__(command, cwd)
        self.server: dict[str, Any] = {}
        self._last_id = 0
        self._early: dict[int, tuple[dict[str, Any], float]] = {}

    def initialize(self) -> Answer:
        """The handshake; returns the answer to `initialize` after the notification that follows it was written."""
        client = {"name": "bench", "version": "1"}
        params = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": client}
        answer = self.request("initialize", params)
        self.server = answer.result.get("serverInfo", {})
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    def request(self, method: str, params: dict[str, Any] | None = None, bound: float = ANSWER_SECONDS) -> Answer:
        """Send one request and wait for its answer; MeasureError when it is an error or does not come in time."""
        return self.receive(self.send(method, params), bound)

    def send(self, method: str, params: dict[str, Any] | None = None) -> Sent:
        """Write one request without waiting for its answer."""
        self._last_id += 1
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": self._last_id, "method": method}
        if params is not None:
            message["params"] = params
        line = json.dumps(message).encode() + b"\n"
        sent = Sent(self._last_id, method, time.perf_counter())
        self.write(line, ANSWER_SECONDS)
        return sent

    def receive(self, sent: Sent, bound: float = ANSWER_SECONDS) -> Answer:
        """The answer to a request already sent; answers to other requests are kept for their own `receive`."""
        deadline = time.perf_counter() + bound
        while sent.id not in self._early:
            self._receive_one(deadline, f"answer to {sent.method}")
        message, arrived = self._early.pop(sent.id)
        if "result" not in message:
            raise self.failure(f"{sent.method} was refused: {json.dumps(message.get('error'))[:500]}")
        return Answer(message["result"], arrived, arrived - sent.at)

    def answered(self, sent: Sent) -> bool:
        """Whether the answer to this request has already been read."""
        return sent.id in self._early

    def tools(self) -> list[dict[str, Any]]:
        """Every page of `tools/list`."""
        tools: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(TOOL_PAGES):
            page = self.request("tools/list", params).result
            tools += page["tools"]
            if not page.get("nextCursor"):
                return tools
            params = {"cursor": page["nextCursor"]}
        raise self.failure(f"more than {TOOL_PAGES} pages of tools")

    def _receive_one(self, deadline: float, awaited: str) -> None:
        line = self.read_line(deadline, awaited)
        try:
            message = json.loads(line.content)
        except ValueError:
            return
        if not isinstance(message, dict):
            return
        if "method" not in message:
            if isinstance(message.get("id"), int):
                self._early[message["id"]] = (message, line.arrived)
        elif "id" in message:
            self._answer_server(message)

    def _answer_server(self, request: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        if request["method"] == "ping":
            reply["result"] = {}
        else:
            reply["error"] = {"code": MISSING, "message": "not offered by this client"}
        self._write(reply)

    def _write(self, message: dict[str, Any]) -> None:
        self.write(json.dumps(message).encode() + b"\n", ANSWER_SECONDS)
