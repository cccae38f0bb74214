"""The judges of the other tests must be able to condemn: what oracle and client see when a server misbehaves."""

from __future__ import annotations

import base64
import json
import sys

import jsonschema
import pytest

from tests.e2e import server_process
from tests.e2e.client import MODERN, Client, Message, Violation, envelope
from tests.e2e.oracle import Oracle
from tests.server.test_pictures import image_of

HEALTH = {"name": "python_session_close", "arguments": {}}
GOOD: Message = {
    "content": [{"type": "text", "text": "closed"}],
    "structuredContent": {"closed": True, "session_id": "s1"},
    "isError": False,
}
IMAGE: Message = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
FAILED: Message = {"success": False, "error": "no", "error_code": "UNKNOWN_SESSION"}


def asked(*, modern: bool = False) -> Oracle:
    """An oracle that has seen request 1, a call."""
    oracle = Oracle()
    meta = {"_meta": envelope()} if modern else {}
    oracle.sent({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": HEALTH | meta})
    return oracle


def answer(result: object = None, **fields: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": GOOD if result is None else result} | fields).encode()


def test_a_good_answer_passes_once() -> None:
    oracle = asked()
    assert oracle.check(answer())["id"] == 1
    with pytest.raises(Violation, match="second"):
        oracle.check(answer())


PNG = image_of("image/png", (64, 48))
SHOWN: Message = {
    "artifact_id": "a1",
    "media_type": "image/png",
    "size": len(PNG),
    "width": 64,
    "height": 48,
    "shown": True,
}
ENTRY: Message = {
    "id": "a1",
    "name": "figure 1",
    "kind": "image",
    "media_type": "image/png",
    "size": len(PNG),
    "complete": True,
}


@pytest.mark.parametrize(
    ("image", "entry", "blocks"),
    [
        ({}, {}, []),
        ({}, {}, [PNG, PNG]),
        ({"shown": False}, {}, [PNG]),
        ({"width": 63}, {}, [PNG]),
        ({"size": 1}, {}, [PNG]),
        ({"artifact_id": "a2"}, {}, [PNG]),
        ({"extra": 1}, {}, [PNG]),
        ({}, {"size": "1"}, [PNG]),
        ({"size": 3}, {}, [b"abc"]),
        ({"size": len(PNG) - 40}, {}, [PNG[:-40]]),
    ],
)
def test_images_are_judged(image: Message, entry: Message, blocks: list[bytes]) -> None:
    oracle = Oracle()
    structured: Message = {"status": "finished", "success": True, "artifacts": [ENTRY], "images": [SHOWN]}
    text = {"type": "text", "text": "x"}
    good = {"content": [text, block_of(PNG)], "structuredContent": structured, "isError": False}
    oracle.check_tool_result("execute_python", good)
    changed = structured | {"artifacts": [ENTRY | entry], "images": [SHOWN | image]}
    bad = good | {"content": [text, *map(block_of, blocks)], "structuredContent": changed}
    with pytest.raises((Violation, jsonschema.ValidationError)):
        oracle.check_tool_result("execute_python", bad)


def block_of(content: bytes) -> Message:
    return {"type": "image", "data": base64.b64encode(content).decode(), "mimeType": "image/png"}


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"",
        b"[]",
        b"\xff",
        b'{"jsonrpc":"2.0","id":1,"result":{"x":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"id":1,"result":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/unheard-of","params":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":"x","message":"m"}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m","extra":1}}',
        b'{"jsonrpc":"2.0","id":"1","error":{"code":1,"message":"m"}}',
        b'{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}',
        answer(jsonrpc="1.0"),
        answer(id=2),
        answer(id="1"),
        answer(error={"code": 1, "message": "m"}),
        answer(extra=1),
        answer([]),
        answer({}),
        answer(GOOD | {"content": []}),
        answer(GOOD | {"content": [{"type": "text"}]}),
        answer(GOOD | {"content": [{"type": "text", "text": ""}]}),
        answer(GOOD | {"content": [{"type": "text", "text": "\ud800"}]}),
        answer(GOOD | {"content": [*GOOD["content"], IMAGE]}),
        answer(GOOD | {"content": [IMAGE]}),
        answer(GOOD | {"content": [{"type": "text", "text": "x" * 40_001}]}),
        answer(GOOD | {"structuredContent": {"closed": "yes"}}),
        answer(GOOD | {"structuredContent": {"unknown": 1}}),
        answer(GOOD | {"isError": True}),
        answer(GOOD | {"structuredContent": FAILED}),
        answer(GOOD | {"structuredContent": {"success": False}, "isError": True}),
    ],
    ids=lambda line: repr(line[:60]),
)
def test_a_bad_line_is_condemned(line: bytes) -> None:
    with pytest.raises(Violation):
        asked().check(line)


def test_the_version_decides() -> None:
    # A modern result says that it is complete; the same without that is right in the handshake era only.
    with pytest.raises(Violation):
        asked(modern=True).check(answer())
    assert asked(modern=True).version == MODERN
    assert asked(modern=True).check(answer(GOOD | {"resultType": "complete"}))["id"] == 1


def test_the_bound_can_be_lifted() -> None:
    oracle = asked()
    oracle.result_bytes = None
    oracle.check(answer(GOOD | {"content": [{"type": "text", "text": "x" * 40_001}]}))


STRAY = "print('a banner', flush=True); input()"
STAYS = "import signal, sys, time\nsys.stdin.read()\nsignal.pause()"
LEAVES = """
import subprocess, sys
quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True, **quiet)
print('{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"started"}}', flush=True)
sys.stdin.read()
"""
TORN = "import sys; sys.stdout.write('{}'); sys.stdout.flush(); sys.stdin.read()"


def pretender(source: str) -> Client:
    """A client of something that is no server of ours."""
    made = Client(version=None)
    made.command = [sys.executable, "-c", source]
    return made


def held(source: str, *ids: int | str | None, bound: float = 10.0) -> Client:
    """A whole block with a pretender: these answers are awaited, then the block ends."""
    with pretender(source) as client:
        for request_id in ids:
            client.answer(request_id, bound)
    return client


@pytest.mark.parametrize("source", [STRAY, TORN])
def test_a_stray_line_fails_the_test(source: str) -> None:
    with pytest.raises(Violation):
        held(source)


def test_a_server_that_stays_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process.ServerProcess.close, "__defaults__", (0.2,))
    with pytest.raises(AssertionError, match="did not exit"):
        held(STAYS)


