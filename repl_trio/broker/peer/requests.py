"""What peers ask of their client: roots are answered with the project, the rest is relayed to whom we serve.

Elicitation and sampling need somebody to ask. They are offered to peers as far as our own client offers them to us;
otherwise a peer that asks all the same gets an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import trio

from ...errors import BrokerError
from ...limits import Limits
from ...values import PEER_KEY, AskClient, ClientAnswer
from ...wire import jsontext

if TYPE_CHECKING:
    from .sdk import CallOptions, ClientRequestContext, ListRootsFnT, ListRootsResult, OnRequest, Sdk

RELAYED = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling"}
"""The requests that are relayed, and the capability that a client needs for each."""

# `_meta` and `task` are between two neighbours on the way. "This server" would be ours, and "all" are not the peer's.
_NOT_RELAYED = ("_meta", "task", "includeContext")
_MORE = "If the tool has a parameter for what it wants to know, give it that."


class Requests:
    """The answers of one project's client to one peer."""

    def __init__(self, server: str, project: str, client: AskClient | None, limits: Limits) -> None:
        self._server = server
        self._root = {"uri": "file://" + quote(os.fsencode(project)), "name": os.path.basename(project) or project}
        self._client = client
        self._limits = limits

    @property
    def offers(self) -> dict[str, object]:
        """What of our client's capabilities is passed on to the peer."""
        return self._client.offers if self._client is not None else {}

    def roots(self, sdk: Sdk) -> ListRootsFnT:
        """The callback with which the SDK client answers `roots/list`."""
        answer = sdk.ListRootsResult.model_validate({"roots": [self._root]})

        async def listed(context: ClientRequestContext) -> ListRootsResult:
            await trio.lowlevel.checkpoint()
            return answer

        return listed

    async def answer(self, sdk: Sdk, asked: object) -> dict[str, object]:
        """The responses to the input requests that came in place of a result, by the peer's own keys.

        Raises `BrokerError` when one of them cannot be answered: the peer then never finishes that request.
        """
        responses: dict[str, object] = {}
        for key, request in asked.items() if isinstance(asked, dict) else ():
            method = str(request.get("method")) if isinstance(request, dict) else ""
            if method == "roots/list":
                responses[str(key)] = {"roots": [self._root]}
                continue
            answer = None
            if method in RELAYED and RELAYED[method] in self.offers:
                answer = await self.ask(sdk, method, request.get("params"))
            if answer is None or answer.result is None:
                raise self._unanswered(method, answer)
            responses[str(key)] = answer.result
        return responses

    async def ask(self, sdk: Sdk, method: str, params: object) -> ClientAnswer:
        """Relay one request of the peer to our client, with the words of who asks, and return what it says."""
        given = dict(params) if isinstance(params, Mapping) else {}
        fault = self._fault(sdk, method, given)
        if fault or self._client is None:
            return _refused(sdk.INVALID_PARAMS, fault)
        relayed = {name: value for name, value in given.items() if name not in _NOT_RELAYED}
        if method == "elicitation/create":
            relayed["message"] = f"{self._server} asks: {given['message']}"
        return await self._client.ask(method, {**relayed, "_meta": {PEER_KEY: self._server}})

    def _fault(self, sdk: Sdk, method: str, params: dict[str, Any]) -> str:
        """Why our client cannot be asked this; "" when it can."""
        offered = self.offers.get(RELAYED[method])
        if not isinstance(offered, dict):
            return f"the client offers no {RELAYED[method]}: there is nobody to ask"
        if method == "elicitation/create" and params.get("mode", "form") not in [*offered]:
            return "only elicitation with a form is relayed"
        tools = method == "elicitation/create" or "tools" in offered
        if not tools and not params.keys().isdisjoint(("tools", "toolChoice")):
            return "the client offers no sampling with tools"
        try:
            flaw = _flaw(params, self._limits)
            if flaw:
                return f"the params {flaw}"
            sdk.parse_server_request(method, sdk.HANDSHAKE_VERSION, params)
        except ValueError:  # pydantic's words quote what they refuse
            return f"the params of this {method} are malformed"
        return ""

    def _unanswered(self, method: str, answer: ClientAnswer | None) -> BrokerError:
        shown = method if method in RELAYED else "something unknown"
        why = "there is nobody to ask"
        if answer is not None and answer.error is not None:
            why = f"this failed: {str(answer.error.get('message')).removesuffix('.')[:500]}"
        words = f"{self._server} asks for {shown} before it goes on, and {why}. {_MORE}"
        return BrokerError("UNSUPPORTED", words, sent="done", server=self._server)


