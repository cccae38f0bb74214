"""One live connection to a peer: the SDK client over a link's streams, and the requests that go over it.

Requests are sent through the client's dispatcher and not through its typed methods. Those check each result against
models that drop or refuse what they do not know (blocks of a later protocol, a null `structuredContent`), and list the
tools once more before a first call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from ... import __version__
from ...errors import BrokerError
from ...limits import Limits
from ..redaction import Redaction
from .intake import Damaged
from .link import Link
from .requests import RELAYED, Front, Relay, Requests
from .sdk import Sdk
from .streams import Progress

if TYPE_CHECKING:
    from .sdk import CallOptions, ClientSession

Json = dict[str, object]

CLIENT: Json = {"name": "repl-trio", "version": __version__}
_FIRST_ID = 1_000  # the dispatcher numbers its own requests from 1
_PAUSE = 0.1
"""seconds. Before a peer that asks for nothing but to be called again is called again."""
ERROR_WORDS = 1_000
"""characters. Of a peer's own error message."""
_NAME = 200
"""characters. Of what a peer calls itself."""
_PROGRESS = 500
"""characters. Of a peer's words for its progress."""


class Ticket:
    """What is known of one request: `sent` is `no`, `unknown` or `done`.

    `when_late` is called if an answer comes after the request was given up, with whether it is an error.
    """

    def __init__(self, when_late: Callable[[bool], None] | None = None) -> None:
        self.sent = "no"
        self.when_late = when_late


class Client:
    """The SDK client over one link, not yet connected: enter `session`, then `negotiate`."""

    def __init__(self, sdk: Sdk, link: Link, requests: Requests) -> None:
        self.sdk = sdk
        self.link = link
        self.requests = requests
        self.relay = Relay(sdk, requests)
        self.offers = dict(requests.offers)
        self.inbound, self.outbound = link.streams(sdk)
        self.inbound.answered = self.relay.end
        self.dispatcher = sdk.JSONRPCDispatcher(self.inbound, self.outbound)
        self.session: ClientSession = sdk.ClientSession(
            dispatcher=Front(self.dispatcher, self.relay, self.offers, self._relays),
            client_info=sdk.Implementation.model_validate(CLIENT),
            list_roots_callback=requests.roots(sdk),
        )

    @property
    def modern(self) -> bool:
        """Whether the peer speaks the modern era, which has no requests of its own but those in results."""
        return self.session.discover_result is not None

    def _relays(self, method: str) -> bool:
        return method in RELAYED and not self.modern


async def negotiate(client: Client, mode: str, probe: float) -> None:
    """Agree on a protocol version: `legacy` by the handshake, `modern` by discovery, `auto` by whichever answers.

    A peer that leaves the discovery unanswered for `probe` seconds is taken for one of the handshake era. Raises
    `MCPError` when the peer refuses, `RuntimeError` when no version is shared, pydantic's `ValidationError` when an
    answer is malformed. Deadlines are the caller's.
    """
    session, error_type = client.session, client.sdk.MCPError
    if mode == "modern":
        await session.discover()
    elif mode == "legacy":
        await session.initialize()
    elif not await _discovered(client, probe) and not client.link.over.is_set():
        try:
            await session.initialize()
        except error_type as error:
            if error.code != client.sdk.UNSUPPORTED_PROTOCOL_VERSION:
                raise
            # Its answer to the probe came too late, and has decided the era of this connection all the same.
            await session.discover()


async def _discovered(client: Client, probe: float) -> bool:
    with trio.move_on_after(probe):
        return await _speaks_modern(client)
    return False


async def _speaks_modern(client: Client) -> bool:
    try:
        await client.session.discover()
    except (client.sdk.MCPError, RuntimeError, ValueError):
        # Refused, no shared version, malformed: none of it speaks for the modern era.
        return False
    return True


class Refused(BrokerError):
    """The peer answered a request with an error of its own; `number` is its JSON-RPC code."""

    def __init__(self, message: str, number: int, server: str) -> None:
        super().__init__("PROTOCOL_ERROR", message, sent="done", server=server)
        self.number = number