def test_what_outlives_a_server_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "GONE_BOUND", 0.2)
    with pytest.raises(AssertionError, match="outlived the server"):
        held(LEAVES, None)


def test_a_missing_answer_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="no answer to request 7 within"):
        held("import sys; sys.stdin.read()", 7, bound=0.01)
    with pytest.raises(AssertionError, match="stdout ended, exit status 3"):
        held("raise SystemExit(3)", 7)


def test_a_failing_block_shows_what_the_server_said() -> None:
    with pytest.raises(AssertionError) as caught:
        held("import sys; print('the reason', file=sys.stderr)", 7)
    assert "the reason" in caught.value.__notes__[0]


def server_request(**fields: object) -> bytes:
    params = {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}
    whole = {"jsonrpc": "2.0", "id": "ours-1", "method": "elicitation/create", "params": params}
    return json.dumps(whole | fields).encode()


def cancelled(number: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}).encode()


def offering(capabilities: Message, version: str = "2025-11-25") -> Oracle:
    oracle = Oracle()
    params = {"protocolVersion": version, "capabilities": capabilities}
    oracle.sent({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    oracle.version = version
    return oracle


def test_a_good_request_of_the_server_passes_and_may_be_taken_back_once() -> None:
    oracle = offering({"elicitation": {}})
    oracle.check(server_request())
    oracle.check(server_request(id="ours-2"))
    oracle.check(cancelled("ours-1"))
    for number in ("ours-1", "ours-3"):
        with pytest.raises(Violation, match="cancels"):
            oracle.check(cancelled(number))
    with pytest.raises(Violation, match="an id twice"):
        oracle.check(server_request())


@pytest.mark.parametrize(
    ("capabilities", "version", "fields"),
    [
        ({}, "2025-11-25", {}),
        ({"elicitation": {}}, "2025-03-26", {}),
        ({"elicitation": {}}, "2026-07-28", {}),
        ({"elicitation": {}}, "2025-11-25", {"params": {"message": 7}}),
        ({"elicitation": {}}, "2025-11-25", {"id": None}),
        ({"elicitation": {}}, "2025-11-25", {"extra": 1}),
        ({"elicitation": {}}, "2025-11-25", {"method": "tools/list", "params": {}}),
    ],
)
def test_a_request_of_the_server_that_must_not_be(capabilities: Message, version: str, fields: Message) -> None:
    with pytest.raises(Violation):
        offering(capabilities, version).check(server_request(**fields))
