"""The public reports about other MCP servers: each row is a test named by its id, from a client's call to a real peer.

SES-A01 is about HTTP, by which no peer can be reached yet (`docs/limits.md`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Client, Message
from tests.e2e.test_broker import WRAPPER, Folder
from tests.e2e.watch import eventually
from tests.peers.tools import TOOLS, Call
from tests.process.peer_stage import PROGRAM, alive

SECRET = "k-s3cr3t-of-the-report"
URL = "http://127.0.0.1:9/mcp"


class Place(Folder):
    """A project with fixture peers and a session in it."""

    def __init__(self, client: Client, path: Path) -> None:
        super().__init__(path)
        self.client = client
        self.session = str(client.structured("python_session_open", project=str(path))["session_id"])

    def execute(self, code: str, **arguments: Any) -> Message:
        return self.client.execute(code, session_id=self.session, bound=60, **arguments)

    def value(self, code: str) -> Any:
        """The value of a cell that must succeed."""
        result = self.execute(code)
        assert result["success"], result["error"]
        return result["value"]

    def told(self, expression: str) -> Any:
        """What an expression gives, as JSON: results and facts are classes of their own."""
        return json.loads(self.value(f"import json\njson.dumps({expression})"))

    def error(self, code: str) -> list[str]:
        """Code, `sent` and text of the `mcp.Error` that an expression must raise."""
        told = self.value(f"try: {code}\nexcept mcp.Error as error: told = [error.code, error.sent, str(error)]\ntold")
        assert isinstance(told, list)
        return told

    def states(self) -> dict[str, Message]:
        """What health says of the project's servers, by name."""
        servers = self.client.structured("python_health")["broker"]["servers"]
        return {one["name"]: one for one in servers if one.get("project") == str(self.path)}

    def tools(self, name: str, definitions: list[Any]) -> str:
        """A file of definitions for `--tools`."""
        file = self.path / f"{name}.tools"
        file.write_text(json.dumps(definitions))
        return str(file)


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    with Client("--limit", "peer_probe=0.5", env={"K_SECRET": SECRET, "NOPE": None, "PY": None}) as client:
        client.execute("1")
        yield client


@pytest.fixture
def place(server: Client, tmp_path: Path) -> Iterator[Place]:
    place = Place(server, tmp_path)
    yield place
    place.entries.clear()
    place.put("none", {"command": "none", "disabled": True})
    place.value("len(mcp.refresh())")  # which ends them
    eventually(lambda: not alive(str(tmp_path)), "no peer is left")
    server.structured("python_session_close", session_id=place.session)


def sent(tool: str) -> Any:
    """What the fixture's tool answers, from its own source."""
    return TOOLS[tool].act(Call(None, 1, {}))


def test_BRK_A01_an_error_keeps_its_flag_and_all_its_content(place: Place) -> None:
    place.add("fix", "--era", "legacy")
    place.value("try: mcp.call('fix', 'fail')\nexcept mcp.ToolError as error: result = error.result\nlen(result)")
    assert place.told("result") == sent("fail")


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_BRK_A02_every_page_is_read_or_it_is_an_error(place: Place, era: str) -> None:
    names = [f"tool{number}" for number in range(6)]
    six = place.tools("six", [{"name": name, "inputSchema": {"type": "object"}} for name in names])
    place.add("whole", "--era", era, "--tools", six, "--pages", "3")
    for cursor in ("repeat", "endless", "error"):
        place.add(cursor, "--era", era, "--tools", six, "--pages", "3", "--cursor", cursor)
    assert place.value("[tool['name'] for tool in mcp.list_tools('whole')]") == names
    for cursor, words in (("repeat", "repeats a cursor"), ("endless", "128 pages"), ("error", "page 2 of the tools")):
        code, was_sent, told = place.error(f"mcp.call({cursor!r}, 'tool0')")
        assert (code, was_sent) == ("CATALOGUE_FAULT", "no")
        assert words in told
        assert "read until there" in told
        assert place.calls(cursor) == 0


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_BRK_A03_every_kind_of_block_comes_as_it_was_sent(place: Place, era: str) -> None:
    place.add("fix", "--era", era)
    told = place.told("mcp.call('fix', 'blocks')")
    told.pop("resultType", None)  # a mark of the modern era
    assert json.dumps(told) == json.dumps(sent("blocks"))
    assert [block["type"] for block in told["content"]] == [
        *("text", "image", "audio", "resource_link", "resource", "x-new")
    ]


