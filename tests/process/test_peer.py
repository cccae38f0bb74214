"""A connected peer, as a real process: both eras, whole results, requests in both directions, cancellation."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from repl_trio.broker.peer.connection import Json, Ticket
from repl_trio.errors import BrokerError
from tests.peers.tools import TOOLS, Call
from tests.process.peer_stage import about, call, eventually, open_stage, text

each_era = pytest.mark.parametrize("era", ["legacy", "modern"])


def served(tool: str, **arguments: object) -> Json:
    """What the fixture answers, from its own source."""
    result: Any = TOOLS[tool].act(Call(None, 1, {"arguments": arguments}))
    return dict(result)


def bare(result: Json) -> Json:
    """Without the mark that results of the modern era carry."""
    return {key: value for key, value in result.items() if key != "resultType"}


@pytest.mark.parametrize(
    ("mode", "era", "version"),
    [
        ("auto", "both", "2026-07-28"),
        ("auto", "legacy", "2025-11-25"),
        ("auto", "modern", "2026-07-28"),
        ("legacy", "both", "2025-11-25"),
        ("modern", "both", "2026-07-28"),
    ],
)
async def test_a_peer_is_met_in_its_era(tmp_path: Path, mode: str, era: str, version: str) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--era", era, mode=mode)
        connection = await peer.connect()
        assert (connection.version, connection.about) == (version, "fixture 1")
        assert await text(peer, "echo", text="hello \ud800\u2028 \0") == "hello \ud800\u2028 \0"
        assert (await connection.ask("resources/read", {"uri": "test://one"}))["contents"] == [
            {"uri": "test://one", "mimeType": "text/plain", "text": "first\nsecond", "odd": 1}
        ]
        assert len(stage.logged("started")) == 1


async def test_a_peer_that_ignores_what_it_does_not_know_is_met_by_the_handshake(tmp_path: Path) -> None:
    async with open_stage(tmp_path, peer_probe="0.2") as stage:
        assert (await stage.peer("--era", "mute").connect()).version == "2025-11-25"


async def test_a_peer_that_ends_itself_at_a_probe_is_met_by_the_handshake(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--strict")
        assert (await peer.connect()).version == "2025-11-25"
        assert len(stage.logged("started")) == 2
        with pytest.raises(BrokerError):
            await call(peer, "die")
        await peer.connect()
        assert len(stage.logged("started")) == 3  # it is remembered: no probe any more


@each_era
async def test_results_come_back_as_they_were_sent(tmp_path: Path, era: str) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--era", era)
        for tool in ("blocks", "fail"):
            expected = served(tool)
            result = bare(await call(peer, tool))
            assert result == expected
            assert json.dumps(result) == json.dumps(expected)  # the order of keys, 1 and 1.0 and True
        seen = [bare(await call(peer, "structured", which=which)) for which in STRUCTURED]
        assert [json.dumps(one) for one in seen] == [json.dumps(served("structured", which=one)) for one in STRUCTURED]
        assert len({json.dumps(one) for one in seen}) == len(STRUCTURED)


STRUCTURED = ("list", "zero", "empty", "false", "null", "object", "none")


@each_era
async def test_an_error_of_the_protocol_says_what_the_peer_said(tmp_path: Path, era: str) -> None:
    async with open_stage(tmp_path) as stage:
        ticket = Ticket()
        with pytest.raises(
            BrokerError, match=r"fixture answered tools/call with the error -32000: no such thing"
        ) as got:
            await call(stage.peer("--era", era), "refuse", ticket)
        assert (got.value.code, got.value.sent, ticket.sent) == ("PROTOCOL_ERROR", "done", "done")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('{"jsonrpc":"2.0","id":ID,"result":{"content":[],"n":NaN}}', "PROTOCOL_ERROR"),
        ('{"jsonrpc":"2.0","id":ID,"result":7}', "PROTOCOL_ERROR"),
        ('{"jsonrpc":"2.0","id":ID,"result":{"x":"' + "y" * 3000 + '"}}', "LIMIT_REACHED"),
        ('{"result":{"x":"' + "y" * 3000 + '"},"jsonrpc":"2.0","id":ID}', "LIMIT_REACHED"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_told_at_once(tmp_path: Path, line: str, code: str) -> None:
    async with open_stage(tmp_path, peer_message_bytes="2000") as stage:
        peer = stage.peer("--tools", os.devnull)
        with pytest.raises(BrokerError) as got:
            await call(peer, "answer", line=line)
        assert (got.value.code, got.value.sent) == (code, "done")
        assert await text(peer, "echo", text="still there") == "still there"


async def test_stray_output_between_messages_is_skipped(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--before", "Server listening on stdio")
        for line in ("debug: x", "", "{oops", '{"level":"info"}', '{"jsonrpc":"2.0","id":99999,"result":{}}'):
            assert await text(peer, "say", line=line) == "said"


@each_era
async def test_roots_are_the_project(tmp_path: Path, era: str) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--era", era)
        told: Any = (await call(peer, "ask", method="roots/list"))["structuredContent"]
        roots = (told["result"] if era == "legacy" else told["responses"]["one"])["roots"]
        assert roots == [{"uri": tmp_path.as_uri(), "name": tmp_path.name}]
        if era == "modern":
            assert told["state"] == "opaque:state"
        else:
            assert list((await about(peer))["offered"]) == ["roots"]


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage"])
@each_era
async def test_what_nobody_can_answer_is_declined(tmp_path: Path, era: str, method: str) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--era", era)
        if era == "legacy":
            told: Any = (await call(peer, "ask", method=method))["structuredContent"]
            assert "there is nobody to ask" in told["error"]["message"]
            assert peer.about()["asks"] == {method: 1}
        else:
            with pytest.raises(BrokerError, match=f"asks for {method} before it goes on") as got:
                await call(peer, "ask", method=method)
            assert got.value.code == "UNSUPPORTED"
        assert await text(peer, "echo", text="on") == "on"


@pytest.mark.parametrize("method", ["tools/list", "", None, 7, ["roots/list"]])
async def test_a_question_of_an_unknown_kind_is_declined(tmp_path: Path, method: object) -> None:
    async with open_stage(tmp_path) as stage:
        with pytest.raises(BrokerError, match="asks for something unknown before it goes on"):
            await call(stage.peer("--era", "modern"), "ask", method=method)


async def test_a_peer_that_always_wants_more_is_left(tmp_path: Path) -> None:
    async with open_stage(tmp_path, peer_rounds="3") as stage:
        ticket = Ticket()
        with pytest.raises(BrokerError, match="asked for more input 3 times") as got:
            await call(stage.peer("--era", "modern"), "insatiable", ticket)
        assert got.value.code == "LIMIT_REACHED"
        asked = [params.get("requestState") for params in stage.logged("params") if params and "name" in params]
        assert asked == [None, ".", ".."]


@each_era
async def test_progress_is_told(tmp_path: Path, era: str) -> None:
    async with open_stage(tmp_path) as stage:
        connection = await stage.peer("--era", era).connect()
        steps: list[tuple[float, float | None, str]] = []
        asked: Json = {"name": "progress", "arguments": {"steps": 30}}
        await connection.request("tools/call", asked, progress=lambda *told: steps.append(told))
        assert steps == [(step, 30.0, f"step {step}") for step in range(1, 31)]


@each_era
async def test_a_cancelled_call_is_told_and_the_peer_stays(tmp_path: Path, era: str) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--era", era)
        pid = (await about(peer))["pid"]
        written = tmp_path / "written"
        ticket, abandoned = Ticket(), trio.CancelScope()

        async def gives_up() -> None:
            with abandoned:
                await call(peer, "slow", ticket, seconds=60, path=str(written), text="gone")

        async def stays() -> None:
            assert await text(peer, "slow", seconds=0.5, path=str(written), text="kept") == "written"

        async with trio.open_nursery() as calls:
            calls.start_soon(gives_up)
            calls.start_soon(stays)
            await eventually(lambda: stage.logged("got").count("tools/call") == 3, "both calls have arrived")
            abandoned.cancel()
        assert ticket.sent == "unknown"
        await eventually(lambda: stage.logged("cancelled"), "the peer has seen the cancellation")
        assert written.read_text() == "kept\n"
        assert (await about(peer))["pid"] == pid


async def test_a_late_answer_settles_what_was_unknown(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--era", "legacy")
        await peer.connect()
        late: list[bool] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: call(peer, "slow", Ticket(late.append), seconds=0.3, honour=False))
            await eventually(lambda: "tools/call" in stage.logged("got"), "the call has arrived")
            nursery.cancel_scope.cancel()
        assert late == []
        await eventually(lambda: late, "the late answer")
        assert late == [False]


async def test_a_request_that_waits_for_a_peer_that_does_not_read_was_not_sent(tmp_path: Path) -> None:
    async with open_stage(tmp_path, peer_grace="0.2") as stage:
        peer = stage.peer()
        await peer.connect()
        tickets = [Ticket(), Ticket(), Ticket()]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: call(peer, "hold", tickets[0]))
            await eventually(lambda: "tools/call" in stage.logged("got"), "the peer holds its GIL")
            nursery.start_soon(lambda: call(peer, "echo", tickets[1], text="x" * 500_000))
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.start_soon(lambda: call(peer, "echo", tickets[2], text="y"))
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()
        assert [ticket.sent for ticket in tickets] == ["unknown", "unknown", "no"]


async def test_thirty_two_calls_cancelled_at_once_are_thirty_two_cancellations(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer()
        await peer.connect()
        written = tmp_path / "written"
        async with trio.open_nursery() as nursery:
            for _ in range(32):
                nursery.start_soon(lambda: call(peer, "slow", seconds=60, path=str(written)))
            await eventually(lambda: stage.logged("got").count("tools/call") == 32, "all have arrived")
            nursery.cancel_scope.cancel()
        await eventually(lambda: len(stage.logged("cancelled")) == 32, "all were cancelled")
        assert not written.exists()
        assert stage.logged("got").count("notifications/cancelled") == 32


async def test_a_peer_gets_a_plain_environment_and_three_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "not for peers")
    monkeypatch.setenv("LANG", "C.UTF-8")
    async with open_stage(tmp_path) as stage:
        peer = stage.peer(env={"API_KEY": "for this peer"})
        told = await about(peer)
        assert told["cwd"] == str(tmp_path)
        env = told["env"]
        assert env["API_KEY"] == "for this peer"
        assert env["LANG"] == "C.UTF-8"
        assert env["PATH"] == os.environ["PATH"]
        assert env["REPL_TRIO_BROKER"] == "off"
        assert "SOME_TOKEN" not in env
        fds = {os.readlink(f"/proc/{told['pid']}/fd/{fd}") for fd in os.listdir(f"/proc/{told['pid']}/fd")}
        assert len(fds) == 3
        assert all(fd.startswith("pipe:") for fd in fds)