class Connection:
    """A connected peer. `modern` tells the era, `capabilities` what it offers."""

    def __init__(self, server: str, client: Client, redaction: Redaction, limits: Limits) -> None:
        session, sdk = client.session, client.sdk
        self.server = server
        self.link = client.link
        self.inbound = client.inbound
        self.version = str(session.protocol_version)
        self.modern = client.modern
        offered = session.server_capabilities
        self.capabilities: Json = offered.model_dump(by_alias=True, mode="json", exclude_none=True) if offered else {}
        self.instructions = session.instructions
        about = session.server_info
        self.about = redaction.head(f"{about.name} {about.version}", _NAME) if about is not None else None
        self._client = client
        self._redaction = redaction
        self._limits = limits
        self._ids = itertools.count(_FIRST_ID)
        self._meta: Json = {}
        if self.modern:
            self._meta = {
                sdk.VERSION_KEY: self.version,
                sdk.CLIENT_KEY: CLIENT,
                sdk.CAPABILITIES_KEY: {"roots": {}, **client.offers},
            }

    async def request(
        self, method: str, params: Json, ticket: Ticket | None = None, progress: Progress | None = None
    ) -> Json:
        """Send one request, once, and return its result as the peer sent it.

        Raises `BrokerError`: the peer's own error, an answer that cannot be used, the end of the peer. Cancelled here,
        the peer is told. `ticket` then holds whether the request had left.
        """
        ticket = ticket or Ticket()
        number = next(self._ids)
        meta = self._meta
        if progress is not None:
            meta = {**meta, "progressToken": number}
            self.inbound.progress[number] = partial(self._tell, progress)
        if meta:
            params = {**params, "_meta": meta}
        self._client.relay.begin(number)
        try:
            options: CallOptions = {"request_id": number}
            result = await self._client.dispatcher.send_raw_request(method, params, options)
        except self._client.sdk.MCPError as error:
            refused, issued = error, number in self._client.outbound.issued
        except BaseException:  # only to note how far it came
            if number in self._client.outbound.issued:
                ticket.sent = "unknown"
                if ticket.when_late is not None:
                    self.inbound.expect_late(number, ticket.when_late)
            raise
        else:
            ticket.sent = "done"
            return result
        finally:
            self._client.relay.end(number)
            self._client.outbound.issued.discard(number)
            self.inbound.progress.pop(number, None)
        if not issued:
            await self.link.over.wait()  # nobody takes requests any more: in a moment it is known why
        raise self._fault(method, refused, ticket, issued=issued)

    async def ask(
        self, method: str, params: Json, ticket: Ticket | None = None, progress: Progress | None = None
    ) -> Json:
        """`request`, and again with what a peer of the modern era wants to know before it gives the result.

        Each further round continues the same request, as that protocol has it; the peer's state goes back untouched.
        """
        ticket = ticket or Ticket()
        for number in range(self._limits.peer_rounds):
            try:
                result = await self.request(method, params, ticket, progress)
            except BrokerError as error:
                if number and error.sent == "no":
                    error.sent = ticket.sent = "unknown"  # this round has not left, and those before it have
                raise
            except ValueError:
                words = f"{self.server} asks for a state to be sent back that is no JSON."
                raise BrokerError("PROTOCOL_ERROR", words, sent="unknown", server=self.server) from None
            if not self.modern or result.get("resultType") != "input_required":
                return result
            ticket.sent = "unknown"  # it has begun to act and has not said how that ended
            asked = result.get("inputRequests")
            if asked:
                responses = await self._client.requests.answer(self._client.sdk, asked)
                params = {**params, "inputResponses": responses}
            else:
                params = {name: value for name, value in params.items() if name != "inputResponses"}
                await trio.sleep(_PAUSE)
            if "requestState" in result:
                params["requestState"] = result["requestState"]
        raise BrokerError(
            "LIMIT_REACHED",
            f"{self.server} asked for more input {self._limits.peer_rounds} times and gave no result "
            f"(limit peer_rounds).",
            sent="done",
            server=self.server,
        )

    def asked(self) -> dict[str, int]:
        """How often the peer asked for what, by the method of its requests."""
        return {self._redaction.head(method, _NAME): count for method, count in self.inbound.asked.items()}

    def gone(self, sent: str) -> BrokerError:
        """The error of a request that the end of the peer has cut off."""
        words = f"{self.server} {self.link.why or 'is being stopped'}. {self.link.said()}".strip()
        return BrokerError("PEER_GONE", words, sent=sent, server=self.server)

    def _tell(self, progress: Progress, done: float, total: float | None, words: str) -> None:
        progress(done, total, self._redaction.head(words, _PROGRESS))

    def _fault(self, method: str, error: Exception, ticket: Ticket, *, issued: bool) -> BrokerError:
        told = getattr(error, "error", None)  # MCPError's ErrorData
        mark = getattr(told, "data", None)
        if isinstance(mark, Damaged):
            ticket.sent = "done"
            return BrokerError(mark.code, f"{self.server}: {mark.reason}.", sent="done", server=self.server)
        if self.link.over.is_set():
            ticket.sent = "unknown" if issued else "no"
            return self.gone(ticket.sent)
        ticket.sent = "done"
        message = self._redaction.head(str(getattr(told, "message", "")), ERROR_WORDS)
        words = f"{self.server} answered {method} with the error {getattr(told, 'code', 0)}: {message}"
        return Refused(words, getattr(told, "code", 0), self.server)