class Relay:
    """The requests of one connection of the handshake era to our client.

    That era does not say to which call a request belongs. It may belong to any that was under way when it came, and is
    taken back when none of these is left. With none under way nobody waits for what the peer wants to know.
    """

    def __init__(self, sdk: Sdk, requests: Requests) -> None:
        self._sdk = sdk
        self._requests = requests
        self._calls: set[int | str] = set()
        self._open: dict[trio.CancelScope, set[int | str]] = {}

    def begin(self, call: int) -> None:
        """A request to the peer is on its way."""
        self._calls.add(call)

    def end(self, call: int | str) -> None:
        """It is answered or given up. Idempotent."""
        self._calls.discard(call)
        for scope, calls in self._open.items():
            calls.discard(call)
            if not calls:
                scope.cancel()

    async def answer(self, method: str, params: object) -> dict[str, Any]:
        """The result for the peer. Raises `MCPError`, the client's own error or one of ours."""
        answer = _refused(self._sdk.INVALID_REQUEST, "no call is under way: nobody waits for this")
        if self._calls:
            answer = _refused(self._sdk.INVALID_REQUEST, "the call that this was for has ended")
            with trio.CancelScope() as scope:
                self._open[scope] = set(self._calls)
                try:
                    answer = await self._requests.ask(self._sdk, method, params)
                finally:
                    del self._open[scope]
        if answer.result is not None:
            return answer.result
        error: dict[str, Any] = answer.error or {}
        raise self._sdk.MCPError(error["code"], error["message"], error.get("data"))


class Front:
    """The SDK's dispatcher, with `relay` before its typed callbacks: these leave out what they do not know, and what is
    null, in both directions. `offers` goes into the handshake, where the SDK would derive it from its callbacks.

    `relays`: whether a method of the peer is for `relay`.
    """

    def __init__(self, dispatcher: Any, relay: Relay, offers: dict[str, object], relays: Callable[[str], bool]) -> None:
        self._dispatcher = dispatcher
        self._relay = relay
        self._offers = offers
        self._relays = relays

    async def run(self, on_request: OnRequest, *rest: Any, **named: Any) -> None:
        """Drive the receive loop until the end of the connection."""

        async def answered(context: Any, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
            if self._relays(method):
                return await self._relay.answer(method, params)
            return await on_request(context, method, params)

        await self._dispatcher.run(answered, *rest, **named)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request and wait for its result."""
        if method == "initialize" and params is not None:
            params = {**params, "capabilities": {**params["capabilities"], **self._offers}}
        result: dict[str, Any] = await self._dispatcher.send_raw_request(method, params, opts)
        return result

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification."""
        await self._dispatcher.notify(method, params, opts)


def _flaw(params: dict[str, Any], limits: Limits) -> str:
    """Why the client may not be able to hold this JSON value; "" if it can. Raises `ValueError` for endless nesting."""
    size = len(jsontext.dumps(params))
    if size > limits.client_request_bytes:
        return f"have {size} bytes, too many for the client (limit client_request_bytes, {limits.client_request_bytes})"
    level: list[object] = [params]
    for _depth in range(limits.schema_depth):
        if not level:
            return ""
        below: list[object] = []
        for one in level:
            if isinstance(one, dict):
                below += [*one, *one.values()]
            elif isinstance(one, list):
                below += one
            elif isinstance(one, str) and not _is_whole(one):
                return "hold a lone surrogate, which many clients' languages cannot"
        level = below
    return f"are nested more than {limits.schema_depth} levels deep (limit schema_depth)"


def _is_whole(text: str) -> bool:
    """Whether no half of a character is in it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _refused(code: int, words: str) -> ClientAnswer:
    return ClientAnswer(None, {"code": code, "message": words})
