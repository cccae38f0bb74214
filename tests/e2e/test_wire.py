"""The wire of a real server: what stands on stdout, what is loaded when, progress, and results in both forms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from tests.e2e.client import BOUND, MODERN, ROOT, Client, Message, envelope, server_command

MANY = 2_000_000
"""words. Far more than any result holds."""
C_PRINTF = "import ctypes; ctypes.CDLL(None).printf(b'from C %d\\n', 7)"


# -- stdout ----------------------------------------------------------------------------------------------------


def test_stdout_carries_complete_messages_and_nothing_else() -> None:
    # The oracle judges every recorded line when the block ends; here the server is led through everything that prints.
    with Client() as client:
        client.request("tools/list")
        assert client.execute("print('printed')")["stdout"] == "printed\n"
        assert client.execute("import os; os.system('echo from a shell')")["stdout"] == "from a shell\n"
        assert client.execute(C_PRINTF)["stdout"] == "from C 7\n"
        assert client.execute("import sys; sys.__stdout__.write('raw\\n'); os.write(1, b'fd 1\\n')")["success"]
        assert client.execute("os.write(2, b'fd 2\\n')")["stderr"] == "fd 2\n"
        assert client.execute('print(\'{"jsonrpc":"2.0","id":1,"result":{}}\')')["success"]
        died = client.execute("print('last words', flush=True); os.kill(os.getpid(), 11)")
        assert (died["error_code"], died["state"], died["stdout"]) == ("WORKER_DIED", "cleared", "last words\n")
        assert client.execute("import os; os._exit(3)")["error_code"] == "WORKER_DIED"
        assert client.execute("2")["value"] == 2
        assert client.close() == 0
        client.wait_ended()
        assert len(client.received) == 11


def test_every_answer_comes_while_stdin_stays_open() -> None:
    # A buffered stdout would say everything at the end only.
    with Client(version=None) as client:
        for number in range(3):
            client.send_message({"jsonrpc": "2.0", "id": number, "method": "ping"})
            assert client.answer(number)["result"] == {}


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["nonsense"], ["--limit", "x=1"], ["--limit", "requests"]])
def test_a_mistaken_command_line_says_nothing_on_stdout(arguments: list[str]) -> None:
    done = subprocess.run(
        server_command(*arguments), stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr


def test_requests_from_a_file_are_answered() -> None:
    # `cat requests | repl-trio`: what was read before the end gets a short while to finish.
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    asked = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "python_health"}},
        {"jsonrpc": "2.0", "id": 3, "method": "ping"},
    ]
    with Client(version=None) as client:
        for message in asked[:-1]:
            client.send_message(message)
        client.oracle.sent(asked[-1])
        client.write(json.dumps(asked[-1]).encode())  # the last line has no end
        assert client.close() == 0
        client.wait_ended()
        assert client.result(2)["structuredContent"]["server"]["name"] == "repl-trio"
        assert client.result(3) == {}


# -- versions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [*HANDSHAKE_PROTOCOL_VERSIONS, "1999-01-01", MODERN])
def test_every_client_finds_its_version(version: str) -> None:
    with Client(version=version) as client:
        if version == MODERN:
            assert client.request("server/discover")["supportedVersions"] == [MODERN]
        else:
            assert client.request("ping") == {}
            assert client.structured("python_health")["server"]["protocol"] in HANDSHAKE_PROTOCOL_VERSIONS
        listed = client.request("tools/list")
        assert (listed["ttlMs"], listed["cacheScope"]) == (0, "private")
        assert client.error(client.send("no/such/method"))["code"] == -32601
        assert client.execute("1 + 1")["value"] == 2


def test_the_eras_do_not_mix() -> None:
    with Client() as client:
        assert client.error(client.send("tools/list", {"_meta": envelope()}))["code"] == -32600
        client.request("tools/list")
    with Client(version=MODERN) as client:
        client.request("tools/list")
        error = client.error(client.send("initialize", {"protocolVersion": "2025-11-25"}))
        assert (error["code"], error["data"]["supported"]) == (-32022, [MODERN])
        client.send_message({"jsonrpc": "2.0", "id": "bare", "method": "tools/list"})
        assert client.error("bare")["code"] == -32602


# -- what is started and loaded when ---------------------------------------------------------------------------


def test_no_python_is_started_before_the_first_cell() -> None:
    with Client() as client:
        client.request("tools/list")
        health = client.structured("python_health")
        assert client.structured("python_session_list")["sessions"][0]["worker"] == "none"
        client.structured("python_session_inspect", include_namespace=True)
        client.structured("python_cancel")
        assert (health["sessions"][0]["worker"], health["sessions"][0]["generation"]) == ("none", 0)
        assert client.descendants() == []
        assert client.carriers() == []
        client.execute("1")
        assert client.descendants() != []


DUMPING = """
import sys
before = set(sys.modules)
sys.path.insert(0, {root!r})
from repl_trio.__main__ import main
status = main()
loaded = set(sys.modules) - before
with open({target!r}, "w") as file:
    file.write("\\n".join(sorted(loaded)))
