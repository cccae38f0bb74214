"""The MCP server's side of one connection, as far as tools need it, in both protocol eras.

Sans-IO: `Connection.receive` takes one line and returns what to do. The opening exchange and the trio runtime drive the
same object, so there is one code path for the protocol.

The first request decides the era of a connection: a request with the 2026-07-28 envelope in `params._meta` (and any
method but `initialize`) opens a modern one, anything else a handshake one. Crossing over later is refused with the code
that the specification gives it.
"""

from __future__ import annotations

from . import jsonrpc
from .jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    Params,
    RequestId,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .framing import Oversized

Tool = dict[str, object]

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"

_ELICITING = HANDSHAKE_VERSIONS[2:]  # the versions that know elicitation
_OUR_IDS = "repl-trio-"

_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
_CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
_SERVER_KEY = "io.modelcontextprotocol/serverInfo"


class Implementation:
    """How this server presents itself: name, version, instructions, tools (as `tools/list` shows them in each era)."""

    __slots__ = ("instructions", "modern_tools", "name", "tools", "version")

    def __init__(
        self, name: str, version: str, instructions: str, tools: Sequence[Tool], modern_tools: Sequence[Tool]
    ) -> None:
        self.name = name
        self.version = version
        self.instructions = instructions
        self.tools = list(tools)
        self.modern_tools = list(modern_tools)


class Call:
    """A `tools/call` request: the one kind of request that needs the runtime.

    `progress_token` is a string, an integer or None (no progress wanted). `modern` tells the era, because it decides
    whether `session_id` may be left out.
    """

    __slots__ = ("arguments", "id", "modern", "progress_token", "tool")

    def __init__(self, request_id: RequestId, tool: str, arguments: Params, *, modern: bool) -> None:
        self.id = request_id
        self.tool = tool
        self.arguments = arguments
        self.progress_token: str | int | None = None
        self.modern = modern


class Cancel:
    """The client gives up a request; it gets no reply."""

    __slots__ = ("id",)

    def __init__(self, request_id: RequestId) -> None:
        self.id = request_id


class Answer:
    """A line to send at once."""

    __slots__ = ("line",)

    def __init__(self, line: bytes) -> None:
        self.line = line


