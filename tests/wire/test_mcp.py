"""One connection in both protocol eras; every line that it emits is judged by the SDK's models for its version."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from repl_trio.limits import DEFAULT
from repl_trio.server.tools import implementation
from repl_trio.wire import mcp
from repl_trio.wire.framing import Oversized
from repl_trio.wire.mcp import Answer, Call, Cancel, Connection
from tests.e2e.client import MODERN, Message, envelope
from tests.e2e.oracle import VERSION_KEY, Oracle

untimed = settings(deadline=None)
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
SERVER_KEY = "io.modelcontextprotocol/serverInfo"


class Peer:
    """A client of a `Connection`, with the oracle between them."""

    def __init__(self) -> None:
        self.connection = Connection(implementation(DEFAULT), DEFAULT.request_bytes)
        self.oracle = Oracle()

    def step(self, method: str, params: Message | None = None, request_id: object = 1) -> Any:
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, **({"params": params} if params else {})}
        self.oracle.sent(message)
        return self.connection.receive(json.dumps(message).encode())

    def message(self, method: str, params: Message | None = None, request_id: object = 1) -> Message:
        """The response to a request that is answered at once."""
        step = self.step(method, params, request_id)
        assert isinstance(step, Answer)
        message = self.judge(step.line)
        assert message["id"] == request_id
        return message

    def result(self, method: str, params: Message | None = None) -> Message:
        result: Message = self.message(method, params)["result"]
        return result

    def error(self, method: str, params: Message | None = None) -> Message:
        error: Message = self.message(method, params)["error"]
        return error

    def judge(self, line: bytes) -> Message:
        assert line.endswith(b"\n")
        return self.oracle.check(line.rstrip(b"\n"))

    def open(self, version: str, capabilities: object = None) -> Message:
        """Open the connection in the era of `version`; the first result."""
        if version == MODERN:
            return self.result("server/discover", modern())
        capabilities = {} if capabilities is None else capabilities
        asked = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "n", "version": "v"}}
        return self.result("initialize", asked)


@pytest.fixture
def peer() -> Peer:
    return Peer()


def modern(params: Message | None = None) -> Message:
    return {**(params or {}), "_meta": envelope()}


EVERY = [*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS]


def test_the_versions_are_the_sdks() -> None:
    assert mcp.HANDSHAKE_VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS
    assert (mcp.MODERN_VERSION,) == MODERN_PROTOCOL_VERSIONS


@pytest.mark.parametrize("version", HANDSHAKE_PROTOCOL_VERSIONS)
def test_initialize_agrees_on_every_version(peer: Peer, version: str) -> None:
    result = peer.open(version)
    assert result["protocolVersion"] == version == peer.connection.version
    assert result["serverInfo"]["name"] == "repl-trio"
    assert result["capabilities"] == {"tools": {}}
    assert "trusted local execution" in result["instructions"]
    assert peer.connection.client == "n v"


@pytest.mark.parametrize("version", ["1999-01-01", "2030-01-01", "", "x", MODERN])
def test_initialize_with_another_version_gets_the_newest_of_its_era(peer: Peer, version: str) -> None:
    assert peer.result("initialize", {"protocolVersion": version})["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize("params", [None, {"protocolVersion": 7}, {"protocolVersion": None}])
def test_initialize_without_a_version_is_told_the_place(peer: Peer, params: Message | None) -> None:
    error = peer.error("initialize", params)
    assert error["code"] == -32602
    assert error["message"].startswith("/params/protocolVersion")


def test_initialize_with_an_envelope_is_still_a_handshake(peer: Peer) -> None:
    assert peer.result("initialize", modern({"protocolVersion": "2025-11-25"}))["protocolVersion"] == "2025-11-25"
    assert peer.result("ping") == {}


def test_discover_opens_the_modern_era(peer: Peer) -> None:
    result = peer.open(MODERN)
    assert result["supportedVersions"] == [MODERN]
    assert (result["ttlMs"], result["cacheScope"], result["resultType"]) == (0, "private", "complete")
    assert result["_meta"][SERVER_KEY]["name"] == "repl-trio"
    assert peer.connection.version == MODERN


def test_the_modern_era_needs_no_discover(peer: Peer) -> None:
    assert peer.result("tools/list", modern())["tools"]
    assert peer.connection.version == MODERN


def test_discover_without_an_envelope_is_unknown_and_initialize_still_works(peer: Peer) -> None:
    assert peer.error("server/discover")["code"] == -32601
    assert peer.open("2025-06-18")["protocolVersion"] == "2025-06-18"


@pytest.mark.parametrize("version", EVERY)
def test_the_list_is_one_page_that_nobody_may_cache(peer: Peer, version: str) -> None:
    peer.open(version)
    given = modern if version == MODERN else dict
    result = peer.result("tools/list", given({}))
    assert (result["ttlMs"], result["cacheScope"]) == (0, "private")
    assert "nextCursor" not in result
    assert len(result["tools"]) == 11
    assert ("resultType" in result) is (version == MODERN)
    error = peer.error("tools/list", given({"cursor": "SECRET"}))
    assert error["code"] == -32602
    assert error["message"].startswith("/params/cursor")
    assert "SECRET" not in error["message"]


HANDSHAKE_ONLY = ["ping", "logging/setLevel", "resources/subscribe"]
MODERN_ONLY = ["server/discover", "subscriptions/listen"]
NEVER = ["resources/list", "prompts/list", "tools", "", "TOOLS/LIST", "notifications/cancelled", "x" * 10_000]


@pytest.mark.parametrize("method", [*MODERN_ONLY, *NEVER, *HANDSHAKE_ONLY[1:]])
def test_methods_that_the_handshake_era_does_not_have(peer: Peer, method: str) -> None:
    peer.open("2025-11-25")
    error = peer.error(method)
    assert error["code"] == -32601
    assert len(error["message"]) < 300
    assert peer.result("ping") == {}


@pytest.mark.parametrize("method", [*HANDSHAKE_ONLY, *NEVER, "subscriptions/listen"])
def test_methods_that_the_modern_era_does_not_have(peer: Peer, method: str) -> None:
    peer.open(MODERN)
    assert peer.error(method, modern())["code"] == -32601


def test_initialize_on_a_modern_connection(peer: Peer) -> None:
    peer.open(MODERN)
    error = peer.error("initialize", {"protocolVersion": "2025-06-18"})
    assert error["code"] == -32022
    assert error["data"] == {"supported": [MODERN], "requested": "2025-06-18"}
    assert peer.error("initialize", {"protocolVersion": 7})["code"] == -32022


def test_an_enveloped_request_on_a_handshake_connection(peer: Peer) -> None:
    peer.open("2025-11-25")
    assert peer.error("tools/list", modern())["code"] == -32600
    assert peer.error("server/discover", modern())["code"] == -32600
    assert peer.result("tools/list")["tools"]


@pytest.mark.parametrize("key", [VERSION_KEY, CAPABILITIES_KEY])
@pytest.mark.parametrize("value", [None, 7, "absent"])
def test_a_modern_request_without_its_envelope(peer: Peer, key: str, value: object) -> None:
    peer.open(MODERN)
    meta = envelope() | {key: value}
    if value == "absent":
        del meta[key]
    error = peer.error("tools/list", {"_meta": meta})
    assert error["code"] == -32602
    assert key in error["message"]
    assert peer.error("tools/list")["code"] == -32602
    assert peer.result("tools/list", modern())["tools"]


def test_client_information_is_optional(peer: Peer) -> None:
    meta = envelope()
    del meta[CLIENT_KEY]
    assert peer.result("tools/list", {"_meta": meta})["tools"]
    assert peer.connection.client is None


def test_a_later_version_than_ours_is_told_what_we_speak(peer: Peer) -> None:
    error = peer.error("server/discover", {"_meta": envelope() | {VERSION_KEY: "2031-01-01"}})
    assert error["code"] == -32022
    assert error["data"] == {"supported": [MODERN], "requested": "2031-01-01"}
    # The probe decided the era, as its envelope says.
    assert peer.result("tools/list", modern())["tools"]


@pytest.mark.parametrize("meta", [7, "x", [1], True])
def test_meta_that_is_no_object(peer: Peer, meta: object) -> None:
    error = peer.error("tools/list", {"_meta": meta})
    assert error["code"] == -32602
    assert error["message"].startswith("/params/_meta")


def call(peer: Peer, version: str, request_id: object = 3, **more: Any) -> Call:
    params = {"name": "python_health", **more}
    if version == MODERN:
        params["_meta"] = envelope() | params.get("_meta", {})
    step = peer.step("tools/call", params, request_id)
    assert isinstance(step, Call)
    return step


@pytest.mark.parametrize("version", EVERY)
def test_a_call_and_its_answer(peer: Peer, version: str) -> None:
    peer.open(version)
    made = call(peer, version, "three", arguments={"a": 1})
    assert (made.id, made.tool, made.arguments) == ("three", "python_health", {"a": 1})
    assert made.modern is (version == MODERN)
    assert made.progress_token is None
    structured = {"success": False, "error": "e", "error_code": "E"}
    content: list[Message] = [{"type": "text", "text": "t"}]
    result = peer.judge(peer.connection.encode_tool_result(made, content, structured, is_error=True))["result"]
    assert (result["content"], result["structuredContent"], result["isError"]) == (content, structured, True)
    assert (result.get("resultType") == "complete") is (version == MODERN)


def test_a_call_without_arguments_has_none(peer: Peer) -> None:
    peer.open("2025-11-25")
    assert call(peer, "2025-11-25").arguments == {}
    assert call(peer, "2025-11-25", arguments=None).arguments == {}


@pytest.mark.parametrize("version", ["2024-11-05", MODERN])
@pytest.mark.parametrize("token", [0, 1, -7, "", "t5", "0"])
def test_a_progress_token_comes_back_as_it_was(peer: Peer, version: str, token: str | int) -> None:
    peer.open(version)
    made = call(peer, version, _meta={"progressToken": token})
    params = peer.judge(peer.connection.encode_progress(made, 1.5, "1 s: step"))["params"]
    assert (params["progressToken"], type(params["progressToken"])) == (token, type(token))
    assert (params["progress"], params["message"]) == (1.5, "1 s: step")


@pytest.mark.parametrize("token", [None, True, 1.5, [], {}])
def test_what_is_no_progress_token_asks_for_none(peer: Peer, token: object) -> None:
    assert call(peer, "2025-11-25", _meta={"progressToken": token}).progress_token is None


@pytest.mark.parametrize(
    ("params", "place"),
    [
        ({}, "/params/name"),
        ({"name": 7}, "/params/name"),
        ({"name": None}, "/params/name"),
        ({"name": "x", "arguments": []}, "/params/arguments"),
        ({"name": "x", "arguments": "SECRET"}, "/params/arguments"),
    ],
)
def test_a_call_that_is_none(peer: Peer, params: Message, place: str) -> None:
    peer.open("2025-11-25")
    error = peer.error("tools/call", params)
    assert error["code"] == -32602
    assert error["message"].startswith(place)
    assert "SECRET" not in error["message"]


@pytest.mark.parametrize("request_id", [0, 7, "", "seven"])
def test_cancelled_names_its_request(peer: Peer, request_id: object) -> None:
    step = note(peer, "notifications/cancelled", {"requestId": request_id, "reason": "r"})
    assert isinstance(step, Cancel)
    assert (step.id, type(step.id)) == (request_id, type(request_id))


@pytest.mark.parametrize("request_id", [None, True, 1.5, [1]])
def test_cancelled_without_a_request_is_nothing(peer: Peer, request_id: object) -> None:
    assert note(peer, "notifications/cancelled", {"requestId": request_id}) is None
    assert note(peer, "notifications/cancelled") is None


def note(peer: Peer, method: str, params: object = None) -> object:
    return peer.connection.receive(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())


@pytest.mark.parametrize("method", ["notifications/initialized", "notifications/roots/list_changed", "x", "tools/list"])
def test_no_notification_is_answered(peer: Peer, method: str) -> None:
    assert note(peer, method) is None
    assert note(peer, method, [1]) is None


def test_a_notification_does_not_decide_the_era(peer: Peer) -> None:
    note(peer, "notifications/initialized")
    assert peer.open(MODERN)["supportedVersions"] == [MODERN]


@pytest.mark.parametrize(("line", "code"), [(b"not json", -32700), (b"[]", -32600), (Oversized(2_000_000), -32600)])
def test_a_bad_line_is_answered_and_decides_nothing(peer: Peer, line: bytes | Oversized, code: int) -> None:
    step = peer.connection.receive(line)
    assert isinstance(step, Answer)
    message = peer.judge(step.line)
    assert (message["id"], message["error"]["code"]) == (None, code)
    assert peer.open(MODERN)["supportedVersions"] == [MODERN]
    assert peer.connection.receive(b" ") is None


def test_what_a_client_calls_itself_is_bounded(peer: Peer) -> None:
    peer.result("initialize", {"protocolVersion": "2025-11-25", "clientInfo": {"name": "x" * 1_000}})
    assert len(peer.connection.client or "") == 200


odd = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.lists(st.none(), max_size=1)
method_names = st.sampled_from(["initialize", "ping", "tools/list", "tools/call", "server/discover", "x"])
metas: st.SearchStrategy[Message] = st.fixed_dictionaries(
    {}, optional={VERSION_KEY: odd | st.just(MODERN), CAPABILITIES_KEY: odd | st.just({}), "progressToken": odd}
)
param_names = st.sampled_from(["protocolVersion", "clientInfo", "name", "arguments", "cursor"])
requests = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "id": st.integers(), "method": method_names},
    optional={
        "params": odd | st.tuples(st.dictionaries(param_names, odd), metas).map(lambda two: {**two[0], "_meta": two[1]})
    },
)


@untimed
@given(st.lists(requests, max_size=6))
def test_whatever_is_asked_is_answered_or_a_call(asked: list[Message]) -> None:
    peer = Peer()
    for message in asked:
        peer.oracle.sent(message)
        step = peer.connection.receive(json.dumps(message).encode())
        if isinstance(step, Answer):
            assert peer.judge(step.line)["id"] == message["id"]
        else:
            assert isinstance(step, Call)
            assert message["method"] == "tools/call"