sys.exit(status)
"""


def dumping_command(target: Path) -> list[str]:
    """A server that writes the names of all modules it has loaded by itself to `target` when it ends."""
    return [sys.executable, "-P", "-c", DUMPING.format(root=str(ROOT), target=str(target))]


def unmeasured() -> dict[str, str | None]:
    """Environment changes that keep a coverage measurement, and the modules it loads, out of a server."""
    return {name: None for name in os.environ if name.startswith("COVERAGE_")}


def heads(target: Path) -> set[str]:
    """The top-level names of the modules in a dump."""
    return {name.partition(".")[0] for name in target.read_text().split()}


def test_an_idle_server_has_loaded_nothing_heavy(tmp_path: Path) -> None:
    target = tmp_path / "modules"
    client = Client(env=unmeasured())
    client.command = dumping_command(target)
    with client:
        client.request("tools/list")
        client.structured("python_health")
        assert client.close() == 0
        loaded = heads(target)
    assert {"repl_trio", "trio"} <= loaded
    assert not loaded & {
        "mcp",
        "mcp_types",
        "pydantic",
        "jsonschema",
        "psutil",
        "httpx2",
        "asyncio",
        "anyio",
        "argparse",
    }


def test_the_opening_exchange_loads_next_to_nothing(tmp_path: Path) -> None:
    # Everything and its end are in the pipe before the server starts: no pause in which the runtime would be loaded.
    target = tmp_path / "modules"
    asked: list[Message] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 3, "method": "ping"},
    ]
    receive, send = os.pipe()
    with open(receive, "rb") as stdin:
        with open(send, "wb") as stream:
            stream.write(b"".join(json.dumps(message).encode() + b"\n" for message in asked))
        environment = {name: text for name, text in os.environ.items() if name not in unmeasured()}
        done = subprocess.run(
            dumping_command(target), stdin=stdin, capture_output=True, timeout=BOUND, env=environment, check=True
        )
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2, 3]
    loaded = heads(target)
    assert "repl_trio" in loaded
    heavy = {"trio", "json", "re", "enum", "signal", "subprocess", "logging", "dataclasses", "typing", "inspect"}
    assert not loaded & heavy


# -- progress --------------------------------------------------------------------------------------------------

WAITING = """
import os, time
print('step', 'x' * 500, 'end')
while not os.path.exists('go'):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("token", ["t5", 0])
@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
def test_progress_goes_on_until_the_answer(token: str | int, version: str) -> None:
    with Client(version=version) as client:
        session = client.default_session()
        request_id = client.start_call("execute_python", token=token, code=WAITING, session_id=session)
        client.wait_until(lambda: len(client.notifications()) >= 3, failure="no three progress notifications")
        (client.cwd / "go").touch()
        assert client.result(request_id)["isError"] is False
        client.execute("1", session_id=session)
        told = client.notifications()
        assert {(note["progressToken"], type(note["progressToken"])) for note in told} == {(token, type(token))}
        done = [note["progress"] for note in told]
        assert done == sorted(set(done))
        assert all(len(note["message"]) <= 200 for note in told)
        assert "step xxx" in told[-1]["message"]
        kinds = ["method" in json.loads(received.line) for received in client.received]
        answers = [index for index, received in enumerate(client.received) if is_answer(received.line, request_id)]
        assert not any(kinds[answers[0] :]), "progress after the answer"


def is_answer(line: bytes, request_id: int) -> bool:
    return bool(json.loads(line).get("id") == request_id)


def test_progress_of_a_polled_run() -> None:
    with Client() as client:
        run = client.structured("python_start", code=WAITING)
        request_id = client.start_call("python_run", token="poll", run_id=run["run_id"], wait=60)
        client.wait_until(lambda: len(client.notifications()) >= 2, failure="no progress")
        (client.cwd / "go").touch()
        assert client.result(request_id)["structuredContent"]["status"] == "finished"