class _Refusal(Exception):
    def __init__(self, code: int, message: str, detail: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail


class Connection:
    """One client's connection. `receive` never raises on what the client sent.

    `offers`: what the client answers when it is asked, in the words of a client's capabilities (`elicitation` with
    forms, `sampling` perhaps with tools). Empty in the modern era, in which servers ask no requests of their own.
    """

    def __init__(self, implementation: Implementation, request_bytes: int) -> None:
        self._implementation = implementation
        self._request_bytes = request_bytes
        self._modern: bool | None = None  # None until the first request
        self.version: str | None = None  # negotiated by `initialize`, or MODERN_VERSION
        self.client: str | None = None  # name and version as the client gave them, for health
        self.offers: Params = {}
        self._asked = 0
        self._open: set[str] = set()  # the ids of our requests that the client may still answer

    def receive(self, line: bytes | Oversized) -> Answer | Call | Cancel | jsonrpc.Response | None:
        """What one line asks for; None when there is nothing to do.

        A `Response` answers a request of ours that was open, and the first one alone.
        """
        message = jsonrpc.parse(line, self._request_bytes)
        if isinstance(message, jsonrpc.Request):
            try:
                return self._request(message)
            except _Refusal as refusal:
                return Answer(jsonrpc.encode_error(message.id, refusal.code, refusal.message, refusal.detail))
        if isinstance(message, jsonrpc.Malformed):
            return Answer(jsonrpc.encode_error(message.id, message.code, message.reason))
        if isinstance(message, jsonrpc.Response) and type(message.id) is str and message.id in self._open:
            self._open.remove(message.id)
            return message
        if isinstance(message, jsonrpc.Notification) and message.method == "notifications/cancelled":
            cancelled = message.params.get("requestId")
            if type(cancelled) is str or type(cancelled) is int:
                return Cancel(cancelled)
        return None

    def encode_tool_result(self, call: Call, content: list[Params], structured: Params, *, is_error: bool) -> bytes:
        """The line that answers a call with a tool result."""
        result: Params = {"content": content, "structuredContent": structured, "isError": is_error}
        return jsonrpc.encode_result(call.id, self._complete(result))

    def encode_progress(self, call: Call, progress: float, message: str) -> bytes:
        """The line of one progress notification for a call that has a progress token."""
        params: Params = {"progressToken": call.progress_token, "progress": progress, "message": message}
        return jsonrpc.encode_notification("notifications/progress", params)

    # -- our own requests --------------------------------------------------------------------------------------

    def ask(self, method: str, params: Params) -> tuple[str, bytes]:
        """(id, line) of a request to the client. It is open until `receive` returns its answer, or `give_up`."""
        self._asked += 1
        request_id = f"{_OUR_IDS}{self._asked}"
        line = jsonrpc.encode_request(request_id, method, params)
        self._open.add(request_id)
        return request_id, line

    def give_up(self, request_id: str, reason: str) -> bytes:
        """The line that takes an open request back. An answer that comes all the same is dropped."""
        self._open.remove(request_id)
        return jsonrpc.encode_notification("notifications/cancelled", {"requestId": request_id, "reason": reason})

    # -- requests ----------------------------------------------------------------------------------------------

    def _request(self, request: jsonrpc.Request) -> Answer | Call:
        meta = request.params.get("_meta")
        if meta is not None and type(meta) is not dict:
            raise _Refusal(INVALID_PARAMS, "/params/_meta: an object is expected")
        envelope: Params = meta if type(meta) is dict else {}
        enveloped = _VERSION_KEY in envelope
        if self._modern is None:
            self._modern = enveloped and request.method != "initialize"
            if self._modern:
                self.version = MODERN_VERSION
        if self._modern:
            return self._modern_request(request, envelope)
        if enveloped and request.method != "initialize":
            raise _Refusal(
                INVALID_REQUEST,
                "this connection was opened in the handshake era; a request with the "
                f"{MODERN_VERSION} envelope needs a connection of its own",
            )
        return self._handshake_request(request, envelope)

    def _modern_request(self, request: jsonrpc.Request, envelope: Params) -> Answer | Call:
        if request.method == "initialize":
            asked = request.params.get("protocolVersion")
            raise _unsupported(asked if type(asked) is str else "")
        self._check_envelope(envelope)
        if request.method == "server/discover":
            return Answer(jsonrpc.encode_result(request.id, self._complete(self._discovery())))
        if request.method == "tools/list":
            return self._list_tools(request)
        if request.method == "tools/call":
            return _call(request, envelope, modern=True)
        raise _not_found(request.method)

    def _handshake_request(self, request: jsonrpc.Request, envelope: Params) -> Answer | Call:
        if request.method == "initialize":
            return Answer(jsonrpc.encode_result(request.id, self._initialize(request.params)))
        if request.method == "ping":
            return Answer(jsonrpc.encode_result(request.id, {}))
        if request.method == "tools/list":
            return self._list_tools(request)
        if request.method == "tools/call":
            return _call(request, envelope, modern=False)
        raise _not_found(request.method)

    def _check_envelope(self, envelope: Params) -> None:
        version = envelope.get(_VERSION_KEY)
        if type(version) is not str:
            raise _Refusal(INVALID_PARAMS, f"/params/_meta: {_VERSION_KEY}, a string, is required")
        if version != MODERN_VERSION:
            raise _unsupported(version)
        if type(envelope.get(_CAPABILITIES_KEY)) is not dict:
            raise _Refusal(INVALID_PARAMS, f"/params/_meta: {_CAPABILITIES_KEY}, an object, is required")
        self._meet_client(envelope.get(_CLIENT_KEY))

    def _initialize(self, params: Params) -> Params:
        asked = params.get("protocolVersion")
        if type(asked) is not str:
            raise _Refusal(INVALID_PARAMS, "/params/protocolVersion: a string is required")
        self.version = asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
        self.offers = _offers(params.get("capabilities"), self.version)
        self._meet_client(params.get("clientInfo"))
        return {
            "protocolVersion": self.version,
            "capabilities": {"tools": {}},
            "serverInfo": self._server(),
            "instructions": self._implementation.instructions,
        }

    def _discovery(self) -> Params:
        return {
            "supportedVersions": [MODERN_VERSION],
            "capabilities": {"tools": {}},
            "instructions": self._implementation.instructions,
            "ttlMs": 0,
            "cacheScope": "private",
        }

    def _list_tools(self, request: jsonrpc.Request) -> Answer:
        if request.params.get("cursor") is not None:
            raise _Refusal(INVALID_PARAMS, "/params/cursor: the list has one page and no cursor")
        # ttlMs and cacheScope in every version: clients of the handshake era ignore keys they do not know.
        tools = self._implementation.modern_tools if self._modern else self._implementation.tools
        result: Params = {"tools": tools, "ttlMs": 0, "cacheScope": "private"}
        return Answer(jsonrpc.encode_result(request.id, self._complete(result)))

    def _complete(self, result: Params) -> Params:
        if self._modern:
            result["resultType"] = "complete"
            result["_meta"] = {_SERVER_KEY: self._server()}
        return result

    def _server(self) -> Params:
        return {"name": self._implementation.name, "version": self._implementation.version}

    def _meet_client(self, client: object) -> None:
        if type(client) is dict:
            self.client = f"{client.get('name')} {client.get('version')}"[:200]


def _call(request: jsonrpc.Request, envelope: Params, *, modern: bool) -> Call:
    tool = request.params.get("name")
    if type(tool) is not str:
        raise _Refusal(INVALID_PARAMS, "/params/name: a string is required")
    arguments = request.params.get("arguments")
    if arguments is None:
        arguments = {}
    if type(arguments) is not dict:
        raise _Refusal(INVALID_PARAMS, "/params/arguments: an object is expected")
    call = Call(request.id, tool, arguments, modern=modern)
    token = envelope.get("progressToken")
    if type(token) is str or type(token) is int:
        call.progress_token = token
    return call


def _offers(capabilities: object, version: str) -> Params:
    """What of a client's capabilities can be used to ask it something."""
    offers: Params = {}
    if type(capabilities) is not dict:
        return offers
    elicitation, sampling = capabilities.get("elicitation"), capabilities.get("sampling")
    # An empty object is a client that knows forms alone, as all did before they could say so.
    if type(elicitation) is dict and version in _ELICITING and ("form" in elicitation or not elicitation):
        offers["elicitation"] = {"form": {}}
    if type(sampling) is dict:
        offers["sampling"] = {"tools": {}} if type(sampling.get("tools")) is dict else {}
    return offers


def _not_found(method: str) -> _Refusal:
    return _Refusal(METHOD_NOT_FOUND, f"this server has no method {method[:100]!r} in this protocol era")


def _unsupported(asked: str) -> _Refusal:
    detail = {"supported": [MODERN_VERSION], "requested": asked}
    return _Refusal(
        UNSUPPORTED_PROTOCOL_VERSION, f"this connection speaks {MODERN_VERSION} and needs no initialize", detail
    )
