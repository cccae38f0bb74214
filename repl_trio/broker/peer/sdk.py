"""The one place that names the MCP SDK and anyio. Both are loaded by the first connection, in a thread.

Importing them takes half a second of processor time; a server that never reaches a peer must not pay for it, and one
that does must answer meanwhile. The garbage collector is off for that moment: it would walk what is being loaded again
and again (50 to 75 ms).
"""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from mcp.client.session import ClientRequestContext, ClientSession, ListRootsFnT
    from mcp.shared.dispatcher import CallOptions, OnRequest
    from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCMessage, ListRootsResult

    __all__ = [
        "CallOptions",
        "ClientRequestContext",
        "ClientSession",
        "JSONRPCDispatcher",
        "JSONRPCMessage",
        "ListRootsFnT",
        "ListRootsResult",
        "OnRequest",
        "SessionMessage",
    ]


class Sdk:
    """The names that the broker takes from the SDK and from anyio, loaded."""

    def __init__(self) -> None:
        import anyio
        import anyio._backends._trio  # anyio loads it with its first use, on the loop's own time
        import mcp_types as types
        from mcp.client.session import ClientSession
        from mcp.shared.dispatcher import coerce_request_id
        from mcp.shared.exceptions import MCPError
        from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
        from mcp.shared.message import SessionMessage
        from mcp_types.methods import parse_server_request
        from mcp_types.version import LATEST_HANDSHAKE_VERSION

        for name in ("client", "mcp"):
            # What it logs may quote what peers and their configuration say; our own errors say it redacted.
            logging.getLogger(name).addHandler(logging.NullHandler())
            logging.getLogger(name).propagate = False
        self.JSONRPCRequest = types.JSONRPCRequest
        self.JSONRPCNotification = types.JSONRPCNotification
        self.JSONRPCResponse = types.JSONRPCResponse
        self.JSONRPCError = types.JSONRPCError
        self.ErrorData = types.ErrorData
        self.Implementation = types.Implementation
        self.ListRootsResult = types.ListRootsResult
        self.coerce_request_id = coerce_request_id
        self.parse_server_request = parse_server_request
        self.HANDSHAKE_VERSION: str = LATEST_HANDSHAKE_VERSION
        self.INTERNAL_ERROR: int = types.INTERNAL_ERROR
        self.INVALID_PARAMS: int = types.INVALID_PARAMS
        self.INVALID_REQUEST: int = types.INVALID_REQUEST
        self.UNSUPPORTED_PROTOCOL_VERSION: int = types.UNSUPPORTED_PROTOCOL_VERSION
        self.VERSION_KEY: str = types.PROTOCOL_VERSION_META_KEY
        self.CLIENT_KEY: str = types.CLIENT_INFO_META_KEY
        self.CAPABILITIES_KEY: str = types.CLIENT_CAPABILITIES_META_KEY
        self.ClientSession = ClientSession
        self.JSONRPCDispatcher = JSONRPCDispatcher
        self.SessionMessage = SessionMessage
        self.MCPError = MCPError
        self.EndOfStream = anyio.EndOfStream
        self.BrokenResourceError = anyio.BrokenResourceError


class Loader:
    """Loads the SDK once. `loaded` is None until then."""

    def __init__(self) -> None:
        self.loaded: Sdk | None = None
        self._lock = trio.Lock()

    async def load(self) -> Sdk:
        """The SDK, imported in a thread by the first caller. One that is cancelled leaves the import to its thread."""
        if self.loaded is None:
            async with self._lock:
                if self.loaded is None:
                    self.loaded = await trio.to_thread.run_sync(_load, abandon_on_cancel=True)
        return self.loaded


def _load() -> Sdk:
    collecting = gc.isenabled()
    gc.disable()
    try:
        return Sdk()
    finally:
        if collecting:
            gc.enable()