def test_without_a_token_there_is_no_progress() -> None:
    with Client() as client:
        asked = client.start_call("execute_python", token="with", code=WAITING)
        other = client.structured("python_session_open")["session_id"]
        silent = client.start_call("execute_python", code=WAITING, session_id=other)
        # Three of the one that asked: as long would the other have been told, too.
        client.wait_until(lambda: len(client.notifications()) >= 3, failure="no progress")
        (client.cwd / "go").touch()
        client.result(asked)
        client.result(silent)
        assert {note["progressToken"] for note in client.notifications()} == {"with"}


# -- order -----------------------------------------------------------------------------------------------------


def test_a_cell_behind_a_cancel_in_one_write_waits_for_it() -> None:
    # Both are read at once; which of their tasks the runtime happens to run first must not decide. Ten rounds, because
    # a toss of a coin would pass one.
    with Client() as client:
        client.execute("kept = 7")
        for number in range(10):
            running = client.start_call("execute_python", token=number, code="print('in')\nwhile True: pass")
            client.wait_until(partial(is_told, client, number), failure="no progress")
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": running}}
            call = {"name": "execute_python", "arguments": {"code": "kept"}}
            behind = {"jsonrpc": "2.0", "id": f"behind {number}", "method": "tools/call", "params": call}
            client.oracle.sent(behind)
            client.write(b"".join(json.dumps(message).encode() + b"\n" for message in (cancel, behind)))
            result = client.result(f"behind {number}")["structuredContent"]
            assert result.get("value") == 7, (number, result)
            assert not client.answered(running)


def is_told(client: Client, token: int) -> bool:
    return any(note["progressToken"] == token for note in client.notifications())


# -- results ---------------------------------------------------------------------------------------------------


def text_of(result: Message) -> str:
    return "\n".join(str(block["text"]) for block in result["content"])


def test_each_form_of_a_result_is_enough_alone() -> None:
    with Client() as client:
        good = client.call("execute_python", code="print('printed')\n[1, 2]")
        assert text_of(good).split("\n") == ["printed", "[1, 2]"]
        structured = good["structuredContent"]
        assert (structured["success"], structured["stdout"], structured["value"]) == (True, "printed\n", [1, 2])
        bad = client.call(
            "execute_python", code="import sys\nprint('noise', file=sys.stderr)\nraise KeyError('missing')"
        )
        for told in ("stderr:\nnoise", "KeyError: 'missing'"):
            assert told in text_of(bad)
        structured = bad["structuredContent"]
        assert (structured["success"], structured["stderr"], structured["state"]) == (False, "noise\n", "preserved")
        assert "KeyError: 'missing'" in structured["error"]
        gone = client.call("execute_python", code="import os; os._exit(1)")
        assert "state: cleared" in text_of(gone)
        assert gone["structuredContent"]["state"] == "cleared"
        after = client.call("execute_python", code="7")
        assert "The namespace is new" in text_of(after)
        assert after["structuredContent"]["state_reset"] is True
        assert client.execute("8")["state_reset"] is False


@pytest.mark.parametrize("code", ["", "# nothing", "None", "pass", "print()", "print('\\n\\n')"])
def test_nothing_to_tell_is_told(code: str) -> None:
    with Client() as client:
        result = client.call("execute_python", code=code)
        assert result["structuredContent"]["success"] is True
        assert text_of(result).strip()


def test_a_flood_stays_in_bounds_and_can_be_paged() -> None:
    with Client() as client:
        result = client.call("execute_python", code=f"print('first'); print('w ' * {MANY}); print('last')")
        structured = result["structuredContent"]
        assert structured["truncated"]["stdout"] is True
        assert structured["stdout"].startswith("first\n")
        assert structured["stdout"].endswith("last\n")
        assert f"after={structured['next']!r}" in text_of(result)
        pages = page_all(client, structured["run_id"], "0.0")
        before, marker, after = pages.partition("\n[... ")
        assert marker
        assert before == ("first\n" + "w " * MANY)[:40_000]
        assert after.endswith(("w " * MANY + "\nlast\n")[-10_000:])


def page_all(client: Client, run_id: str, after: str) -> str:
    """The stdout of a finished run from a cursor on, page by page."""
    pages: list[str] = []
    for _ in range(100):
        page = client.structured("python_run", run_id=run_id, after=after)
        pages.append(page["stdout"])
        if "next" not in page:
            return "".join(pages)
        after = page["next"]
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize("letter", ["\\x00", "字", "🎈", "\\x1b", "\\\\", "\\udcff"])
def test_a_flood_of_any_letter_stays_in_bounds(letter: str) -> None:
    code = f"import sys\nletter = '{letter}' * 30_000\nprint(letter)\nsys.stderr.write(letter)\n"
    with Client() as client:
        client.execute(code + "raise ValueError(letter)")
        client.execute(code + "letter")
        client.execute("[letter[:9]] * 5_000")
