"""Cells that reach other MCP servers: from a client's call through worker and broker to a real peer, and back."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import BOUND, Client
from tests.e2e.watch import eventually
from tests.process.peer_stage import PROGRAM, alive

EXIT_BOUND = 20.0
NEEDED_BY_CALLS = {"mcp", "mcp_types", "anyio", "pydantic", "jsonschema"}
"""What no server loads before a cell calls a tool."""


class Folder:
    """A project whose `.mcp.json` names fixture peers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, dict[str, Any]] = {}

    def add(self, name: str, *options: str, **fields: Any) -> None:
        args = [PROGRAM, "--log", str(self.path / f"{name}.log"), *options]
        self.put(name, {"command": sys.executable, "args": args, **fields})

    def put(self, name: str, entry: dict[str, Any]) -> None:
        self.entries[name] = entry
        (self.path / ".mcp.json").write_text(json.dumps({"mcpServers": self.entries}))

    def logged(self, server: str, key: str) -> list[Any]:
        log = self.path / f"{server}.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [entry[key] for entry in map(json.loads, lines) if key in entry]

    def calls(self, server: str) -> int:
        return self.logged(server, "got").count("tools/call")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    yield Folder(tmp_path)
    eventually(lambda: not alive(str(tmp_path)), "no peer is left")


@pytest.fixture
def client(folder: Folder) -> Iterator[Client]:
    folder.add("fix", "--era", "legacy")
    with Client(cwd=folder.path) as opened:
        yield opened


def value(client: Client, code: str, **arguments: Any) -> Any:
    """The value of a cell that must succeed."""
    result = client.execute(code, **arguments)
    assert result["success"], result["error"]
    return result.get("value")


def test_a_cell_gets_the_whole_envelope(client: Client) -> None:
    assert value(client, "mcp.call('fix', 'blocks')['content'][5]") == {"type": "x-new", "a": 1}
    assert value(client, "len(mcp.call('fix', 'blocks')['content'])") == 6
    told = value(
        client,
        "seen = [mcp.call('fix', 'structured', which=w) for w in ('list', 'zero', 'empty', 'false', 'null', 'none')]\n"
        "[[e.get('structuredContent', 'absent')] for e in seen]",
    )
    assert json.dumps(told) == '[[[]], [0], [""], [false], [null], ["absent"]]'


def test_an_error_of_a_tool_carries_its_envelope_and_the_cell_goes_on(client: Client) -> None:
    told = value(
        client,
        "try:\n    mcp.call('fix', 'fail')\nexcept mcp.ToolError as error:\n    e = error.result\n"
        "[e['isError'], len(e['content']), e['structuredContent']]",
    )
    assert told == [True, 2, {"code": 7}]


def test_what_goes_wrong_can_be_caught_one_by_one(client: Client) -> None:
    told = value(
        client,
        "seen = []\nfor tool in ('echo', 'no_such', 'die', 'echo'):\n"
        "    try:\n        mcp.call('fix', tool, **({'text': 'x'} if tool == 'echo' else {}))\n"
        "        seen.append('fine')\n"
        "    except mcp.Error as error:\n        seen.append(f'{error.code} {error.sent}')\nseen",
    )
    assert told == ["fine", "UNKNOWN_TOOL no", "PEER_GONE unknown", "fine"]


def test_a_cancelled_run_with_many_calls_cancels_those_and_no_others(client: Client, folder: Folder) -> None:
    written = folder.path / "written"
    folder.add("two", "--era", "modern")
    other = client.structured("python_session_open", project=str(folder.path))["session_id"]
    value(client, "kept = 7; mcp.list_tools('fix'); mcp.list_tools('two'); 1")

    def calls(count: int, seconds: float, text: str) -> str:
        """A cell with so many calls to each of the two peers, and what they said."""
        slow = f"seconds={seconds}, path={str(written)!r}, text={text!r}"
        asked = f"*(mcp.acall(name, 'slow', {slow}) for name in ('fix', 'two') for _ in range({count}))"
        return f"import asyncio\n[one.text for one in await asyncio.gather({asked})]"

    run = client.structured("python_start", code=calls(16, 60, "late"))
    unharmed = client.start_call("execute_python", code=calls(1, 2, "kept"), session_id=other)
    eventually(lambda: (folder.calls("fix"), folder.calls("two")) == (17, 17), "all calls have arrived")
    client.structured("python_cancel", run_id=run["run_id"])
    ended = client.structured("python_run", run_id=run["run_id"], wait=30)
    # Preserved: all of it was over within the grace, or the worker would have been killed.
    assert (ended["error_code"], ended["state"]) == ("CANCELLED", "preserved")
    for name in ("fix", "two"):
        eventually(lambda name=name: folder.logged(name, "text") == ["late"] * 16, "each was told")  # type: ignore[misc]
        assert len(set(folder.logged(name, "cancelled"))) == 16
    assert client.result(unharmed)["structuredContent"]["value"] == ["written", "written"]
    assert written.read_text() == "kept\nkept\n"
    assert value(client, "kept") == 7
    statuses = value(client, "sorted(record['status'] for record in mcp.journal())")
    assert statuses == ["completed"] * 2 + ["outcome_unknown"] * 32


