"""The spellings of many clients for one entry -> one `Draft`, or the reason why not.

Pure: no expansion, no file, no environment. Nothing is ignored in silence: a field that is not understood refuses its
entry, because it may be what keeps a peer harmless; those in `HARMLESS` only concern how another client shows or
approves things, and are reported. docs/servers.md lists them all.
"""

from __future__ import annotations

from dataclasses import dataclass

from .entries import DISABLED, OAuth, Refused

#: Fields of other clients that change nothing about what is started or allowed here.
HARMLESS = frozenset(
    (
        *("$comment", "$schema", "//", "_comment", "author", "category", "comment", "description", "displayName"),
        *("homepage", "icon", "iconPath", "icons", "id", "image", "label", "license", "name", "note", "notes"),
        *("provider", "repository", "source", "tags", "title", "version"),  # how it is shown
        *("alwaysAllow", "autoApprove", "trust"),  # whether another client asks before a call
        *("alwaysLoad", "autoStart", "autostart", "dev", "extensionName", "gallery", "priority", "watchPaths"),
    )
)

#: Fields that are understood and not followed; without them the entry would be something else than its author wrote.
_REFUSED = {
    "authProviderType": "the ways of one client to get a token are not followed; put the token into `headers`",
    "bearer_token_env_var": 'write "headers": {"Authorization": "Bearer ${NAME}"}',
    "cmd": "is called `command`",
    "environment": "is called `env`",
    "envFile": "no file with variables is read; write each variable into `env`, as ${NAME} where it is a credential",
    "headersHelper": "no command is run for headers; write them into `headers`, with ${NAME} for what changes",
    "requestInit": "write the headers into `headers`",
    "sandbox": "a process is not put into a sandbox here, and would do more than its author meant",
    "sandboxEnabled": "a process is not put into a sandbox here, and would do more than its author meant",
}

_KINDS = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamablehttp": "http",
    "remote": "http",
    "ws": "ws",
    "websocket": "ws",
    "sse": "sse",
}
_TRANSPORT = ("type", "transport", "transportType")
_URLS = ("url", "serverUrl", "httpUrl")
_ALLOWED = ("allowedTools", "includeTools", "enabled_tools", "tools")
_DENIED = ("disabledTools", "excludeTools", "disabled_tools")
#: Seconds in one unit of each.
_CONNECT = {"connectTimeout": 1.0, "startup_timeout_sec": 1.0, "startup_timeout_ms": 0.001}
_CALL = {"callTimeout": 1.0, "tool_timeout_sec": 1.0}
_SECONDS = 3600  # up to here a bare `timeout` is in seconds, as Cline and Roo write it; above in milliseconds

_STDIO_EXAMPLE = '{"command": "uvx", "args": ["mcp-server-time"]}'
_HTTP_EXAMPLE = '{"type": "http", "url": "https://example.com/mcp"}'
_STDIO_ONLY = ("command", "args", "env", "cwd")
_REMOTE_ONLY = (*_URLS, "headers", "oauth", "auth")
_OTHERS = ("timeout", "disabled", "enabled", "isActive", "brokerAllowed")
_KNOWN = frozenset(
    (*_TRANSPORT, *_STDIO_ONLY, *_REMOTE_ONLY, *_ALLOWED, *_DENIED, *_CONNECT, *_CALL, *_REFUSED, *_OTHERS)
)

_OAUTH_KEYS = {
    "clientId": "client_id",
    "client_id": "client_id",
    "CLIENT_ID": "client_id",
    "clientSecret": "client_secret",
    "client_secret": "client_secret",
    "CLIENT_SECRET": "client_secret",
    "scopes": "scopes",
    "scope": "scopes",
    "callbackPort": "callback_port",
    "authServerMetadataUrl": "metadata_url",
    "enabled": "enabled",
}

Fields = dict[str, object]


@dataclass(frozen=True, slots=True, repr=False)
class Draft:
    """One entry in this product's words, before expansion. `kind` is `stdio`, `http` or `ws`; timeouts in seconds.

    `broker_allowed` is None where the entry does not say.
    """

    kind: str
    command: str
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str
    url: str
    headers: tuple[tuple[str, str], ...]
    oauth: OAuth | None
    allowed_tools: frozenset[str] | None
    denied_tools: frozenset[str]
    connect_timeout: float | None
    call_timeout: float | None
    broker_allowed: bool | None
    ignored: tuple[str, ...]