def test_BRK_A04_a_failing_call_is_caught_and_the_loop_goes_on(place: Place) -> None:
    place.add("fix")
    code = (
        "ok = []\n"
        "for tool, given in (('echo', {'text': 'a'}), ('no_such', {}), ('echo', {'text': 5}), ('die', {}),\n"
        "                    ('refuse', {}), ('fail', {}), ('echo', {'text': 'b'})):\n"
        "    try: ok.append(mcp.call('fix', tool, arguments=given).text)\n"
        "    except Exception as error: ok.append(error.code)\nok"
    )
    expected = ["a", "UNKNOWN_TOOL", "BAD_ARGUMENTS", "PEER_GONE", "PROTOCOL_ERROR", "TOOL_ERROR", "b"]
    assert place.value(code) == expected


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_BRK_A05_any_structured_value_is_told_from_any_other_and_from_none(place: Place, era: str) -> None:
    place.add("fix", "--era", era)
    whiches = ["list", "zero", "empty", "false", "null", "none"]
    code = f"seen = [mcp.call('fix', 'structured', which=which) for which in {whiches!r}]\n"
    told = place.value(code + "import json\n[json.dumps(one.get('structuredContent', 'absent')) for one in seen]")
    assert told == ["[]", "0", '""', "false", "null", '"absent"']


def test_BRK_A06_a_malformed_tool_is_named_and_the_others_can_be_called(place: Place) -> None:
    odd = {"type": "object", "properties": {"required": ["x"]}}
    ok = {"name": "echo", "inputSchema": {"type": "object"}}
    definitions = [ok, {"name": 5}, {"inputSchema": {}}, {"name": "blocks", "inputSchema": odd}]
    place.add("fix", "--tools", place.tools("odd", definitions))
    assert place.value("mcp.call('fix', 'echo', text='x').text") == "x"
    assert place.value("len(mcp.call('fix', 'blocks')['content'])") == 6
    invalid = ["tool 1: its name is no string", "tool 2: it has no name"]
    assert place.value("mcp.list_tools('fix').invalid") == invalid
    assert place.value("mcp.explain('fix')['invalid_tools']") == invalid


def test_SES_A02_a_dead_peer_is_seen_and_only_a_call_starts_it_again(place: Place) -> None:
    place.add("fix")
    assert place.states()["fix"]["state"] == "not started yet"
    place.value("mcp.call('fix', 'echo', text='x').text")
    assert place.states()["fix"]["state"] == "ready"
    os.kill(place.logged("fix", "started")[0], signal.SIGKILL)
    eventually(lambda: place.states()["fix"]["state"] == "failed", "its death is seen")
    assert "SIGKILL" in place.states()["fix"]["reason"]
    assert "SIGKILL" in place.value("mcp.servers()['fix']['reason']")
    assert len(place.logged("fix", "started")) == 1
    assert place.value("mcp.call('fix', 'echo', text='again').text") == "again"
    assert place.states()["fix"]["state"] == "ready"


def test_SES_A03_what_is_no_message_is_skipped_and_quoted_when_it_never_ends(place: Place) -> None:
    place.add("banner", "--before", "Server listening...")
    place.add("flood", "--junk", "10000000")
    assert place.value("mcp.call('banner', 'echo', text='x').text") == "x"
    code, was_sent, told = place.error("mcp.call('flood', 'echo', text='x')")
    assert (code, was_sent) == ("CONNECT_FAILED", "no")
    assert "flood prints what is no MCP to its stdout" in told
    assert "is no MCP: 'junk junk junk" in told


def test_SES_A04_nothing_of_a_peer_behind_a_shell_is_left(place: Place) -> None:
    tag = f"tag-{place.path.name}"
    shell = [WRAPPER, sys.executable, PROGRAM, "--tag", tag, "--stubborn", "--children", "1"]
    place.put("fix", {"command": "sh", "args": ["-c", *shell]})
    assert place.value("mcp.call('fix', 'echo', text='x').text") == "x"
    assert len(alive(tag)) >= 3
    place.put("fix", {"command": "sh", "args": ["-c", "exit 3"]})
    place.value("len(mcp.refresh())")
    eventually(lambda: not alive(tag), "shell, peer and child are gone")