def test_thousands_of_calls_that_are_cancelled_one_by_one_cost_no_namespace(client: Client) -> None:
    value(client, "kept = 7; mcp.list_tools('fix'); 1")
    code = (
        "import asyncio\nts = [asyncio.create_task(mcp.acall('fix', 'slow', seconds=60)) for _ in range(1_500)]\n"
        "await asyncio.sleep(0)\nfor t in ts:\n    t.cancel()\n    await asyncio.sleep(0)\n"
        "await asyncio.wait(ts)\nsum(t.cancelled() for t in ts)"
    )
    assert value(client, code) == 1_500
    assert value(client, "[kept, mcp.call('fix', 'echo', text='x').text]") == [7, "x"]


def test_the_time_limit_of_a_cell_wins(client: Client, folder: Folder) -> None:
    value(client, "mcp.list_tools('fix'); 1")
    result = client.execute("mcp.call('fix', 'slow', seconds=60, timeout=50)", timeout=0.5)
    assert (result["error_code"], result["state"]) == ("TIMEOUT", "preserved")
    eventually(lambda: folder.logged("fix", "cancelled"), "the peer is told")


def test_progress_of_a_peer_is_seen_by_the_client(client: Client) -> None:
    code = "mcp.call('fix', 'progress', steps=3)\nmcp.call('fix', 'slow', seconds=2.5)"
    client.result(client.start_call("execute_python", code=code, token="t"))
    assert any("step 3" in note["message"] for note in client.notifications())


def test_health_answers_while_the_first_call_loads_and_connects(folder: Folder) -> None:
    folder.add("mute", "--silent")
    with Client("--limit", "peer_connect=2", cwd=folder.path) as client:
        client.execute("1")
        call = client.start_call("execute_python", code="mcp.call('mute', 'x')")
        answered = 0
        while not client.answered(call):
            client.structured("python_health", bound=BOUND)
            answered += 1
        assert answered > 10
        result = client.result(call)["structuredContent"]
        assert "did not finish its handshake (connect) in 2 s" in result["error"]
        broker = client.structured("python_health")["broker"]
        assert broker["servers"][0]["state"] == "failed"


def test_an_idle_server_starts_and_loads_nothing(folder: Folder) -> None:
    for number in range(10):
        folder.add(f"fix{number}")
    with Client(cwd=folder.path, env={"PYTHONPROFILEIMPORTTIME": "1"}) as client:
        assert client.request("tools/list")["tools"]
        servers = client.structured("python_health")["broker"]["servers"]
        assert [server["state"] for server in servers] == ["not started yet"] * 10
        assert value(client, "len(mcp.servers())") == 10
        assert imported(client).isdisjoint(NEEDED_BY_CALLS)
        assert len(client.descendants()) == 3, "the root, a guardian and the worker"
        assert list(folder.path.glob("*.log")) == []
        value(client, "mcp.call('fix3', 'echo', text='x'); 1")
        # What was not there before would have been seen.
        assert imported(client) >= NEEDED_BY_CALLS
        assert len(client.descendants()) == 5, "and the peer with its guardian"
        assert [path.name for path in folder.path.glob("*.log")] == ["fix3.log"]


def imported(client: Client) -> set[str]:
    """What the server process has imported so far, without submodules."""
    lines = client.stderr().splitlines()
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if line.startswith("import time:")}


WRAPPER = 'exec 3<&0; "$0" "$@" <&3 & wait'


@pytest.mark.parametrize("end", ["EOF", "kill"])
def test_no_peer_outlives_the_server(folder: Folder, end: str) -> None:
    folder.add("stubborn", "--stubborn", "--children", "2")
    folder.add("held")
    program = [PROGRAM, "--log", str(folder.path / "wrapped.log")]
    folder.put("wrapped", {"command": "sh", "args": ["-c", WRAPPER, sys.executable, *program]})
    with Client(cwd=folder.path) as client:
        for name in folder.entries:
            value(client, f"mcp.call({name!r}, 'echo', text='x'); 1")
        # A peer that holds its GIL sees neither the end of its stdin nor a signal that Python would handle.
        client.structured("python_start", code="mcp.call('held', 'hold')")
        eventually(lambda: folder.calls("held") == 2, "it holds its GIL")
        assert len(alive(str(folder.path))) >= 6
        begun = time.monotonic()
        if end == "EOF":
            assert client.close(EXIT_BOUND) == 0
        else:
            client.kill()
            client.wait_ended(EXIT_BOUND)
        eventually(lambda: not alive(str(folder.path)), "nothing is left")
        assert time.monotonic() - begun < EXIT_BOUND


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.1, 0.3, 0.6, 1.0])
def test_a_server_killed_while_peers_start_leaves_none(folder: Folder, moment: float) -> None:
    for name in ("one", "two", "three"):
        folder.add(name, "--stubborn", "--children", "1")
    calls = "*(mcp.acall(name, 'echo', text='x') for name in ('one', 'two', 'three'))"
    with Client(cwd=folder.path) as client:
        client.execute("import asyncio")
        client.start_call("execute_python", code=f"await asyncio.gather({calls})\nawait asyncio.sleep(60)")
        time.sleep(moment)  # no synchronisation: any moment will do
        client.kill()
        client.wait_ended(EXIT_BOUND)