def read_entry(raw: object) -> Draft:
    """The entry as one client or another has written it. Raises `Refused`."""
    if not isinstance(raw, dict):
        raise Refused("", f"must be an object, such as {_STDIO_EXAMPLE}")
    fields = _flattened(raw)
    if _flag(fields, "disabled") is True:
        raise Refused("disabled", "the entry is disabled", DISABLED)
    for name in ("enabled", "isActive"):
        if _flag(fields, name) is False:
            raise Refused(name, "the entry is disabled", DISABLED)
    ignored = _leftover(fields)
    kind = _kind(fields)
    stdio = kind == "stdio"
    return Draft(
        kind=kind,
        command=_command(fields) if stdio else "",
        args=_strings(fields, "args") or () if stdio else (),
        env=_pairs(fields, "env") if stdio else (),
        cwd=_string(fields, "cwd") or "" if stdio else "",
        url="" if stdio else _url(fields)[1],
        headers=() if stdio else _pairs(fields, "headers"),
        oauth=None if stdio else _oauth(fields),
        allowed_tools=_allowed(fields),
        denied_tools=frozenset(tool for name in _DENIED for tool in _strings(fields, name) or ()),
        connect_timeout=_seconds(fields, _CONNECT),
        call_timeout=_call_timeout(fields),
        broker_allowed=_flag(fields, "brokerAllowed"),
        ignored=ignored,
    )


def _flattened(raw: Fields) -> Fields:
    """The fields of an entry whose `transport` may be an object of its own; null says what an absent field says."""
    fields = dict(raw)
    inner = fields.get("transport")
    if isinstance(inner, dict):
        del fields["transport"]
        for name, value in inner.items():
            given = "transportType" if name == "type" else name
            if fields.get(given) is not None:
                raise Refused(shown(name), "is given twice, in the entry and in its `transport`")
            fields[given] = value
    return {name: value for name, value in fields.items() if value is not None or name not in _KNOWN}


def _leftover(fields: Fields) -> tuple[str, ...]:
    """The harmless fields; everything else must be known."""
    if fields.get("sandboxEnabled") is False:
        fields = {name: value for name, value in fields.items() if name not in ("sandboxEnabled", "sandbox")}
    for name in fields:
        if name in _REFUSED:
            raise Refused(name, _REFUSED[name])
        if name not in _KNOWN and name not in HARMLESS:
            raise Refused(shown(name), f"unknown field{_near(name)}; an entry with one is not used")
    return tuple(sorted(HARMLESS.intersection(fields)))


def _near(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, _KNOWN, 1, 0.7)
    return f", did you mean `{near[0]}`?" if near else ""


def _kind(fields: Fields) -> str:
    """The kind of transport, from what is said and what is there; contradictions are refused."""
    said = {_word(fields, name): name for name in _TRANSPORT if name in fields}
    if len(said) > 1:
        names = ", ".join(f"`{name}`" for name in said.values())
        raise Refused(next(iter(said.values())), f"contradicts itself: {names} name different transports")
    has_command, has_url = "command" in fields, any(name in fields for name in _URLS)
    if has_command and has_url:
        raise Refused(
            "command", f"a command and a URL contradict each other; write either {_STDIO_EXAMPLE} or {_HTTP_EXAMPLE}"
        )
    kind = next(iter(said), None) or ("stdio" if has_command else _scheme_kind(fields) if has_url else None)
    if kind is None:
        raise Refused("", f"neither a command nor a URL; write {_STDIO_EXAMPLE} or {_HTTP_EXAMPLE}")
    if kind == "sse":
        where = next(iter(said.values()))
        reason = "the old HTTP+SSE transport is not supported; most servers also have a streamable HTTP address"
        raise Refused(where, f"{reason}: {_HTTP_EXAMPLE}")
    _refuse_strangers(fields, kind)
    return kind


def _word(fields: Fields, name: str) -> str:
    word = fields[name]
    kind = _KINDS.get(word.lower().replace("_", "-")) if isinstance(word, str) else None
    if kind is None:
        raise Refused(name, f"unknown transport; known are stdio, http (streamable-http) and ws, as in {_HTTP_EXAMPLE}")
    return kind


def _scheme_kind(fields: Fields) -> str:
    return "ws" if _url(fields)[1].lower().startswith(("ws:", "wss:")) else "http"


def _refuse_strangers(fields: Fields, kind: str) -> None:
    """Fields of the other kind of transport would be without effect; where they are empty they say nothing."""
    example = _STDIO_EXAMPLE if kind == "stdio" else _HTTP_EXAMPLE
    for name in _REMOTE_ONLY if kind == "stdio" else _STDIO_ONLY:
        if fields.get(name):
            raise Refused(name, f"has no effect on a peer of type {kind}; write {example}")
    needed = ("command",) if kind == "stdio" else _URLS
    if not any(name in fields for name in needed):
        raise Refused(needed[0], f"is missing; write {example}")


