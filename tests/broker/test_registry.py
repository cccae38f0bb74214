"""The registry of a project: what its entries become, what is wrong with the rest, and that looking has no effects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from repl_trio.broker.config.entries import (
    FAULT,
    ITSELF,
    RECURSION,
    UNREADABLE,
    Entry,
    Fault,
    OAuth,
    Remote,
    Snapshot,
    Stdio,
)
from repl_trio.broker.grants import decide
from repl_trio.limits import Limits
from tests.broker.place import Place, entry, fault, write

ROOT = Path(__file__).resolve().parents[2]
BOUND = 30.0
"""seconds. For a child interpreter."""
URL = "http://127.0.0.1:9/mcp"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# -- what an entry becomes -------------------------------------------------------------------------------------


def test_no_file_is_no_fault(place: Place) -> None:
    assert place.look() == Snapshot({})


@pytest.mark.parametrize("content", [{}, {"mcpServers": {}}, {"servers": {}, "inputs": []}, {"mcpServers": None}])
def test_a_file_may_list_nothing(place: Place, content: object) -> None:
    write(place.project / ".mcp.json", content)
    assert place.look() == Snapshot({})


def test_variables_are_expanded_and_a_missing_one_costs_its_entry_alone(place: Place) -> None:
    """CFG-A01."""
    place.environment["K_SECRET"] = "s3cr3t-value"
    place.servers(
        a={"command": "${PY:-python3}", "args": ["peer.py", "${TAG:-t1}"], "env": {"K": "${K_SECRET}"}},
        b={
            "type": "http",
            "url": "http://127.0.0.1:${PORT:-9}/mcp",
            "headers": {"Authorization": "Bearer ${NOPE}"},
        },
    )
    snapshot = place.look()
    cwd = str(place.project)
    assert entry(snapshot, "a").target == Stdio("python3", ("peer.py", "t1"), (("K", "s3cr3t-value"),), cwd)
    assert fault(snapshot, "b").field == "headers.Authorization"
    assert "NOPE" in fault(snapshot, "b").reason
    assert snapshot.secrets == {"s3cr3t-value"}
    assert "s3cr3t" not in repr(snapshot)


def test_bom_and_line_ends_are_accepted_and_the_file_is_never_written(place: Place) -> None:
    """CFG-A02."""
    path = place.project / ".mcp.json"
    good = b"\xef\xbb\xbf" + b'{\r\n "mcpServers": {"a": {"command": "x"}}\r\n}\r\n'
    bad = b'{"mcpServers": {\r\n"a": {"command": "x",}}}'
    for raw in (good, bad):
        path.write_bytes(raw)
        os.utime(path, ns=(10**18, 10**18))
        snapshot = place.look()
        assert path.read_bytes() == raw
        assert os.stat(path).st_mtime_ns == 10**18
        if raw is good:
            assert list(snapshot.entries) == ["a"]
        else:
            assert str(snapshot.faults[0]).startswith(f"{path}: is not JSON: line 2, column ")
            assert snapshot.entries == {}


def test_each_dialect_is_usable_or_reported(place: Place) -> None:
    """CFG-A03."""
    place.servers(
        plain={"url": URL},
        spelled={"type": "streamable-http", "url": URL},
        old={"transport": "sse", "url": URL},
        nested={"transport": {"type": "http", "url": URL}},
        both={"command": "x", "url": URL},
        ws={"type": "ws", "url": "ws://h", "oauth": {"clientId": "i"}},
    )
    snapshot = place.look()
    assert {name for name, found in snapshot.entries.items() if isinstance(found, Entry)} == {
        *("plain", "spelled", "nested", "ws")
    }
    assert entry(snapshot, "plain").identity == entry(snapshot, "nested").identity == Remote("http", URL)
    assert entry(snapshot, "ws").target == Remote("ws", "ws://h", oauth=OAuth("i"))
    assert fault(snapshot, "old").field == "transport"
    assert "streamable HTTP" in fault(snapshot, "old").reason
    assert "contradict" in fault(snapshot, "both").reason


def test_looking_starts_nothing(place: Place) -> None:
    """CFG-A04."""
    mark = place.project / "pwned"
    place.servers(a={"command": "touch", "args": [str(mark)]}, b={"command": f"touch {mark}"})
    registry = place.registry()
    registry.look()
    assert decide(registry.refresh(), "a").reason == "listed in the project's .mcp.json"
    assert not mark.exists()


def test_the_files_of_vs_code_are_understood_where_they_are_named(place: Place) -> None:
    path = place.project / "mcp.json"
    write(
        path,
        {
            "inputs": [{"type": "promptString", "id": "key"}],
            "servers": {
                "a": {"type": "stdio", "command": "x", "args": ["${workspaceFolder}/y"], "env": {"A": "${env:HOME}"}},
                "b": {"type": "http", "url": URL, "headers": {"K": "${input:key}"}},
            },
        },
    )
    snapshot = place.look(config=str(path))
    cwd = str(place.project)
    assert entry(snapshot, "a").target == Stdio("x", (f"{cwd}/y",), (("A", str(place.home)),), cwd)
    assert entry(snapshot, "a").scope == "config"
    assert fault(snapshot, "b").field == "headers.K"
    assert snapshot.secrets == frozenset()


@pytest.mark.parametrize(
    ("given", "cwd"),
    [(None, ""), ("", ""), (".", ""), ("sub/../x", "/x"), ("${workspaceFolder}/x", "/x"), ("~/x", None), ("/x", None)],
)
def test_a_working_directory_is_counted_from_the_project(place: Place, given: str | None, cwd: str | None) -> None:
    place.servers(a={"command": "x", "cwd": given})
    target = entry(place.look(), "a").target
    assert isinstance(target, Stdio)
    expected = {"~/x": f"{place.home}/x", "/x": "/x"}.get(given or "") or f"{place.project}{cwd}"
    assert target.cwd == expected


def test_a_program_in_the_home_is_found_by_its_tilde(place: Place) -> None:
    place.servers(a={"command": "~/bin/x"})
    target = entry(place.look(), "a").target
    assert isinstance(target, Stdio)
    assert target.command == f"{place.home}/bin/x"


@pytest.mark.parametrize(
    ("raw", "field", "words"),
    [
        ({"command": "${EMPTY}"}, "command", "expands to nothing"),
        ({"command": "x", "args": ["\0"]}, "args[0]", "NUL"),
        ({"command": "x", "env": {"A=B": "c"}}, "env.A=B", "no name of an environment variable"),
        ({"command": "x", "env": {"": "c"}}, "env.", "no name"),
        ({"command": "x", "env": {"\ud800": "c"}}, "env.?", "no name"),
        ({"command": "x", "env": {"K": "$TOKEN"}}, "env.K", "${NAME} here"),
        ({"url": URL, "headers": {"A": "Bearer $TOKEN"}}, "headers.A", "${NAME} here"),
        ({"url": URL, "headers": {"A b": "c"}}, "headers.A b", "no name of a header"),
        ({"url": URL, "headers": {"": "c"}}, "headers.", "no name of a header"),
        ({"url": URL, "headers": {"A": "${LINE}"}}, "headers.A", "line break"),
        ({"url": URL, "headers": {"A": "é"}}, "headers.A", "no header may hold"),
        ({"url": URL, "headers": {"A": "b", "a": "c"}}, "headers.a", "twice"),
        ({"url": "ftp://h/"}, "url", "must begin with http:// or https://"),
        ({"url": "unix:///tmp/s"}, "url", "must begin with http://"),
        ({"type": "ws", "url": URL}, "url", "must begin with ws:// or wss://"),
        ({"url": "http://"}, "url", "names no host"),
        ({"url": "http://h:0/"}, "url", "names no host and port"),
        ({"url": "http://h:99999/"}, "url", "is not a URL"),
        ({"url": "http://[h/"}, "url", "is not a URL"),
        ({"url": "http://h/a b"}, "url", "holds a space"),
        ({"url": URL, "oauth": {"clientSecret": "$SECRET"}}, "oauth.client_secret", "${NAME} here"),
        ({"url": URL, "oauth": {"authServerMetadataUrl": "file:///x"}}, "oauth.metadata_url", "must begin with http"),
        ({"command": "repl-trio"}, "command", "this very server"),
    ],
)
def test_what_cannot_be_started_names_its_field(place: Place, raw: object, field: str, words: str) -> None:
    place.environment |= {"EMPTY": "", "LINE": "s3cr3t\n"}
    place.servers(a=raw, good={"command": "x"})
    snapshot = place.look()
    found = fault(snapshot, "a")
    assert (found.field, found.rule) == (field, ITSELF if field == "command" and "very" in words else FAULT)
    assert words in str(found)
    assert "s3cr3t" not in str(found)
    assert entry(snapshot, "good").name == "good"


def test_a_dollar_in_a_password_is_a_dollar(place: Place) -> None:
    place.servers(a={"command": "x", "env": {"K": "pa$word", "L": "$lower", "M": "$"}})
    assert dict(entry(place.look(), "a").target.env) == {"K": "pa$word", "L": "$lower", "M": "$"}  # type: ignore[union-attr]


def test_every_value_that_may_be_a_credential_is_a_secret(place: Place) -> None:
    place.environment |= {
        "TOKEN": "token-of-args",
        "PLACE": "host.example",
        "QUERY": "k%65y-of-query",
        "PY": "/opt/python",
    }
    place.servers(
        a={"command": "${PY}", "args": ["--key=${TOKEN}", "plain"], "env": {"A": "value-of-env", "P": "${cwd}"}},
        b={
            "url": "https://us%41r:pass-word@${PLACE}:8/s/abcdefghij0123456789/mcp?key=${QUERY}&flag#frag",
            "headers": {"X-Key": "value-of-header"},
            "oauth": {"clientId": "client-id", "clientSecret": "client-secret"},
        },
    )
    snapshot = place.look()
    assert snapshot.secrets == {
        *("token-of-args", "value-of-env", "value-of-header", "client-secret"),
        *("us%41r", "usAr", "pass-word", "k%65y-of-query", "key-of-query", "flag", "frag", "abcdefghij0123456789"),
    }
    target = entry(snapshot, "b").target
    assert isinstance(target, Remote)
    assert target.oauth == OAuth("client-id", "client-secret")
    for secret in snapshot.secrets:
        assert secret not in repr(snapshot.entries)


def test_timeouts_stay_within_those_of_runs(place: Place) -> None:
    place.servers(a={"command": "x", "connectTimeout": 0.001, "callTimeout": 1e9}, b={"command": "x"})
    snapshot = place.look()
    assert (entry(snapshot, "a").connect_timeout, entry(snapshot, "a").call_timeout) == (0.01, 3600.0)
    assert (entry(snapshot, "b").connect_timeout, entry(snapshot, "b").call_timeout) == (None, None)


def test_equal_entries_share_a_peer_and_keep_their_grants(place: Place) -> None:
    place.servers(
        a={"command": "x", "allowedTools": ["one"]},
        b={"command": "x", "description": "the same", "disabledTools": ["two"]},
        c={"command": "x", "env": {"K": "v"}},
    )
    snapshot = place.look()
    a, b, c = (entry(snapshot, name) for name in "abc")
    assert a.identity == b.identity != c.identity
    assert hash(a.identity) == hash(b.identity)
    assert (a.allowed_tools, a.denied_tools) == (frozenset(("one",)), frozenset())
    assert (b.allowed_tools, b.denied_tools, b.ignored) == (None, frozenset(("two",)), ("description",))


# -- names and numbers -----------------------------------------------------------------------------------------


def test_a_name_of_the_limits_size_is_taken_and_a_longer_one_is_not(place: Place) -> None:
    place.servers(**{"é" * 100: {"command": "x"}, "n" * 201: {"command": "x"}})
    snapshot = place.look()
    assert entry(snapshot, "é" * 100).name == "é" * 100
    long = fault(snapshot, "n" * 100)
    assert long.reason == "its name is 201 bytes long; the limit `server_name_bytes` allows 200"


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x1b[31m", "\ud800"])
def test_a_name_that_cannot_be_shown_is_refused(place: Place, name: str) -> None:
    place.servers(**{name: {"command": "x"}})
    (found,) = place.look().entries.values()
    assert isinstance(found, Fault)
    assert "its name must hold something" in found.reason


def test_files_are_bounded_in_entries_and_bytes(place: Place) -> None:
    many = {f"s{index}": {"command": "x"} for index in range(4)}
    place.servers(**many)
    assert len(place.look(limits=Limits.overridden({"config_entries": "4"})).entries) == 4
    (found,) = place.look(limits=Limits.overridden({"config_entries": "3"})).faults
    assert found.reason == "has 4 entries; the limit `config_entries` allows 3"
    # Each entry and its command is a value.
    assert place.look(limits=Limits.overridden({"config_values": "8"})).faults == ()
    (found,) = place.look(limits=Limits.overridden({"config_values": "7"})).faults
    assert found.reason == "has entries with 8 values and lines; the limit `config_values` allows 7"
    size = os.stat(place.project / ".mcp.json").st_size
    assert place.look(limits=Limits.overridden({"config_bytes": str(size)})).faults == ()
    (found,) = place.look(limits=Limits.overridden({"config_bytes": str(size - 1)})).faults
    assert f"is larger than the {size - 1} bytes that the limit `config_bytes` allows" in str(found)
    place.servers(one={"command": "x", "args": ["-c"], "env": {"KEY": "first\nsecond\nthird"}})
    assert place.look(limits=Limits.overridden({"config_values": "8"})).faults == ()
    assert len(place.look(limits=Limits.overridden({"config_values": "7"})).faults) == 1


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("[]", "the whole must be an object"),
        ("null", "the whole must be an object"),
        ('{"mcpServers": []}', "`mcpServers` must be an object: "),
        ('{"mcpServers": {}, "servers": {}}', "keep one of them"),
        ('{"mcpServer": {}}', "has no `mcpServers`"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "the key 'a' is there twice"),
        ('{"mcpServers": {"a": {"command": "s3cr3t", "command": "y"}}}', "the key 'command' is there twice"),
        ('{"mcpServers": {"a": {"command": NaN}}}', "NaN"),
    ],
)
def test_a_file_that_cannot_be_understood_fails_as_a_whole(place: Place, raw: str, words: str) -> None:
    (place.project / ".mcp.json").write_text(raw)
    snapshot = place.look()
    assert snapshot.entries == {}
    (found,) = snapshot.faults
    assert (found.path, found.scope) == (str(place.project / ".mcp.json"), "project")
    assert words in found.reason
    assert "s3cr3t" not in str(found)
    assert decide(snapshot, "a").rule == UNREADABLE


def test_what_lies_in_the_files_place_does_not_block(place: Place) -> None:
    os.mkfifo(place.project / ".mcp.json")
    (found,) = place.look().faults
    assert found.reason == "is a FIFO, not a file"


# -- recursion, change, cost -----------------------------------------------------------------------------------


def test_a_server_that_a_broker_started_reaches_nothing(place: Place) -> None:
    place.servers(a={"command": "x"})
    place.environment[RECURSION[0]] = RECURSION[1]
    registry = place.registry()
    snapshot = registry.refresh()
    assert snapshot.entries == {}
    assert "started by a broker" in (snapshot.blocked or "")
    assert decide(snapshot, "a").rule == "recursion"
    place.environment[RECURSION[0]] = "on"
    assert isinstance(place.look().entries["a"], Entry)


def test_an_edit_is_seen_at_the_next_look(place: Place) -> None:
    registry = place.registry()
    assert registry.look().version == 0
    place.servers(a={"command": "x"})
    first = registry.look()
    assert (first.version, set(first.entries)) == (1, {"a"})
    assert registry.look() is first
    place.servers(a={"command": "y"})
    second = registry.look()
    assert second.version == 2
    assert entry(second, "a").identity != entry(first, "a").identity
    write(place.project / ".claude/settings.json", {"disabledMcpServers": ["a"]})
    assert registry.look().version == 3
    (place.project / ".mcp.json").write_text("{")
    broken = registry.look()
    assert (broken.version, broken.entries) == (4, {})
    place.servers(a={"command": "y"})
    assert (registry.look().version, set(registry.look().entries)) == (5, {"a"})


def test_reading_again_what_has_not_changed_makes_no_new_version(place: Place) -> None:
    place.servers(a={"command": "x", "env": {"A": "value-of-env"}})
    registry = place.registry()
    first = registry.look()
    again = registry.refresh()
    assert again == first
    assert again.secrets == {"value-of-env"}


_IDLE = """
import sys
sys.path.insert(0, sys.argv[1])
from repl_trio.broker.grants import decide
from repl_trio.broker.config.registry import Registry
registry = Registry(sys.argv[2], {"HOME": sys.argv[2]})
snapshot = registry.look()
assert decide(snapshot, "s0").allowed and len(snapshot.entries) == 10, snapshot
heavy = {"json", "trio", "anyio", "mcp", "pydantic", "jsonschema", "sqlite3", "asyncio", "shlex", "difflib"}
print(sorted(heavy & set(sys.modules)))
"""


def test_looking_at_ten_entries_imports_nothing_heavy(place: Place) -> None:
    place.servers(
        **{f"s{index}": {"command": "python3", "args": ["peer.py", str(index)]} for index in range(9)},
        web={"url": URL, "headers": {"A": "b"}},
    )
    command = [sys.executable, "-I", "-S", "-c", _IDLE, str(ROOT), str(place.project)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
