"""A blocking MCP client over a real server process, for every end-to-end test.

    with Client() as client:                              # handshake era, default session, project in a fresh folder
        assert client.execute("1 + 1")["value"] == 2      # structuredContent of execute_python
        request_id = client.start_call("execute_python", code="import time; time.sleep(60)")
        client.cancel(request_id)

Every wait has a bound, every line of the server is recorded with the moment it arrived and judged by the oracle when
the block ends, and no process of the server survives the block: one that does is killed and fails the test. The
server's stderr goes to a file and is shown when a test fails.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from tests.e2e.oracle import MODERN, VERSION_KEY, Message, Oracle, Violation, identity
from tests.e2e.server_process import (
    BOUND,
    COOKIE,
    ROOT,
    Received,
    ServerProcess,
    alive,
    server_command,
    wait_gone,
)

__all__ = [
    "BOUND",
    "COOKIE",
    "HANDSHAKE",
    "MODERN",
    "ROOT",
    "Client",
    "Message",
    "Received",
    "Refused",
    "Violation",
    "alive",
    "envelope",
    "server_command",
    "wait_gone",
]

HANDSHAKE = "2025-11-25"

UNSWEPT = ("--limit", "sweep_delay=3600")
"""A server under test does not end what another test's server has left on purpose. Later arguments win."""


class Refused(Exception):
    """The server answered a request with a JSON-RPC error."""

    def __init__(self, error: Message) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.detail: Any = error.get("data")