def _command(fields: Fields) -> str:
    command = fields["command"]
    if isinstance(command, list):
        raise Refused("command", f"must be the program alone; the rest belongs into `args`: {_STDIO_EXAMPLE}")
    if not isinstance(command, str) or not command.strip():
        raise Refused("command", f"must be the name or path of a program: {_STDIO_EXAMPLE}")
    return command


def _url(fields: Fields) -> tuple[str, str]:
    """The field that holds the URL, and the URL."""
    given = [name for name in _URLS if name in fields]
    urls = {_string(fields, name) or "" for name in given}
    if len(urls) > 1:
        raise Refused(given[0], f"contradicts {', '.join(f'`{name}`' for name in given[1:])}; give one URL")
    if not (url := urls.pop()).strip():
        raise Refused(given[0], f"must be a URL: {_HTTP_EXAMPLE}")
    return given[0], url


def _string(fields: Fields, name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(name, f"must be a string{_found(value)}")
    return value


def _strings(fields: Fields, name: str) -> tuple[str, ...] | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise Refused(name, f"must be a list of strings{_found(value)}")
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise Refused(f"{name}[{index}]", f"must be a string{_found(item)}{_quotes(item)}")
    return tuple(value)


def _pairs(fields: Fields, name: str) -> tuple[tuple[str, str], ...]:
    value = fields.get(name)
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise Refused(name, f"must be an object of strings{_found(value)}")
    for key, item in value.items():
        if not isinstance(item, str):
            raise Refused(f"{name}.{shown(key)}", f"must be a string{_found(item)}{_quotes(item)}")
    return tuple(value.items())


def _flag(fields: Fields, name: str) -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refused(name, f"must be true or false{_found(value)}")
    return value


def _allowed(fields: Fields) -> frozenset[str] | None:
    """What every allowlist of the entry lets pass; None when there is none."""
    lists = []
    for name in _ALLOWED:
        tools = _strings(fields, name)
        if tools is None or (name == "tools" and tools == ("*",)):
            continue
        if "*" in tools:
            raise Refused(name, f"`*` is no name of a tool; leave `{name}` out to allow every tool")
        lists.append(frozenset(tools))
    return frozenset.intersection(*lists) if lists else None


def _seconds(fields: Fields, units: dict[str, float]) -> float | None:
    given = [name for name in units if name in fields]
    if len(given) > 1:
        raise Refused(given[1], f"contradicts `{given[0]}`; give one of them")
    return _positive(fields, given[0]) * units[given[0]] if given else None


def _call_timeout(fields: Fields) -> float | None:
    timeout = _seconds(fields, _CALL)
    if "timeout" not in fields:
        return timeout
    other = _positive(fields, "timeout")
    other = other if other <= _SECONDS else other / 1000
    # Ours is the more exact word where both are given; the other client goes on reading its own.
    return other if timeout is None else timeout


def _positive(fields: Fields, name: str) -> float:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise Refused(name, f"must be a positive number{_found(value) if not isinstance(value, int | float) else ''}")
    return float(value)


def _oauth(fields: Fields) -> OAuth | None:
    given = [name for name in ("oauth", "auth") if name in fields]
    if len(given) > 1:
        raise Refused("auth", "contradicts `oauth`; give one of them")
    if not given:
        return None
    name, value = given[0], fields[given[0]]
    if isinstance(value, bool):
        return OAuth() if value else None
    if name == "auth" and value == "oauth":
        return OAuth()
    if not isinstance(value, dict):
        raise Refused(name, f"must be an object{_found(value)}")
    said: Fields = {}
    for key, item in value.items():
        known = _OAUTH_KEYS.get(key)
        if known is None:
            raise Refused(f"{name}.{shown(key)}", "unknown field; an entry with one is not used")
        said[known] = _oauth_value(f"{name}.{key}", known, item)
    if said.pop("enabled", True) is False:
        return None
    return OAuth(**said)  # type: ignore[arg-type]  # each has passed _oauth_value


def _oauth_value(field: str, known: str, value: object) -> object:
    if known == "enabled":
        return _flag({field: value}, field)
    if known == "scopes":
        return tuple(value.split()) if isinstance(value, str) else _strings({field: value}, field) or ()
    if known == "callback_port":
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65536:
            raise Refused(field, "must be a port number")
        return value
    return _string({field: value}, field)


def _found(value: object) -> str:
    """What is there instead, by its kind alone."""
    kinds = {bool: "a truth value", int: "a number", float: "a number", str: "a string", list: "a list"}
    return f", not {kinds.get(type(value), 'null' if value is None else 'an object')}"


def _quotes(value: object) -> str:
    return "; put it in quotes" if isinstance(value, int | float) else ""


def shown(name: str) -> str:
    """A field name in a message: it comes from a file, so it is bounded and holds no control character."""
    return "".join(c if c.isprintable() else "?" for c in name[:100])
