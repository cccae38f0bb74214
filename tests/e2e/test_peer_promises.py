"""What is promised about peers beyond the reports, shown on a whole server: bounds, sharing, the journal, the files."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import ROOT, Client
from tests.e2e.test_broker import Folder, folder, value
from tests.e2e.watch import active_run, eventually
from tests.process.peer_stage import PROGRAM, alive

__all__ = ["folder"]


@pytest.fixture
def client(folder: Folder) -> Iterator[Client]:
    folder.add("fix", "--era", "legacy")
    with Client(cwd=folder.path) as opened:
        yield opened


def told(client: Client, expression: str) -> Any:
    """What an expression gives, as JSON: results and facts are classes of their own."""
    return json.loads(value(client, f"import json\njson.dumps({expression})"))


def error(client: Client, call: str) -> list[str]:
    """Code, `sent` and text of the `mcp.Error` that a call must raise."""
    code = f"try: {call}\nexcept mcp.Error as error: told = [error.code, error.sent, str(error)]\ntold"
    found = value(client, code)
    assert isinstance(found, list)
    return found


def test_the_end_of_one_sessions_worker_leaves_the_others_call_at_a_shared_peer(client: Client, folder: Folder) -> None:
    value(client, "len(mcp.list_tools('fix'))")
    other = client.structured("python_session_open", project=str(folder.path))["session_id"]
    pid = value(client, "import os; os.getpid()")
    doomed = client.start_call("execute_python", code="mcp.call('fix', 'slow', seconds=60, text='doomed')")
    unharmed = "mcp.call('fix', 'slow', seconds=1, text='other').text"
    waiting = client.start_call("execute_python", code=unharmed, session_id=other)
    eventually(lambda: folder.calls("fix") == 2, "both calls have arrived")
    os.kill(pid, signal.SIGKILL)
    assert client.result(doomed)["structuredContent"]["state"] == "cleared"
    assert client.result(waiting)["structuredContent"]["value"] == "written"
    assert folder.logged("fix", "text") == ["doomed"]  # the one that was cancelled
    assert len(folder.logged("fix", "started")) == 1


ONE_OF_TWO = """
import asyncio
asked = [mcp.acall('fix', 'slow', seconds=s, text=t) for s, t in ((60, 'a'), (1, 'b'))]
calls = [asyncio.ensure_future(one) for one in asked]
statuses = lambda: sorted(one['status'] for one in mcp.journal())
while statuses().count('dispatched') < 2: await asyncio.sleep(0.01)
calls[0].cancel()
while (meanwhile := statuses()) == ['dispatched'] * 2: await asyncio.sleep(0.01)
[meanwhile, calls[0].cancelled(), (await calls[1]).text, statuses()]
"""


def test_one_of_several_calls_is_cancelled_alone(client: Client, folder: Folder) -> None:
    meanwhile, cancelled, text, afterwards = value(client, ONE_OF_TWO)
    assert meanwhile == ["dispatched", "outcome_unknown"]
    assert (cancelled, text) == (True, "written")
    assert afterwards == ["completed", "outcome_unknown"]
    assert folder.logged("fix", "text") == ["a"]  # what the peer was told of


def test_a_result_over_the_frame_limit_is_kept_as_an_artifact(client: Client) -> None:
    code = "try: mcp.call('fix', 'big', size=2_000_000)\nexcept mcp.Error as error: told = error\n"
    result = client.execute(f"{code}[told.code, told.sent, told.artifact, 'frame_bytes' in str(told)]")
    number, sent, artifact, names_the_limit = result["value"]
    assert (number, sent, names_the_limit) == ("LIMIT_REACHED", "done", True)
    assert [one["id"] for one in result["artifacts"]] == [artifact]
    read = client.structured("artifact_read", artifact_id=artifact, offset=1_999_000, length=16_000)
    assert read["size"] > 2_000_000
    assert read["data"].endswith('zzz"}]}')
    assert told(client, "[one['status'] for one in mcp.journal()]") == ["completed"]
    assert value(client, "len(mcp.call('fix', 'big', size=900_000).text)") == 900_000


def test_health_answers_while_a_pattern_without_an_end_is_judged(folder: Folder) -> None:
    folder.add("fix")
    with Client("--limit", "judge_bound=1", cwd=folder.path) as client:
        value(client, "mcp.call('fix', 'evil', pattern='aaa').text")
        call = client.start_call("execute_python", code="mcp.call('fix', 'evil', pattern='a' * 40 + '!')")
        active_run(client)
        answered = 0
        while not client.answered(call):
            client.structured("python_health")
            answered += 1
        # In the second that the judge has. The loop itself would have been held for minutes.
        assert answered > 20
        assert "judge_bound" in client.result(call)["structuredContent"]["error"]
        assert folder.calls("fix") == 1


def test_everything_that_mcp_can_ask_is_answered_by_a_real_peer(folder: Folder) -> None:
    folder.add("fix", "--instructions", "Be gentle.", "--stderr", "starting up")
    with Client(cwd=folder.path) as client:
        assert value(client, "fix = mcp.stub('fix')\nfix.echo(text='hi').text") == "hi"
        assert value(client, "(await fix.echo.acall(text='ho')).text") == "ho"
        assert value(client, "import inspect\nstr(inspect.signature(fix.echo))") == "(text: str)"
        assert value(client, "fix.echo.__doc__.splitlines()[0]") == "Say the text again."
        assert value(client, "mcp.fix.echo(text='by name').text") == "by name"
        assert value(client, "mcp.text(await mcp.call('fix', 'echo', arguments={'text': 'awaited'}))") == "awaited"
        roots = "mcp.call('fix', 'ask', method='roots/list')['structuredContent']['responses']['one']['roots']"
        assert told(client, roots) == [{"uri": folder.path.as_uri(), "name": folder.path.name}]
        assert told(client, "[one['name'] for one in mcp.list_resources('fix')]") == ["one"]
        assert value(client, "mcp.read_resource('fix', 'test://one').text") == "first\nsecond"
        assert told(client, "[one['name'] for one in mcp.list_prompts('fix')]") == ["greet"]
        assert value(client, "mcp.get_prompt('fix', 'greet', who='you').text") == "hello you"
        assert told(client, "[one['tool'] for one in mcp.search('say again')]") == ["echo"]
        assert "Be gentle." in value(client, "str(mcp.help('fix'))")
        assert "fix: ready" in value(client, "repr(mcp)")
        explained = told(client, "mcp.explain('fix')")
        assert (explained["state"], explained["stderr"]) == ("ready", "starting up\n")
        assert value(client, "mcp.refresh()['fix']['state']") == "ready"
        assert len(folder.logged("fix", "started")) == 1


def test_the_last_words_of_a_peer_that_has_ended_are_explained(folder: Folder) -> None:
    lines = "".join(f"line {number}\\n" for number in range(2_000))
    script = f"printf '{lines}' >&2; echo last words with $TOKEN >&2; exit 3"
    folder.put("fix", {"command": "sh", "args": ["-c", script], "env": {"TOKEN": "a-s3cr3t-token"}})
    with Client(cwd=folder.path) as client:
        assert error(client, "mcp.call('fix', 'echo')")[:2] == ["CONNECT_FAILED", "no"]
        assert value(client, "told = mcp.explain('fix')\ntold['state']") == "failed"
        assert value(client, "told['stderr'][-40:]").endswith("line 1999\nlast words with [redacted]\n")
        assert value(client, "'line 1000\\n' in told['stderr']")
        assert value(client, "len(told['stderr'])") <= 16_384
        # In an error it is shorter.
        assert value(client, "len(told['observed'])") < 3_000


# -- the journal -----------------------------------------------------------------------------------------------


def test_a_second_server_on_a_journal_runs_cells_and_makes_no_calls(folder: Folder) -> None:
    folder.add("fix")
    journal = ("--journal", str(folder.path / "journal"))
    with Client(*journal, cwd=folder.path) as first, Client(*journal, cwd=folder.path) as second:
        value(first, "mcp.call('fix', 'echo', text='x').text")
        assert value(second, "1 + 1") == 2
        code, sent, words = error(second, "mcp.call('fix', 'echo', text='x')")
        assert (code, sent) == ("JOURNAL_UNAVAILABLE", "no")
        assert f"pid {first.process.pid}" in words
        assert folder.calls("fix") == 1
        assert first.close(10.0) == 0
        assert value(second, "mcp.call('fix', 'echo', text='x').text") == "x"
        assert told(second, "[one['status'] for one in mcp.journal()]") == ["completed"] * 2


def test_what_was_on_its_way_when_the_server_was_killed_is_unknown_to_the_next(folder: Folder) -> None:
    folder.add("fix")
    journal = ("--journal", str(folder.path / "journal"))
    with Client(*journal, cwd=folder.path) as client:
        value(client, "mcp.call('fix', 'echo', text='word of the arguments').text")
        # The outcome follows behind; nothing announces that it is on disk, but the next call's record takes it along.
        client.start_call("execute_python", code="mcp.call('fix', 'slow', seconds=60)")
        eventually(lambda: folder.calls("fix") == 2, "it has arrived")
        client.kill()
        client.wait_ended(20.0)
    with Client(*journal, cwd=folder.path) as client:
        records = told(client, "mcp.journal()")
        assert [(one["tool"], one["status"]) for one in records] == [("echo", "completed"), ("slow", "outcome_unknown")]
        assert records[1]["finished"] is not None
    stored = b"".join(path.read_bytes() for path in folder.path.glob("journal*"))
    assert b"outcome_unknown" in stored
    assert b"word of the arguments" not in stored


# -- files and scopes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"),
    [("FIFO", "is a FIFO"), ("device", "is a device"), ("huge", "config_bytes"), ("no JSON", "line 1")],
)
def test_a_file_that_is_none_blocks_nothing_and_is_told(tmp_path: Path, kind: str, words: str) -> None:
    path = tmp_path / ".mcp.json"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "huge":
        path.write_bytes(b" " * 2_000_000)
    else:
        path.write_text("oops")
    with Client(cwd=tmp_path) as client:
        health = client.call("python_health")
        assert words in health["structuredContent"]["broker"]["notes"][0]
        assert words in health["content"][0]["text"]
        assert value(client, "1 + 1") == 2
        assert words in value(client, "repr(mcp)")
        assert words in error(client, "mcp.call('x', 'y')")[2]


def test_the_clients_own_entries_need_the_option_and_the_entrys_word(folder: Folder) -> None:
    home = folder.path / "home"
    home.mkdir()
    for name in ("closed", "local", "opened"):
        folder.add(name)
    closed, local, opened = (folder.entries.pop(name) for name in ("closed", "local", "opened"))
    folder.put("fix", {"command": "no-such-program"})
    state = {
        "mcpServers": {"opened": {**opened, "brokerAllowed": True}, "closed": closed},
        "projects": {str(folder.path): {"mcpServers": {"local": {**local, "brokerAllowed": True}}}},
    }
    (home / ".claude.json").write_text(json.dumps(state))
    env = {"HOME": str(home), "CLAUDE_CONFIG_DIR": None}
    with Client(cwd=folder.path, env=env) as client:
        assert told(client, "list(mcp.servers())") == ["fix"]
        assert error(client, "mcp.call('opened', 'echo', text='x')")[0] == "UNKNOWN_SERVER"
    with Client("--mcp-scope", "all", cwd=folder.path, env=env) as client:
        for name in ("opened", "local"):
            assert value(client, f"mcp.call({name!r}, 'echo', text='x').text") == "x"
        code, sent, words = error(client, "mcp.call('closed', 'echo', text='x')")
        assert (code, sent) == ("NOT_GRANTED", "no")
        assert "brokerAllowed" in words
        assert folder.logged("closed", "started") == []


# -- this server among its own peers ---------------------------------------------------------------------------


def test_this_server_is_no_peer_of_its_own_in_any_disguise(folder: Folder) -> None:
    link = folder.path / "some-tool"
    link.symlink_to(ROOT / "scripts" / "run")
    disguises: dict[str, list[str]] = {
        "plain": ["repl-trio"],
        "module": [sys.executable, "-m", "repl_trio"],
        "uvx": ["uvx", "repl-trio"],
        "shell": ["sh", "-c", "exec uvx repl-trio"],
        "link": ["./some-tool"],
    }
    for name, (command, *args) in disguises.items():
        folder.put(name, {"command": command, "args": args})
    folder.add("fix")
    with Client(cwd=folder.path) as client:
        states = {one["name"]: one for one in client.structured("python_health")["broker"]["servers"]}
        for name in disguises:
            assert states[name]["state"] == "refused"
            code, sent, words = error(client, f"mcp.call({name!r}, 'execute_python', code='1')")
            assert (code, sent) == ("NOT_GRANTED", "no")
            assert "this very server" in words
        assert value(client, "mcp.call('fix', 'echo', text='x').text") == "x"


def test_a_disguise_that_nobody_sees_through_ends_at_the_recursion_block(folder: Folder) -> None:
    program = folder.path / "innocent"
    here, python = shlex.quote(str(ROOT)), shlex.quote(sys.executable)
    program.write_text(f"#!/bin/sh\nPYTHONPATH={here} exec {python} -m repl_trio\n")
    program.chmod(0o755)
    folder.put("self", {"command": "./innocent"})
    folder.add("fix")
    with Client(cwd=folder.path) as client:
        code = "mcp.call('self', 'execute_python', code=CODE)['structuredContent']"
        inner = "[len(mcp.servers()), repr(mcp)]"
        session = told(client, "mcp.call('self', 'python_health')['structuredContent']['sessions']")[0]["session_id"]
        told_inside = told(client, code.replace("CODE", f"{inner!r}, session_id={session!r}"))
        assert told_inside["success"], told_inside["error"]
        assert "REPL_TRIO_BROKER" in told_inside["value"][1]
        call = "try: mcp.call('fix', 'echo', text='x')\nexcept mcp.Error as error: told = error.code\ntold"
        told_inside = told(client, code.replace("CODE", f"{call!r}, session_id={session!r}"))
        assert told_inside["value"] == "NOT_GRANTED"
        assert folder.logged("fix", "started") == []
    eventually(lambda: not alive(str(folder.path)) and not alive(PROGRAM), "nothing is left")
