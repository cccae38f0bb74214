"""What broken and hostile clients send: each a clear error, and the server lives on in the same memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.client import MODERN, Client

LONG = 64 * 1024 * 1024
"""bytes. Of a line that nobody can mean."""
GROWTH = 4 * 1024 * 1024
"""bytes. What the resident memory may differ between equal halves of abuse; one held line would be far more."""


def lives(client: Client) -> None:
    """The server answers, and a cell runs."""
    assert client.request("ping") == {}
    assert client.execute("6 * 7")["value"] == 42


@pytest.mark.parametrize("when", ["in the opening", "in the runtime"])
def test_malformed_lines_are_answered_and_forgotten(when: str) -> None:
    with Client() as client:
        if when == "in the runtime":
            client.structured("python_health")
        for line, code in [
            (b"not json", -32700),
            (b'{"jsonrpc":"2.0"}', -32600),
            (b"[]", -32600),
            (b'"x"', -32600),
            (b"\xff\xfe\x00", -32700),
            (b"{" * 100_000, -32700),
            (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', -32700),
            (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
            (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        ]:
            client.write(line + b"\n")
            assert client.error(None)["code"] == code
        client.write(b"\n \n\r\n")
        lives(client)


@pytest.mark.parametrize("when", ["in the opening", "in the runtime"])
def test_a_line_of_64_megabytes_is_skipped(when: str) -> None:
    with Client() as client:
        if when == "in the runtime":
            client.structured("python_health")
        client.write(b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":"' + b"x" * LONG + b'"}}\n')
        error = client.error(None)
        assert error["code"] == -32600
        assert "1048576" in error["message"]
        lives(client)


def test_the_longest_line_is_taken() -> None:
    empty = json.dumps({"jsonrpc": "2.0", "id": "long", "method": "ping", "params": {"x": ""}})
    with Client() as client:
        for over in (0, 1):
            padding = "x" * (1_048_576 - len(empty) + over)
            client.send_message({"jsonrpc": "2.0", "id": "long", "method": "ping", "params": {"x": padding}})
            assert ("error" in client.answer(None if over else "long")) is bool(over)


@pytest.mark.parametrize(
    ("tool", "arguments", "pointer"),
    [
        ("execute_python", {"code": 7}, "/code"),
        ("execute_python", {"code": ["SECRET"]}, "/code"),
        ("execute_python", {}, "/code"),
        ("execute_python", {"code": "1", "reset": "SECRET"}, "/reset"),
        ("execute_python", {"code": "1", "timeout": -1}, "/timeout"),
        ("execute_python", {"code": "1", "timeout": 0}, "/timeout"),
        ("execute_python", {"code": "1", "timeout": 1e308}, "/timeout"),
        ("execute_python", {"code": "1", "timeout": 10**400}, "/timeout"),
        ("execute_python", {"code": "1", "timeout": "SECRET"}, "/timeout"),
        ("execute_python", {"code": "1", "wait": -1}, "/wait"),
        ("execute_python", {"code": "1", "SECRETLY": 1}, "/SECRETLY"),
        ("execute_python", {"code": "x" * 300_000}, "/code"),
        ("execute_python", {"code": "SECRET = '\ud800'"}, "/code"),
        ("execute_python", {"code": "# \ud800"}, "/code"),
        ("execute_python", {"code": "1", "expected_generation": 2.5}, "/expected_generation"),
        ("python_run", {"after": "SECRET"}, "/after"),
        ("python_run", {"wait": 61}, "/wait"),
        ("python_session_open", {"name": "字" * 100}, "/name"),
    ],
)
def test_bad_arguments_are_told_by_place(tool: str, arguments: dict[str, Any], pointer: str) -> None:
    with Client() as client:
        client.execute("0")
        error = client.error(client.start_call(tool, **arguments))
        assert error["code"] == -32602
        assert error["message"].startswith(f"/params/arguments{pointer}: ")
        assert "SECRET" not in error["message"].replace("/SECRETLY", "")
        assert len(error["message"]) < 500
        lives(client)


@pytest.mark.parametrize("timeout", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_no_number_is_no_timeout(timeout: str) -> None:
    call = {"name": "execute_python", "arguments": {"code": "1", "timeout": "HERE"}}
    line = json.dumps({"jsonrpc": "2.0", "id": "t", "method": "tools/call", "params": call})
    with Client() as client:
        client.send_line(line.replace('"HERE"', timeout).encode())
        if timeout == "1e999":  # JSON, and more than any bound
            assert client.error("t")["code"] == -32602
        else:
            assert client.error(None)["code"] == -32700
        lives(client)


@pytest.mark.parametrize("name", ["no_such_tool", "", "execute_python ", "\ud800", "x" * 500_000])
def test_an_unknown_tool_is_told_the_known_ones(name: str) -> None:
    with Client() as client:
        error = client.error(client.start_call(name))
        assert error["code"] == -32602
        assert error["message"].startswith("/params/name: ")
        assert "execute_python" in error["message"]
        assert len(error["message"]) < 1_000
        lives(client)


STRANGE = ["x = '\x00'", "\x00", "x = (", "\u202e", "\ufeff1", "\f\f", "if 1:\r\n  2", "\\", "字 = '🎈'", "(" * 2_000]


@pytest.mark.parametrize("code", STRANGE, ids=lambda code: repr(code[:10]))
def test_strange_source_ends_in_a_result(code: str) -> None:
    with Client() as client:
        result = client.execute(code)
        assert result["success"] or "Error" in result["error"]
        lives(client)


def test_nul_bytes_in_source_are_an_error_of_the_cell() -> None:
    with Client() as client:
        client.execute("kept = 1")
        result = client.execute("x = '\x00'")
        assert (result["success"], result["error_code"], result["state"]) == (False, "EXCEPTION", "preserved")
        assert "null byte" in result["error"]
        assert client.execute("kept")["value"] == 1


@pytest.mark.parametrize(
    "code",
    [
        r"print('a\ud800b')",
        r"import sys; sys.stderr.write('a\ud800b')",
        r"'a\ud800b'",
        r"['a\ud800b']",
        r"{'a\ud800b': 1}",
        r"raise ValueError('a\ud800b')",
        r"class C:" "\n" r"    def __repr__(self): return 'a\ud800b'" "\n" "C()",
        r"type('a\ud800b', (), {})()",
        r"import threading; t = threading.Thread(target=print, name='a\ud800b'); t.start(); t.join()",
        r"exec('raise Exception', {'__name__': 'a\ud800b'})",
    ],
)
def test_no_lone_surrogate_of_a_cell_leaves(code: str) -> None:
    # The oracle refuses one in any line; here only that there are results.
    with Client() as client:
        result = client.execute(code)
        assert result["state"] == "preserved"
        if code.startswith("print"):
            assert result["stdout"] in ("a?b\n", "a�b\n", "a\\ud800b\n")
        lives(client)


@pytest.mark.parametrize("request_id", ["\ud800", "", "x" * 1_000, 0, -1, 2**60])
def test_an_id_comes_back_as_it_was(request_id: str | int) -> None:
    with Client() as client:
        call = {"name": "python_health", "arguments": {}}
        client.send_message({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": call})
        assert client.result(request_id)["isError"] is False


@pytest.mark.parametrize(
    "odd", ["\ud800", "x" * 500_000, "a\x00b", "", "../..", "字" * 1_000], ids=lambda odd: repr(odd[:8])
)
@pytest.mark.parametrize(
    ("tool", "argument"),
    [
        ("execute_python", "session_id"),
        ("python_run", "run_id"),
        ("python_cancel", "run_id"),
        ("python_session_close", "session_id"),
        ("python_session_open", "project"),
        ("python_session_open", "python"),
    ],
)
def test_odd_names_are_refused_in_bounds(tool: str, argument: str, odd: str) -> None:
    arguments = {argument: odd} | ({"code": "1"} if tool == "execute_python" else {})
    with Client() as client:
        client.structured("python_health")
        message = client.answer(client.start_call(tool, **arguments))
        if "error" in message:
            assert message["error"]["code"] == -32602
        elif tool != "python_session_open":
            assert message["result"]["structuredContent"]["success"] is False
        assert len(json.dumps(message)) < 20_000
        assert "bug" not in json.dumps(message)
        assert client.request("ping") == {}


def test_an_id_in_flight_is_not_taken_twice() -> None:
    with Client() as client:
        call = {"name": "execute_python", "arguments": {"code": "import time; time.sleep(60)"}}
        client.send_message({"jsonrpc": "2.0", "id": "same", "method": "tools/call", "params": call})
        client.send_message({"jsonrpc": "2.0", "id": "same", "method": "tools/call", "params": call})
        assert client.error("same")["code"] == -32600
        client.structured("python_cancel")
        assert client.result("same")["structuredContent"]["error_code"] == "CANCELLED"


def test_too_many_requests_are_refused() -> None:
    with Client("--limit", "requests=3") as client:
        running = client.start_call("execute_python", code="import time; time.sleep(60)")
        waiting = [client.start_call("python_run", wait=60) for _ in range(2)]
        error = client.error(client.start_call("python_run", wait=60))
        assert error["code"] == -32600
        assert "requests" in error["message"]
        assert "3" in error["message"]
        assert client.structured("python_health")["sessions"][0]["active_run"]  # health answers whatever else is there
        client.cancel(running)
        for request_id in waiting:
            client.result(request_id)
        lives(client)


@pytest.mark.parametrize("request_id", [999, "nobody", None, 1.5, {"a": 1}])
def test_cancelling_nobody_is_nothing(request_id: object) -> None:
    with Client() as client:
        client.notify("notifications/cancelled", {"requestId": request_id})
        client.notify("notifications/no-such", {"x": 1})
        lives(client)


@pytest.mark.parametrize(
    "code", ["10**5000", "float('nan')", "[float('inf')]", "2**63", "-0.0", "1e400", "{1: 2, '1': 3}"]
)
def test_no_number_of_a_cell_breaks_a_message(code: str) -> None:
    with Client() as client:
        assert client.execute(code)["success"] is True
        lives(client)


def test_abuse_does_not_grow_the_server() -> None:
    with Client(version=MODERN) as client:
        session = client.default_session()
        client.execute("1", session_id=session)

        def abuse() -> None:
            for number in range(150):
                client.write(b"not json\n")
                client.error(None)
                client.error(client.start_call("execute_python", code="x" * 300_000))
                client.error(client.start_call("execute_python", code=number, session_id=session))
                client.error(client.start_call(f"no_such_tool_{number}"))
                client.structured("execute_python", code="1", session_id=f"nobody {number}")
            for _ in range(2):
                client.write(b"y" * LONG + b"\n")
                client.error(None)
            assert client.execute("print('w ' * 1_000_000)", session_id=session)["success"] is True

        sizes = []
        for _ in range(4):
            abuse()
            sizes.append(client.rss())
        assert sizes[3] - sizes[1] < GROWTH, sizes
