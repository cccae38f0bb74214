"""The opening exchange over real pipes: what it answers by itself, when it hands over, and what it takes with it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from repl_trio.limits import DEFAULT, Limits
from repl_trio.process.stdio import Claim
from repl_trio.server.ending import CLOSED_STDIN, READS_NO_MORE
from repl_trio.server.opening import Handover, exchange
from repl_trio.server.tools import implementation
from repl_trio.wire.framing import LineDecoder, Oversized
from repl_trio.wire.mcp import Connection
from tests.e2e.client import MODERN, Message, envelope
from tests.e2e.oracle import Oracle

BOUND = 20.0
"""seconds. For an exchange that must come back."""


class Opening:
    """One exchange: its two pipes, and the client's ends of them."""

    def __init__(self) -> None:
        self.receive_fd, self.to_server = os.pipe()
        self.from_server, self.send_fd = os.pipe()
        self.open = {self.receive_fd, self.to_server, self.from_server, self.send_fd}
        os.set_blocking(self.receive_fd, False)
        os.set_blocking(self.send_fd, False)
        self.decoder = LineDecoder(DEFAULT.request_bytes)
        self.connection = Connection(implementation(DEFAULT), DEFAULT.request_bytes)
        self.oracle = Oracle()

    def send(self, *messages: Message, end: bytes = b"\n") -> None:
        for message in messages:
            self.oracle.sent(message)
            os.write(self.to_server, json.dumps(message).encode() + end)

    def hang_up(self) -> None:
        self.close(self.to_server)

    def close(self, fd: int) -> None:
        os.close(fd)
        self.open.discard(fd)

    def run(self, limits: Limits = DEFAULT, wake: int | None = None) -> Handover | str:
        claim = Claim(self.receive_fd, self.send_fd, [])
        return exchange(claim, self.connection, self.decoder, limits, wake)

    def answers(self) -> list[Message]:
        """Everything that was answered, judged; ends our reading."""
        self.close(self.send_fd)
        with os.fdopen(self.from_server, "rb") as stream:
            self.open.discard(self.from_server)
            return [self.oracle.check(line.rstrip(b"\n")) for line in stream]


@pytest.fixture
def opening() -> Iterator[Opening]:
    made = Opening()
    yield made
    for fd in made.open:
        os.close(fd)


def request(request_id: int, method: str, **params: Any) -> Message:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


HELLO = request(
    1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "c", "version": "1"}
)
READY: Message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CALL = request(9, "tools/call", name="execute_python", arguments={"code": "1"})


def ids(answers: list[Message]) -> list[object]:
    return [answer["id"] for answer in answers]


def test_it_hands_over_after_a_quiet_moment(opening: Opening) -> None:
    opening.send(HELLO, READY, request(2, "tools/list"), request(3, "ping"))
    handover = opening.run()
    assert isinstance(handover, Handover)
    assert (handover.call, handover.lines) == (None, [])
    assert ids(opening.answers()) == [1, 2, 3]


def test_it_answers_the_modern_era_as_well(opening: Opening) -> None:
    opening.send(request(1, "server/discover", _meta=envelope()), request(2, "tools/list", _meta=envelope()))
    assert opening.run() is not None
    assert [answer["result"]["resultType"] for answer in opening.answers()] == ["complete", "complete"]
    assert opening.connection.version == MODERN


def test_a_call_ends_it_and_what_came_behind_is_kept(opening: Opening) -> None:
    opening.send(HELLO, CALL, request(10, "ping"), request(11, "tools/list"))
    handover = opening.run()
    assert isinstance(handover, Handover)
    assert handover.call is not None
    assert (handover.call.id, handover.call.arguments) == (9, {"code": "1"})
    assert [json.loads(line)["id"] for line in handover.lines if isinstance(line, bytes)] == [10, 11]
    assert ids(opening.answers()) == [1]


def test_a_call_may_be_the_first_message(opening: Opening) -> None:
    opening.send(CALL)
    handover = opening.run()
    assert isinstance(handover, Handover)
    assert handover.call is not None
    assert handover.call.tool == "execute_python"
    assert opening.answers() == []


def test_half_a_line_goes_on_in_the_decoder(opening: Opening) -> None:
    opening.send(HELLO)
    opening.send(request(2, "ping"), end=b"")
    assert opening.run() is not None
    (line,) = opening.decoder.feed(b"\n")
    assert not isinstance(line, Oversized)
    assert json.loads(line)["id"] == 2
    assert ids(opening.answers()) == [1]