class Client(ServerProcess):
    """One server process and its only client.

    `arguments` follow `repl-trio` on the command line. `env`: changes to this process's environment, None removes a
    name. `cwd`: where the server is started, a fresh empty folder by default. `version`: what the handshake asks for,
    `"2026-07-28"` for the modern era (each request then carries the envelope), None to open nothing by itself. `wrap`:
    an argv to put in front of the server's (`["sh", "-c", 'trap "" INT; exec "$@"', "sh"]`). `result_bytes`: the bound
    that the oracle holds results to, None for none.
    """

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str | None] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        version: str | None = HANDSHAKE,
        wrap: Sequence[str] = (),
        result_bytes: int | None = 40_000,
    ) -> None:
        super().__init__([*wrap, *server_command(*UNSWEPT, *arguments)], env, cwd)
        self.version = version
        self.oracle = Oracle(result_bytes)
        self._ids = itertools.count(1)
        self._answers: dict[str, list[Message]] = {}
        self._requests: list[Message] = []
        self._checked = 0

    def __enter__(self) -> Self:
        self.start()
        try:
            if self.version is not None and self.version != MODERN:
                self.initialize(self.version)
        except BaseException as error:
            # The block is never entered, so nobody else ends the server; an interrupt of the test run counts as well.
            self._leave(error)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        faults = self.end()
        said = f"stderr of the server:\n{self.last_words}"
        if error is not None:
            error.add_note("\n".join([*faults, said]))
            return
        assert not faults, "\n".join([*faults, said])
        self.check()

    # -- writing -----------------------------------------------------------------------------------------------

    def send_line(self, line: bytes, bound: float = BOUND) -> None:
        """Write these bytes and a newline, whatever they are."""
        with contextlib.suppress(ValueError, RecursionError):
            self.oracle.sent(json.loads(line))
        self.write(line + b"\n", bound)

    def send_message(self, message: Mapping[str, object]) -> None:
        """Write one JSON object as a line, without completing it in any way."""
        self.send_line(json.dumps(message).encode())

    def send(self, method: str, params: Mapping[str, Any] | None = None, *, token: str | int | None = None) -> int:
        """Write a request and return its id; `token` asks for progress notifications."""
        request_id = next(self._ids)
        meta = dict((params or {}).get("_meta", {}))
        if self.version == MODERN:
            meta = envelope() | meta
        if token is not None:
            meta["progressToken"] = token
        message: Message = {"jsonrpc": "2.0", "id": request_id, "method": method}
        if params or meta:
            message["params"] = {**(params or {}), **({"_meta": meta} if meta else {})}
        self.send_message(message)
        return request_id

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Write a notification."""
        self.send_message({"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})})

    def cancel(self, request_id: int | str, reason: str = "the test says so") -> None:
        """Give a request up, as clients do: it gets no answer."""
        self.notify("notifications/cancelled", {"requestId": request_id, "reason": reason})

    # -- requests ----------------------------------------------------------------------------------------------

    def initialize(self, version: str = HANDSHAKE, capabilities: Message | None = None) -> Message:
        """The handshake; the result of `initialize`."""
        client = {"name": "e2e", "version": "1"}
        params = {"protocolVersion": version, "capabilities": capabilities or {}, "clientInfo": client}
        result = self.request("initialize", params)
        self.notify("notifications/initialized")
        return result

    def request(self, method: str, params: Mapping[str, Any] | None = None, bound: float = BOUND) -> Message:
        """Send a request and wait for its result. Raises `Refused` for an error."""
        return self.result(self.send(method, params), bound)

    def start_call(self, tool: str, /, *, token: str | int | None = None, **arguments: Any) -> int:
        """Send a `tools/call` and return its id without waiting."""
        return self.send("tools/call", {"name": tool, "arguments": arguments}, token=token)

    def call(self, tool: str, /, *, bound: float = BOUND, **arguments: Any) -> Message:
        """Call a tool; the whole `CallToolResult`."""
        return self.result(self.start_call(tool, **arguments), bound)

    def structured(self, tool: str, /, *, bound: float = BOUND, **arguments: Any) -> Message:
        """Call a tool; its structuredContent."""
        structured: Message = self.call(tool, bound=bound, **arguments)["structuredContent"]
        return structured

    def execute(self, code: str, /, *, bound: float = BOUND, **arguments: Any) -> Message:
        """Run a cell with execute_python; its structuredContent."""
        if self.version == MODERN and "session_id" not in arguments:
            arguments["session_id"] = self.default_session()
        return self.structured("execute_python", bound=bound, code=code, **arguments)

    def default_session(self) -> str:
        """The id of the default session, from python_health."""
        sessions = self.structured("python_health")["sessions"]
        return next(str(session["session_id"]) for session in sessions if session["default"])

    def result(self, request_id: int | str, bound: float = BOUND) -> Message:
        """The result of a request that was sent. Raises `Refused` for an error."""
        message = self.answer(request_id, bound)
        if "error" in message:
            raise Refused(message["error"])
        result: Message = message["result"]
        return result

    def error(self, request_id: int | str | None, bound: float = BOUND) -> Message:
        """The error that answers a request that was sent (None: one that could not be told)."""
        message = self.answer(request_id, bound)
        assert "error" in message, f"not refused: {str(message)[:1_000]}"
        error: Message = message["error"]
        return error

    # -- what came ---------------------------------------------------------------------------------------------

    def answer(self, request_id: int | str | None, bound: float = BOUND) -> Message:
        """The response with this id (None: an error that could not name one), each given out once."""
        key = identity(request_id)
        self.wait_until(lambda: bool(self._answers.get(key)), bound, f"no answer to request {request_id!r}")
        with self.news:
            return self._answers[key].pop(0)

    def answered(self, request_id: int | str) -> bool:
        """Whether a response with this id has arrived and has not been given out."""
        with self.news:
            return bool(self._answers.get(identity(request_id)))

    def asked(self, bound: float = BOUND) -> Message:
        """The next request of the server to us, each given out once."""
        self.wait_until(lambda: bool(self._requests), bound, "the server asks nothing")
        with self.news:
            return self._requests.pop(0)

    def unclaimed(self) -> list[Message]:
        """The responses that have arrived and that nobody asked for: a second answer, or one to a cancelled request."""
        with self.news:
            return [message for messages in self._answers.values() for message in messages]

    def notifications(self, method: str = "notifications/progress") -> list[Message]:
        """The params of all notifications with this method so far."""
        with self.news:
            messages = [json.loads(received.line) for received in self.received if b'"method"' in received.line]
        return [message["params"] for message in messages if message.get("method") == method]

    def check(self) -> None:
        """Judge every line received since the last check. Raises `Violation`."""
        with self.news:
            lines = self.received[self._checked :]
            self._checked = len(self.received)
        for received in lines:
            self.oracle.check(received.line)

    def take(self, lines: list[bytes]) -> None:
        """Sort responses by id, requests apart. What is no JSON is the oracle's business, in the test's own thread."""
        for line in lines:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict) and "method" in message and "id" in message:
                    self._requests.append(message)
                elif isinstance(message, dict) and "method" not in message:
                    self._answers.setdefault(identity(message.get("id")), []).append(message)


def envelope() -> Message:
    """The `_meta` of a request in the modern era."""
    return {
        VERSION_KEY: MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "e2e", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