def test_SES_A05_each_phase_has_a_deadline_and_the_cells_own_wins(place: Place) -> None:
    place.add("mute", "--silent", connectTimeout=1)
    place.add("lists", "--era", "legacy", "--cursor", "silent", callTimeout=1)
    place.add("fix", callTimeout=1)
    tried = "import asyncio\ngot = await asyncio.gather(*CALLS, return_exceptions=True)\n[str(one) for one in got]"
    calls = ("mcp.acall('mute', 'echo')", "mcp.acall('lists', 'echo')", "mcp.acall('fix', 'echo', text='meanwhile')")
    mute, lists, fine = place.value(tried.replace("CALLS", f"({', '.join(calls)})"))
    assert "mute did not finish its handshake (connect) in 1 s" in mute
    assert "echo of lists: the time limit of 1 s was over during tools/list" in lists
    assert "meanwhile" in fine
    assert place.value("1 + 1") == 2
    assert (
        "slow of fix: the time limit of 1 s was over during call"
        in place.error("mcp.call('fix', 'slow', seconds=60)")[2]
    )
    result = place.execute("mcp.call('fix', 'slow', seconds=60, timeout=50)", timeout=0.3)
    assert (result["error_code"], result["state"]) == ("TIMEOUT", "preserved")


def test_SES_A06_stderr_is_drained_and_its_last_words_are_told_without_secrets(place: Place) -> None:
    place.add("flood", "--stderr-flood", "5000000")
    place.add("dies", "--stderr", f"boom: token={SECRET}", "--exit", "1", env={"TOKEN": "${K_SECRET}"})
    assert place.value("mcp.call('flood', 'flood', size=5_000_000).text") == "flooded"
    code, was_sent, told = place.error("mcp.call('dies', 'echo', text='x')")
    assert (code, was_sent) == ("CONNECT_FAILED", "no")
    assert "boom: token=[redacted]" in told
    assert SECRET not in told


def test_CFG_A01_variables_are_expanded_and_a_missing_one_costs_its_server_alone(place: Place) -> None:
    log = str(place.path / "a.log")
    args = [PROGRAM, "--log", log, "--tag", "${TAG:-t1}"]
    place.put("a", {"command": f"${{PY:-{sys.executable}}}", "args": args, "env": {"K": "${K_SECRET}"}})
    headers = {"Authorization": "Bearer ${NOPE}"}
    place.put("b", {"type": "http", "url": "http://127.0.0.1:${PORT:-9}/mcp", "headers": headers})
    env = place.value("mcp.call('a', 'whoami')['structuredContent']['env']")
    assert env["K"] == SECRET
    assert any("t1" in process.cmdline() for process in alive(log))
    code, was_sent, told = place.error("mcp.call('b', 'x')")
    assert (code, was_sent) == ("CONFIG_FAULT", "no")
    assert "headers.Authorization" in told
    assert "NOPE" in told
    assert "headers.Authorization" in place.states()["b"]["reason"]


def test_CFG_A02_a_windows_editors_file_is_read_and_none_is_ever_written(place: Place) -> None:
    path = place.path / ".mcp.json"
    good = b'\xef\xbb\xbf{\r\n "mcpServers": {"a": {"command": "x"}}\r\n}\r\n'
    bad = b'{"mcpServers": {\r\n"a": {"command": "x",}}}'
    for raw in (good, bad):
        path.write_bytes(raw)
        os.utime(path, ns=(10**18, 10**18))
        shown = place.value("str(mcp.help())")
        assert ("a (not started yet)" in shown) == (raw is good)
        assert ("is not JSON: line 2, column " in shown) == (raw is bad)
        assert ("is not JSON: line 2, column " in place.client.call("python_health")["content"][0]["text"]) == (
            raw is bad
        )
        assert (path.read_bytes(), path.stat().st_mtime_ns) == (raw, 10**18)


