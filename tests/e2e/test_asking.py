"""What peers want to know, relayed to our client: elicitation and sampling, from a peer's request to its answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import MODERN, Client, Message
from tests.e2e.test_broker import Folder, folder, value
from tests.e2e.watch import eventually

__all__ = ["folder"]

ELICITATION, SAMPLING = "elicitation/create", "sampling/createMessage"
BOTH: Message = {"elicitation": {}, "sampling": {"tools": {}, "context": {}}, "roots": {}}
FORM: Message = {"action": "accept", "content": {"name": "Ada", "none": None}, "x-new": {"deep": None}}
SAID: Message = {"role": "assistant", "content": {"type": "text", "text": "hm"}, "model": "m", "stopReason": None}
CANCELLED = "notifications/cancelled"

each_era = pytest.mark.parametrize("era", ["legacy", "modern"])


class Asked(Client):
    """A client of the handshake era that answers what it is asked, as far as it offers that."""

    def __init__(self, folder: Folder, *arguments: str, offers: Message = BOTH) -> None:
        super().__init__(*arguments, cwd=folder.path, version=None)
        self.offers = offers

    def __enter__(self) -> Asked:
        super().__enter__()
        self.initialize(capabilities=self.offers)
        return self

    @property
    def asked_anything(self) -> bool:
        with self.news:
            return bool(self._requests)

    def ask(self, method: str = ELICITATION, params: str = "{}", **arguments: Any) -> int:
        """Start a cell in which the peer asks, with this expression as its params; the id of its request."""
        code = f"mcp.call('fix', 'ask', method={method!r}, params={params})['structuredContent']"
        return self.start_call("execute_python", code=code, **arguments)

    def reply(self, request: Message, **outcome: Any) -> None:
        self.send_message({"jsonrpc": "2.0", "id": request["id"], **outcome})

    def told(self, call: int) -> Any:
        """The value of a cell."""
        result = self.result(call)["structuredContent"]
        assert result["success"], result["error"]
        return result["value"]

    def taken_back(self) -> list[str]:
        return [params["requestId"] for params in self.notifications(CANCELLED)]


@pytest.fixture
def client(folder: Folder) -> Iterator[Asked]:
    folder.add("fix", "--era", "legacy")
    with Asked(folder) as opened:
        yield opened


@each_era
@pytest.mark.parametrize(("method", "answer"), [(ELICITATION, FORM), (SAMPLING, SAID)])
def test_the_client_is_asked_and_its_answer_comes_back_as_it_was(
    folder: Folder, era: str, method: str, answer: Message
) -> None:
    folder.add("fix", "--era", era)
    hop = {"_meta": {"progressToken": 1}, "task": {"ttl": 1}, "x-later": [None]}
    with Asked(folder) as client:
        if era == "legacy":
            offered = value(client, "mcp.call('fix', 'whoami')['structuredContent']['offered']")
            assert offered == {"roots": {"listChanged": True}, "elicitation": {"form": {}}, "sampling": {"tools": {}}}
        call = client.ask(method, repr(hop))
        request = client.asked()
        told = {"message": "fix asks: Name?", "requestedSchema": {"type": "object", "properties": {}}}
        expected = told if method == ELICITATION else {"messages": [], "maxTokens": 1}
        assert (request["method"], request["id"]) == (method, "repl-trio-1")
        assert request["params"] == {**expected, "x-later": [None], "_meta": {"repl-trio/peer": "fix"}}
        client.reply(request, result=answer)
        said = client.told(call)
        assert (said["result"] if era == "legacy" else said["responses"]["one"]) == answer
        assert client.taken_back() == []


def test_an_error_of_the_client_is_the_peers(client: Asked) -> None:
    call = client.ask()
    error = {"code": -1, "message": "User rejected", "data": {"why": ["later"]}}
    client.reply(client.asked(), error=error)
    assert client.told(call)["error"] == error


def test_an_error_of_the_client_ends_a_call_of_the_modern_era(folder: Folder) -> None:
    folder.add("fix", "--era", "modern")
    with Asked(folder) as client:
        call = client.ask()
        client.reply(client.asked(), error={"code": -1, "message": "User rejected."})
        error = client.result(call)["structuredContent"]["error"]
        assert "fix asks for elicitation/create before it goes on, and this failed: User rejected. If the" in error


REFUSED: dict[str, tuple[Message, list[tuple[str, str, str]]]] = {
    "nothing": ({}, [(ELICITATION, "{}", "offers no elicitation"), (SAMPLING, "{}", "offers no sampling")]),
    "urls": ({"elicitation": {"url": {}}}, [(ELICITATION, "{}", "offers no elicitation")]),
    "no tools": ({"sampling": {}}, [(SAMPLING, "{'tools': []}", "no sampling with tools")]),
    "everything": (
        BOTH,
        [
            (ELICITATION, "{'mode': 'url', 'url': 'https://host/', 'elicitationId': '1'}", "with a form"),
            (ELICITATION, "{'mode': ['form']}", "with a form"),
            (ELICITATION, "{'requestedSchema': 7}", "malformed"),
            (ELICITATION, "{'message': None}", "malformed"),
            (ELICITATION, "{'half': True}", "lone surrogate"),
            (ELICITATION, "{'deep': 70}", "limit schema_depth"),
            (ELICITATION, "{'deep': 700}", "limit schema_depth"),
            (ELICITATION, "{'message': 'x' * 300_000}", "limit client_request_bytes"),
        ],
    ),
}


@pytest.mark.parametrize(("offers", "cases"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_relayed_is_refused_in_words(
    folder: Folder, offers: Message, cases: list[tuple[str, str, str]]
) -> None:
    folder.add("fix", "--era", "legacy")
    folder.add("later", "--era", "modern")
    with Asked(folder, offers=offers) as client:
        for method, params, why in cases:
            assert why in client.told(client.ask(method, params))["error"]["message"]
            result = client.execute(f"mcp.call('later', 'ask', method={method!r}, params={params})")
            assert f"later asks for {method} before it goes on" in result["error"]
            assert why in result["error"] or "nobody to ask" in result["error"]
        assert not client.asked_anything


def test_a_client_of_the_modern_era_is_not_asked(folder: Folder) -> None:
    folder.add("fix", "--era", "legacy")
    with Client(cwd=folder.path, version=MODERN) as client:
        told = value(client, f"mcp.call('fix', 'ask', method={ELICITATION!r})['structuredContent']")
        assert "offers no elicitation" in told["error"]["message"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_cancelled_run_takes_its_request_back(folder: Folder, era: str) -> None:
    folder.add("fix", "--era", era)
    with Asked(folder) as client:
        value(client, "kept = 7")
        call = client.ask()
        request = client.asked()
        client.cancel(call)
        eventually(lambda: client.taken_back() == [request["id"]], "it is taken back")
        client.reply(request, result=FORM)  # too late
        assert value(client, "kept") == 7
        assert client.unclaimed() == []


def test_the_time_limit_of_a_call_takes_its_request_back(client: Asked) -> None:
    code = f"mcp.call('fix', 'ask', method={ELICITATION!r}, timeout=0.5)"
    value(client, "mcp.list_tools('fix'); 1")
    call = client.start_call("execute_python", code=code)
    request = client.asked()
    assert "time limit of 0.5 s was over" in client.result(call)["structuredContent"]["error"]
    eventually(lambda: client.taken_back() == [request["id"]], "it is taken back")


def test_an_open_question_is_seen_in_the_detail_of_health(client: Asked) -> None:
    call = client.ask()
    request = client.asked()
    health = client.call("python_health", detail=True)
    (asked,) = health["structuredContent"]["asked"]
    age = asked.pop("age_s")
    assert asked == {"id": request["id"], "method": ELICITATION, "server": "fix"}
    assert f"fix waits for the client: {ELICITATION} for {age} s" in health["content"][0]["text"]
    client.reply(request, result=FORM)
    client.told(call)
    assert client.structured("python_health", detail=True)["asked"] == []


@pytest.mark.parametrize("end", ["return", "withdraw"])
def test_what_the_peer_does_not_wait_for_is_taken_back(client: Asked, folder: Folder, end: str) -> None:
    path = folder.path / "asked"
    code = f"mcp.call('fix', 'ask_in_vain', end={end!r}, path={str(path)!r}, timeout=50)"
    call = client.start_call("execute_python", code=code)
    request = client.asked()
    path.touch()
    eventually(lambda: client.taken_back() == [request["id"]], "it is taken back")
    client.cancel(call)
    assert value(client, "1") == 1


def test_outside_of_a_call_nobody_is_asked(client: Asked, folder: Folder) -> None:
    value(client, "mcp.call('fix', 'ask_in_vain', end='late'); 1")
    eventually(lambda: folder.logged("fix", "answer"), "the peer has its answer")
    assert "nobody waits" in folder.logged("fix", "answer")[0]["error"]["message"]
    assert not client.asked_anything


def test_a_request_stays_while_another_call_may_be_meant(client: Asked, folder: Folder) -> None:
    opened = client.structured("python_session_open", project=str(folder.path))
    assert "session_id" in opened, opened
    other = opened["session_id"]
    value(client, "mcp.list_tools('fix'); 1")
    slow = client.start_call("execute_python", code="mcp.call('fix', 'slow', seconds=60)", session_id=other)
    eventually(lambda: folder.calls("fix") == 1, "the other call has arrived")
    call = client.ask()
    request = client.asked()
    client.cancel(call)
    eventually(lambda: CANCELLED in folder.logged("fix", "got"), "the peer is told of the cancelled call")
    client.reply(request, result=FORM)
    eventually(lambda: folder.logged("fix", "answer"), "the peer has its answer")
    assert folder.logged("fix", "answer")[0]["result"] == FORM
    second = client.ask()
    request = client.asked()
    client.cancel(second)
    client.cancel(slow)
    eventually(lambda: client.taken_back() == [request["id"]], "with the last call it is taken back")


def test_a_client_that_never_answers_costs_a_bounded_time(folder: Folder) -> None:
    folder.add("fix", "--era", "legacy")
    with Asked(folder, "--limit", "client_answer=0.2") as client:
        call = client.ask()
        request = client.asked()
        assert "did not answer in 0.2 s (limit client_answer)" in client.told(call)["error"]["message"]
        assert client.taken_back() == [request["id"]]
        client.reply(request, result=FORM)
        assert value(client, "1") == 1


def test_only_the_first_answer_to_an_open_request_counts(client: Asked) -> None:
    client.send_message({"jsonrpc": "2.0", "id": "repl-trio-1", "result": {}})
    call = client.ask()
    request = client.asked()
    for number in ("repl-trio-2", "1", 1, None, "repl-trio-1 "):
        client.send_message({"jsonrpc": "2.0", "id": number, "result": {"action": "decline"}})
    client.reply(request, result=FORM)
    client.reply(request, result={"action": "cancel"})
    client.reply(request, error={"code": 1, "message": "no"})
    assert client.told(call)["result"] == FORM
    assert value(client, "1") == 1
    assert client.unclaimed() == []


@pytest.mark.parametrize("outcome", [{"result": 7}, {"result": None}, {"error": {}}, {"error": {"code": 1}}])
def test_a_malformed_answer_is_an_answer(client: Asked, outcome: Message) -> None:
    call = client.ask()
    client.reply(client.asked(), **outcome)
    assert "neither a result nor a proper error" in client.told(call)["error"]["message"]


def test_the_client_is_asked_no_more_than_it_bears(folder: Folder) -> None:
    folder.add("fix", "--era", "legacy")
    code = f"import asyncio\nasked = [mcp.acall('fix', 'ask', method={ELICITATION!r}) for _ in range(3)]\n"
    code += "[one['structuredContent'] for one in await asyncio.gather(*asked)]"
    with Asked(folder, "--limit", "client_requests=1") as client:
        call = client.start_call("execute_python", code=code)
        request = client.asked()
        eventually(lambda: len(folder.logged("fix", "answer")) == 2, "two are refused")
        client.reply(request, result=FORM)
        errors = [one["error"]["message"] for one in client.told(call) if "error" in one]
        assert len(errors) == 2
        assert all("limit client_requests" in error for error in errors)


def test_the_end_of_the_client_ends_what_waits_for_it(folder: Folder) -> None:
    folder.add("fix", "--era", "legacy")
    with Asked(folder) as client:
        client.ask()
        client.asked()
        assert client.close(10.0) == 0