def test_at_the_end_everything_has_been_answered(opening: Opening) -> None:
    opening.send(HELLO)
    opening.send(request(2, "ping"), end=b"")
    opening.hang_up()
    assert opening.run() == CLOSED_STDIN
    assert ids(opening.answers()) == [1, 2]


def test_a_call_in_the_last_line_is_handed_over(opening: Opening) -> None:
    # `cat requests | repl-trio` must still run the cell.
    opening.send(HELLO)
    opening.send(CALL, end=b"")
    opening.hang_up()
    handover = opening.run()
    assert isinstance(handover, Handover)
    assert handover.call is not None
    assert handover.call.id == 9
    assert ids(opening.answers()) == [1]


def test_a_client_that_says_nothing_and_leaves(opening: Opening) -> None:
    opening.hang_up()
    assert opening.run() == CLOSED_STDIN
    assert opening.answers() == []


def test_bad_lines_are_answered_and_do_not_end_it(opening: Opening) -> None:
    os.write(opening.to_server, b"not json\n[]\n\n\xff\n")
    opening.send(HELLO)
    opening.hang_up()
    assert opening.run() == CLOSED_STDIN
    assert [answer.get("error", {}).get("code") for answer in opening.answers()] == [-32700, -32600, -32700, None]


def test_it_waits_for_a_client_that_is_slow_to_begin(opening: Opening) -> None:
    # The pause counts from the first answer: before it, trio would be imported for a client that may never come.
    limits = Limits.overridden({"opening_pause": "0.001"})
    with ThreadPoolExecutor(1) as pool:
        exchanged = pool.submit(opening.run, limits)
        # Many pauses long: if the exchange ended by itself, it would in this time.
        with pytest.raises(TimeoutError):
            exchanged.result(0.2)
        for byte in json.dumps(HELLO).encode():
            os.write(opening.to_server, bytes([byte]))
        opening.oracle.sent(HELLO)
        os.write(opening.to_server, b"\n")
        handover = exchanged.result(BOUND)
    assert isinstance(handover, Handover)
    assert ids(opening.answers()) == [1]


def test_a_client_that_does_not_read_is_given_up(opening: Opening) -> None:
    os.set_blocking(opening.to_server, False)
    limits = Limits.overridden({"shutdown_bound": "0.05"})
    opening.send(HELLO, *[request(number, "tools/list") for number in range(2, 200)])
    assert opening.run(limits) == READS_NO_MORE


def test_a_client_that_reads_late_gets_all_of_it(opening: Opening) -> None:
    # More than a pipe holds: the exchange waits for room while nobody reads, then goes on.
    asked = [HELLO, *[request(number, "tools/list") for number in range(2, 40)]]
    opening.send(*asked)
    opening.hang_up()
    read: list[bytes] = []

    def reader() -> None:
        while chunk := os.read(opening.from_server, 4_096):
            read.append(chunk)

    thread = threading.Thread(target=reader)
    thread.start()
    assert opening.run() == CLOSED_STDIN
    opening.close(opening.send_fd)
    thread.join(BOUND)
    assert not thread.is_alive()
    assert ids([opening.oracle.check(line) for line in b"".join(read).splitlines()]) == list(range(1, 40))


@pytest.mark.parametrize("state", ["nothing said", "answered", "unread"])
def test_a_server_that_is_told_to_end_leaves_it(opening: Opening, state: str) -> None:
    wake, woken = os.pipe()
    opening.open |= {wake, woken}
    if state != "nothing said":
        opening.send(HELLO)
    if state == "unread":
        os.set_blocking(opening.to_server, False)
        opening.send(*[request(number, "tools/list") for number in range(2, 200)])
    os.write(woken, b".")
    # What was read is answered; an answer that nobody takes is not waited for.
    assert opening.run(wake=wake) == ("" if state != "unread" else READS_NO_MORE)
    if state == "answered":
        assert ids(opening.answers()) == [1]


def test_a_broken_stdout_ends_it(opening: Opening) -> None:
    opening.send(HELLO)
    opening.close(opening.from_server)
    assert opening.run() == READS_NO_MORE


def test_a_broken_stdin_is_an_end(opening: Opening) -> None:
    opening.send(HELLO)
    opening.hang_up()
    handed = os.open(os.devnull, os.O_WRONLY)  # reading from it fails with EBADF
    try:
        claim = Claim(handed, opening.send_fd, [])
        assert exchange(claim, opening.connection, opening.decoder, DEFAULT) == CLOSED_STDIN
    finally:
        os.close(handed)
    assert opening.answers() == []
