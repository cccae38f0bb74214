"""Our own requests to the client: what it offers to answer, ids, and which of its answers count."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repl_trio.wire.jsonrpc import Response
from repl_trio.wire.mcp import Cancel
from tests.e2e.client import MODERN, Message
from tests.wire.test_mcp import Peer, note, peer

__all__ = ["peer"]

FORM: Message = {"elicitation": {"form": {}}}
TOOLS: Message = {"sampling": {"tools": {}}}


@pytest.mark.parametrize(
    ("capabilities", "version", "offers"),
    [
        ({}, "2025-11-25", {}),
        ({"elicitation": {}}, "2025-11-25", FORM),
        ({"elicitation": {"form": {}, "url": {}}}, "2025-11-25", FORM),
        ({"elicitation": {"url": {}}}, "2025-11-25", {}),
        ({"elicitation": {}}, "2025-06-18", FORM),
        ({"elicitation": {}}, "2025-03-26", {}),
        ({"elicitation": {}, "sampling": {}}, "2024-11-05", {"sampling": {}}),
        ({"sampling": {"tools": {}, "context": {}}}, "2025-11-25", TOOLS),
        ({"sampling": {"tools": True}}, "2025-11-25", {"sampling": {}}),
        ({"elicitation": True, "sampling": [], "roots": {}, "other": {}}, "2025-11-25", {}),
        ([FORM], "2025-11-25", {}),
        ("sampling", "2025-11-25", {}),
    ],
)
def test_what_a_client_offers(peer: Peer, capabilities: object, version: str, offers: Message) -> None:
    peer.open(version, capabilities)
    assert peer.connection.offers == offers


def test_the_last_handshake_says_what_is_offered(peer: Peer) -> None:
    peer.open("2025-11-25", FORM | TOOLS)
    peer.open("2025-11-25")
    assert peer.connection.offers == {}


def test_a_client_of_the_modern_era_offers_nothing(peer: Peer) -> None:
    peer.open(MODERN)
    peer.error("initialize", {"protocolVersion": "2025-11-25", "capabilities": FORM})
    assert peer.connection.offers == {}


def ask(peer: Peer) -> str:
    """Ask for something; the id of our request."""
    params: Message = {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}
    request_id, line = peer.connection.ask("elicitation/create", params)
    assert peer.judge(line)["id"] == request_id
    return request_id


def reply(peer: Peer, request_id: object, **outcome: object) -> Any:
    return peer.connection.receive(json.dumps({"jsonrpc": "2.0", "id": request_id, **outcome}).encode())


def test_requests_of_ours_have_ids_of_their_own_and_are_answered_in_any_order(peer: Peer) -> None:
    peer.open("2025-11-25", FORM)
    first, second = ask(peer), ask(peer)
    assert (first, second) == ("repl-trio-1", "repl-trio-2")
    for request_id in (second, first):
        answer = reply(peer, request_id, result={"action": "decline"})
        assert isinstance(answer, Response)
        assert (answer.id, answer.result, answer.error) == (request_id, {"action": "decline"}, None)
    assert peer.result("ping") == {}


def test_only_the_first_answer_to_an_open_request_counts(peer: Peer) -> None:
    peer.open("2025-11-25", FORM)
    assert reply(peer, "repl-trio-1", result={}) is None
    request_id = ask(peer)
    for other in ("repl-trio-2", "", 1, None):
        assert reply(peer, other, result={}) is None
    assert reply(peer, request_id, error={"code": 1, "message": "no"}).error == {"code": 1, "message": "no"}
    assert reply(peer, request_id, result={}) is None
    assert reply(peer, request_id, error={}) is None


def test_a_request_that_was_given_up_is_taken_back_and_its_answer_dropped(peer: Peer) -> None:
    peer.open("2025-11-25", FORM)
    request_id = ask(peer)
    message = peer.judge(peer.connection.give_up(request_id, "why"))
    assert message["params"] == {"requestId": request_id, "reason": "why"}
    assert reply(peer, request_id, result={}) is None


def test_the_clients_request_with_an_id_like_ours_is_its_own(peer: Peer) -> None:
    peer.open("2025-11-25", FORM)
    request_id = ask(peer)
    assert peer.message("ping", request_id=request_id)["result"] == {}
    assert isinstance(note(peer, "notifications/cancelled", {"requestId": request_id}), Cancel)
    assert isinstance(reply(peer, request_id, result={}), Response)
