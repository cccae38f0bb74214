"""How the clients in the wild spell an entry: each spelling is mapped, or refused with the field and a way out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_trio.broker.config.dialects import HARMLESS, Draft, read_entry
from repl_trio.broker.config.entries import DISABLED, FAULT, OAuth, Refused

URL = "http://127.0.0.1:9/mcp"
OTHER = "http://127.0.0.1:8/mcp"
STDIO: dict[str, Any] = {"command": "x"}


def refusal(raw: object) -> Refused:
    with pytest.raises(Refused) as caught:
        read_entry(raw)
    return caught.value


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ({"url": URL}, "http"),
        ({"type": "http", "url": URL}, "http"),
        ({"type": "streamable-http", "url": URL}, "http"),
        ({"type": "streamableHttp", "url": URL}, "http"),
        ({"type": "streamable_http", "url": URL}, "http"),
        ({"transport": "http", "url": URL}, "http"),
        ({"transportType": "streamable-http", "url": URL}, "http"),
        ({"transport": {"type": "http", "url": URL}}, "http"),
        ({"type": "http", "transport": {"type": "streamable-http", "url": URL}}, "http"),
        ({"serverUrl": URL}, "http"),
        ({"httpUrl": URL}, "http"),
        ({"httpUrl": URL, "url": URL}, "http"),
        ({"type": "ws", "url": "ws://h"}, "ws"),
        ({"url": "WSS://h"}, "ws"),
        ({"command": "x"}, "stdio"),
        ({"type": "stdio", "command": "x"}, "stdio"),
        ({"type": "local", "command": "x"}, "stdio"),
        ({"transport": {"type": "stdio", "command": "x", "args": []}}, "stdio"),
        # What says nothing contradicts nothing.
        ({"type": "http", "url": URL, "command": None, "args": [], "env": {}, "cwd": None}, "http"),
        ({"command": "x", "url": None, "headers": {}, "oauth": None}, "stdio"),
    ],
)
def test_each_spelling_of_a_transport_is_understood(raw: dict[str, object], kind: str) -> None:
    draft = read_entry(raw)
    assert draft.kind == kind
    assert (draft.url or "x").lower() in (URL, "ws://h", "wss://h", "x")
    assert draft.ignored == ()


@pytest.mark.parametrize(
    ("raw", "field", "words"),
    [
        ([], "", "must be an object"),
        ("npx x", "", "must be an object"),
        ({}, "", "neither a command nor a URL"),
        ({"type": "sse", "url": URL}, "type", "HTTP+SSE"),
        ({"transport": "sse", "url": URL}, "transport", "HTTP+SSE"),
        ({"transport": {"type": "sse", "url": URL}}, "transportType", "HTTP+SSE"),
        ({"command": "x", "url": URL}, "command", "contradict"),
        ({"type": "http", "command": "x"}, "command", "no effect"),
        ({"type": "stdio", "url": URL}, "url", "no effect"),
        ({"type": "http"}, "url", "missing"),
        ({"type": "stdio"}, "command", "missing"),
        ({"type": "grpc", "url": URL}, "type", "unknown transport"),
        ({"type": 1, "url": URL}, "type", "unknown transport"),
        ({"type": "stdio", "transport": "http", "url": URL}, "type", "contradicts itself"),
        ({"url": URL, "transport": {"url": URL}}, "url", "twice"),
        ({"url": URL, "serverUrl": OTHER}, "url", "contradicts `serverUrl`"),
        ({"url": " "}, "url", "must be a URL"),
        ({"url": 5}, "url", "must be a string, not a number"),
        ({"command": ["npx", "x"]}, "command", "`args`"),
        ({"command": " "}, "command", "name or path"),
        ({**STDIO, "args": "-y x"}, "args", "must be a list of strings, not a string"),
        ({**STDIO, "args": ["a", 8080]}, "args[1]", "must be a string, not a number; put it in quotes"),
        ({**STDIO, "args": ["a", None]}, "args[1]", "not null"),
        ({**STDIO, "env": ["A=1"]}, "env", "must be an object of strings, not a list"),
        ({**STDIO, "env": {"PORT": 8080}}, "env.PORT", "must be a string, not a number; put it in quotes"),
        ({**STDIO, "env": {"DEBUG": True}}, "env.DEBUG", "not a truth value; put it in quotes"),
        ({**STDIO, "headers": {"A": "b"}}, "headers", "no effect on a peer of type stdio"),
        ({**STDIO, "oauth": {"clientId": "x"}}, "oauth", "no effect"),
        ({"url": URL, "env": {"A": "b"}}, "env", "no effect on a peer of type http"),
        ({"url": URL, "cwd": "/"}, "cwd", "no effect"),
        ({"url": URL, "headers": {"A": 1}}, "headers.A", "put it in quotes"),
        ({**STDIO, "comand": "x"}, "comand", "did you mean `command`?"),
        ({**STDIO, "zzzzzz": 1}, "zzzzzz", "unknown field;"),
        ({**STDIO, "transport": {"zzzzzz": 1}}, "zzzzzz", "unknown field;"),
        ({**STDIO, "a\nb" + "c" * 200: 1}, "a?b" + "c" * 97, "unknown field"),
        ({**STDIO, "disabled": "true"}, "disabled", "must be true or false, not a string"),
        ({**STDIO, "brokerAllowed": 1}, "brokerAllowed", "must be true or false"),
        ({**STDIO, "envFile": ".env"}, "envFile", "${NAME}"),
        ({**STDIO, "environment": {}}, "environment", "`env`"),
        ({**STDIO, "sandboxEnabled": True}, "sandboxEnabled", "sandbox"),
        ({**STDIO, "sandbox": {}}, "sandbox", "sandbox"),
        ({"url": URL, "headersHelper": "x"}, "headersHelper", "no command is run"),
        ({"url": URL, "authProviderType": "google_credentials"}, "authProviderType", "headers"),
        ({"url": URL, "bearer_token_env_var": "X"}, "bearer_token_env_var", "Bearer ${NAME}"),
        ({**STDIO, "allowedTools": "a"}, "allowedTools", "list"),
        ({**STDIO, "allowedTools": ["*"]}, "allowedTools", "leave `allowedTools` out"),
        ({**STDIO, "includeTools": ["*"]}, "includeTools", "leave `includeTools` out"),
        ({**STDIO, "tools": ["a", "*"]}, "tools", "no name of a tool"),
        ({**STDIO, "timeout": "60"}, "timeout", "positive number, not a string"),
        ({**STDIO, "timeout": 0}, "timeout", "positive number"),
        ({**STDIO, "timeout": True}, "timeout", "positive number"),
        ({**STDIO, "connectTimeout": -1}, "connectTimeout", "positive number"),
        ({**STDIO, "startup_timeout_ms": 1, "startup_timeout_sec": 1}, "startup_timeout_ms", "contradicts"),
        ({"url": URL, "oauth": "yes"}, "oauth", "must be an object"),
        ({"url": URL, "oauth": {"xaa": True}}, "oauth.xaa", "unknown field"),
        ({"url": URL, "oauth": {"callbackPort": "8080"}}, "oauth.callbackPort", "port"),
        ({"url": URL, "oauth": {"callbackPort": 70_000}}, "oauth.callbackPort", "port"),
        ({"url": URL, "oauth": {"callbackPort": True}}, "oauth.callbackPort", "port"),
        ({"url": URL, "oauth": {"clientId": 1}}, "oauth.clientId", "must be a string"),
        ({"url": URL, "oauth": {"scopes": [1]}}, "oauth.scopes[0]", "must be a string"),
        ({"url": URL, "oauth": {"enabled": 1}}, "oauth.enabled", "true or false"),
        ({"url": URL, "oauth": {}, "auth": {}}, "auth", "contradicts"),
    ],
)
def test_what_is_not_understood_names_its_field_and_the_way_out(raw: object, field: str, words: str) -> None:
    refused = refusal(raw)
    assert (refused.field, refused.rule) == (field, FAULT)
    assert words in refused.reason


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({**STDIO, "disabled": True}, "disabled"),
        ({**STDIO, "enabled": False}, "enabled"),
        ({**STDIO, "isActive": False}, "isActive"),
        # Disabled is what its author wants to hear, whatever else is wrong with it.
        ({"disabled": True, "zzz": 1}, "disabled"),
    ],
)
def test_a_disabled_entry_says_so(raw: object, field: str) -> None:
    refused = refusal(raw)
    assert (refused.field, refused.rule) == (field, DISABLED)


def test_an_entry_that_is_not_disabled_is_used() -> None:
    assert read_entry({**STDIO, "disabled": False, "enabled": True, "isActive": True}).kind == "stdio"


def test_harmless_fields_are_reported_and_change_nothing() -> None:
    plain = read_entry(STDIO)
    dressed = read_entry({**STDIO, **{name: {"any": ["thing"]} for name in HARMLESS}})
    assert dressed.ignored == tuple(sorted(HARMLESS))
    assert {slot: getattr(dressed, slot) for slot in Draft.__slots__ if slot != "ignored"} == {
        slot: getattr(plain, slot) for slot in Draft.__slots__ if slot != "ignored"
    }


def test_a_sandbox_that_is_off_is_none() -> None:
    assert read_entry({**STDIO, "sandboxEnabled": False, "sandbox": {"network": {}}}).kind == "stdio"


@pytest.mark.parametrize(
    ("raw", "allowed", "denied"),
    [
        ({}, None, set()),
        ({"allowedTools": ["a", "b"]}, {"a", "b"}, set()),
        ({"allowedTools": []}, set(), set()),
        ({"includeTools": ["a"]}, {"a"}, set()),
        ({"enabled_tools": ["a"]}, {"a"}, set()),
        ({"tools": ["*"]}, None, set()),
        ({"tools": []}, set(), set()),
        ({"tools": ["a"], "allowedTools": ["a", "b"]}, {"a"}, set()),
        ({"tools": ["*"], "allowedTools": ["a", "b"]}, {"a", "b"}, set()),
        ({"disabledTools": ["a"], "excludeTools": ["b"], "disabled_tools": ["c"]}, None, {"a", "b", "c"}),
        ({"allowedTools": None}, None, set()),
    ],
)
def test_lists_of_tools_only_narrow(raw: dict[str, object], allowed: set[str] | None, denied: set[str]) -> None:
    draft = read_entry({**STDIO, **raw})
    assert draft.allowed_tools == allowed
    assert draft.denied_tools == denied


@pytest.mark.parametrize(
    ("raw", "connect", "call"),
    [
        ({}, None, None),
        ({"timeout": 60}, None, 60),  # Cline, Roo: seconds
        ({"timeout": 3600}, None, 3600),
        ({"timeout": 5000}, None, 5),  # Claude Code, Gemini: milliseconds
        ({"timeout": 600_000}, None, 600),
        ({"callTimeout": 0.5, "timeout": 600_000}, None, 0.5),
        ({"connectTimeout": 5000}, 5000, None),
        ({"startup_timeout_sec": 20, "tool_timeout_sec": 90}, 20, 90),
        ({"startup_timeout_ms": 1500}, 1.5, None),
    ],
)
def test_timeouts_are_seconds(raw: dict[str, object], connect: float | None, call: float | None) -> None:
    draft = read_entry({**STDIO, **raw})
    assert (draft.connect_timeout, draft.call_timeout) == (connect, call)


@pytest.mark.parametrize(
    ("raw", "oauth"),
    [
        ({}, None),
        ({"oauth": False}, None),
        ({"oauth": {"enabled": False, "clientId": "x"}}, None),
        ({"oauth": True}, OAuth()),
        ({"oauth": {}}, OAuth()),
        ({"auth": "oauth"}, OAuth()),
        ({"oauth": {"clientId": "i", "clientSecret": "s", "callbackPort": 8080}}, OAuth("i", "s", (), 8080)),
        ({"oauth": {"scopes": "a b", "authServerMetadataUrl": URL}}, OAuth(scopes=("a", "b"), metadata_url=URL)),
        ({"auth": {"CLIENT_ID": "i", "CLIENT_SECRET": "s", "scopes": ["a"]}}, OAuth("i", "s", ("a",))),
    ],
)
def test_what_is_said_of_authorization(raw: dict[str, object], oauth: OAuth | None) -> None:
    assert read_entry({"url": URL, **raw}).oauth == oauth


# Anything a file can hold, under names that mean something.
NAMES = (
    *("type", "transport", "transportType", "command", "args", "env", "cwd", "url", "serverUrl", "headers", "oauth"),
    *("auth", "timeout", "connectTimeout", "disabled", "allowedTools", "tools", "brokerAllowed", "description", "zzz"),
)
names = st.sampled_from(NAMES)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["stdio", "http", "ws", URL, "", "s3cr3t"])
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@given(raw=st.dictionaries(names, anything, max_size=6) | anything)
def test_any_value_is_an_entry_or_a_reason_without_a_value(raw: object) -> None:
    try:
        draft = read_entry(raw)
    except Refused as caught:
        refused = caught
    else:
        assert draft.kind in ("stdio", "http", "ws")
        assert bool(draft.command) == (draft.kind == "stdio")
        assert bool(draft.url) != (draft.kind == "stdio")
        return
    assert refused.reason
    assert "s3cr3t" not in str(refused)