def test_CFG_A03_every_dialect_is_usable_or_refused_with_a_reason(place: Place) -> None:
    entries: dict[str, tuple[dict[str, Any], str, str]] = {
        "plain": ({"url": URL}, "not reachable", "http servers cannot be reached in this version"),
        "spelled": ({"type": "streamable-http", "url": URL}, "not reachable", "http servers cannot"),
        "old": ({"transport": "sse", "url": URL}, "refused", "transport"),
        "nested": ({"transport": {"type": "http", "url": URL}}, "not reachable", "http servers cannot"),
        "both": ({"command": "x", "url": URL}, "refused", "contradict"),
        "ws": ({"type": "ws", "url": "ws://h"}, "not reachable", "ws servers cannot"),
        "wrapped": ({"transport": {"type": "stdio", "command": "x"}}, "not started yet", ""),
        "headers": ({"command": "x", "headers": {"A": "b"}}, "refused", "headers"),
        "unknown": ({"command": "x", "runAsRoot": True}, "refused", "runAsRoot"),
    }
    for name, (entry, _, _) in entries.items():
        place.put(name, entry)
    states = place.states()
    assert states.keys() == entries.keys()
    for name, (_, state, words) in entries.items():
        assert states[name]["state"] == state
        assert words in (states[name]["reason"] or "")
        told = place.value(f"str(mcp.explain({name!r}))")
        assert words in told


def test_CFG_A04_a_cloned_projects_commands_do_not_run_before_they_are_used(place: Place) -> None:
    mark = place.path / "pwned"
    place.put("a", {"command": "touch", "args": [str(mark)]})
    place.client.request("tools/list")
    assert place.states()["a"]["state"] == "not started yet"
    assert "Being listed is the approval" in place.client.call("python_health")["content"][0]["text"]
    place.value(
        "[1, str(mcp), str(mcp.servers()), str(mcp.help()), len(mcp.search('x')), str(mcp.refresh()), dir(mcp)]"
    )
    told = place.told("mcp.explain('a')")
    assert (told["allowed"], told["reason"]) == (True, "listed in the project's .mcp.json")
    assert not mark.exists()
    place.error("mcp.call('a', 'x')")
    assert mark.exists()  # the use was what it took


def test_CFG_A05_a_command_that_cannot_be_found_says_what_was_looked_for_and_where(place: Place) -> None:
    place.put("line", {"command": "echo 'Hello World'"})
    place.put("gone", {"command": "no-such-prog-zz"})
    line, gone = (place.error(f"mcp.call({name!r}, 'x')") for name in ("line", "gone"))
    assert "args" in line[2]
    assert "no-such-prog-zz" in gone[2]
    assert "PATH" in gone[2]
    assert line[2] != gone[2]
    assert (line[1], gone[1]) == ("no", "no")


def test_JRN_A01_an_unknown_outcome_is_told_from_what_was_never_sent(place: Place) -> None:
    written = place.path / "written"
    place.add("fix")
    place.add("gone", "--exit", "3")
    place.value("len(mcp.list_tools('fix'))")
    call = f"mcp.call('fix', 'slow', seconds=1.2, path={str(written)!r}, text='once', honour=False, timeout=0.3)"
    code, was_sent, told = place.error(call)
    assert (code, was_sent) == ("CALL_TIMEOUT", "unknown")
    assert "slow of fix" in told
    assert "unknown" in told
    assert place.error("mcp.call('gone', 'slow', seconds=1)")[:2] == ["CONNECT_FAILED", "no"]
    eventually(written.exists, "it acts all the same")
    # Its late answer settles the record, and there was no second arrival.
    last = "[[one['server'], one['status']] for one in mcp.journal() if one['project'] == PROJECT]"
    last = last.replace("PROJECT", repr(str(place.path)))
    eventually(lambda: place.value(last) == [["fix", "completed"]], "the late answer is noted")
    assert (written.read_text(), place.calls("fix")) == ("once\n", 1)


def test_JRN_A02_no_hint_has_a_call_sent_again(place: Place) -> None:
    hints = {"idempotentHint": True, "readOnlyHint": True, "destructiveHint": False}
    die = {"name": "die", "inputSchema": {"type": "object"}, "annotations": hints}
    place.add("fix", "--tools", place.tools("hints", [die]))
    assert place.error("mcp.call('fix', 'die')")[:2] == ["PEER_GONE", "unknown"]
    assert (place.calls("fix"), len(place.logged("fix", "started"))) == (1, 1)
