"""What peers write before their end and in floods: all of it is read, and nobody else has to wait for that."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from repl_trio.broker.peer.connection import Ticket
from repl_trio.broker.peer.intake import Intake
from repl_trio.broker.peer.sdk import Sdk
from repl_trio.broker.peer.streams import Inbound
from repl_trio.errors import BrokerError
from repl_trio.limits import Limits
from repl_trio.process.pipes import PipeReader
from tests.process.broker_stage import open_project
from tests.process.peer_stage import HANG, call, eventually, open_stage

NOTE = '{"jsonrpc":"2.0","method":"notifications/message","params":{}}'
RESULT = '{"content":[{"type":"text","text":"the last"}]}'


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


@contextmanager
def inbound(lines: bytes) -> Iterator[Inbound]:
    """The reader of a peer that has written these lines and ended."""
    reading, writing = os.pipe()
    os.close(writing)
    pipe = PipeReader(reading)
    read = Inbound(Sdk(), pipe, Intake(Limits()), lambda: None, nothing, lambda: None)
    read.finish(lines)
    try:
        yield read
    finally:
        pipe.close()


async def test_an_answer_behind_a_thousand_messages_is_not_lost_with_its_peer(tmp_path: Path) -> None:
    answer = f'{{"jsonrpc":"2.0","id":ID,"result":{RESULT}}}'
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--era", "legacy")
        for _ in range(5):
            result: Any = await call(peer, "last_words", line="\n".join([NOTE] * 1_000 + [answer]))
            assert result["content"][0]["text"] == "the last"
            await eventually(lambda: peer.machine.state == "failed", "its end is seen")
        assert stage.logged("got").count("tools/call") == 5


async def test_others_get_their_turns_while_a_flood_of_short_lines_is_read() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    lines = b"{\n" * 100_000
    with inbound(lines) as read, trio.fail_after(HANG):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            with pytest.raises(read._sdk.EndOfStream):
                await read.receive()
            nursery.cancel_scope.cancel()
    assert turns >= len(lines) // 2_000  # each near-message costs twenty microseconds


def test_the_collector_does_not_walk_what_a_large_message_becomes() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"result":{"x":[' + b",".join([b"[]"] * 200_000) + b"]}}\n"
    runs: list[str] = []

    def ran(phase: str, _info: dict[str, int]) -> None:
        runs.append(phase)

    gc.callbacks.append(ran)
    try:
        (message,) = Intake(Limits()).feed(line)
    finally:
        gc.callbacks.remove(ran)
    assert isinstance(message, dict)
    assert gc.isenabled()
    assert runs.count("start") < 10  # 285 with the collector's usual threshold


async def test_an_answer_with_its_number_in_quotes_is_an_answer_when_it_is_late_too() -> None:
    settled: list[bool] = []
    lines = b'{"jsonrpc":"2.0","id":"1000","result":{}}\n{"jsonrpc":"2.0","id":"x","result":{}}\n'
    with inbound(lines) as read:
        read.expect_late(1_000, settled.append)
        for _ in range(2):
            await read.receive()
    assert settled == [False]


async def test_a_call_that_failed_over_the_list_of_tools_was_not_sent(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.add("fix", "--cursor", "refused", "--era", "legacy")
        project.add("dies", "--cursor", "death")
        given: dict[str, Any] = {"tool": "echo", "arguments": {"text": "x"}}
        error = await project.refused("PROTOCOL_ERROR", "tools/list .* today", server="fix", **given)
        assert error.sent == "no"
        error = await project.refused("PEER_GONE", "exit status 4", server="dies", **given)
        assert error.sent == "no"
        assert await project.journal() == []
        assert "tools/call" not in project.logged("fix", "got") + project.logged("dies", "got")


async def test_a_call_that_was_begun_is_not_sent_again_when_its_next_round_cannot_leave(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.add("fix", "--era", "modern")
        error = await project.refused("PEER_GONE", "exit status 0", server="fix", tool="ask_and_end", arguments={})
        assert error.sent == "unknown"
        assert project.logged("fix", "got").count("tools/call") == 1
        assert await project.journal() == [("ask_and_end", "outcome_unknown")]


async def test_a_state_that_is_no_json_is_an_error_of_its_call(tmp_path: Path) -> None:
    state = '{"jsonrpc":"2.0","id":ID,"result":{"resultType":"input_required","requestState":1e999}}'
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--era", "modern")
        ticket = Ticket()
        # A number beyond every float is JSON, and what it is read as is not.
        with pytest.raises(BrokerError, match="a state to be sent back that is no JSON") as raised:
            await call(peer, "answer", ticket, line=state)
        assert (raised.value.code, raised.value.sent, ticket.sent) == ("PROTOCOL_ERROR", "unknown", "unknown")
        assert await call(peer, "echo", text="x")
