"""Peers that send what is made to hurt: it costs them a message or their connection, and nobody else anything."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from repl_trio.broker.calls import find_tool, relay
from repl_trio.broker.peer.streams import Inbound
from repl_trio.broker.redaction import MARK, Redaction
from repl_trio.broker.tools.catalogue import Catalogue, Tool
from repl_trio.errors import BrokerError
from repl_trio.values import Origin
from tests.process.peer_stage import Stage, call, open_stage, text

HUGE = str(10**400)
ERAS = ("legacy", "modern")


async def survives(stage: Stage, era: str, tool: str, line: str) -> list[str]:
    """Have a peer write the line in the midst of a call; the connection must stay. What it told of its progress."""
    peer = stage.peer("--era", era)
    connection = await peer.connect()
    told: list[str] = []
    progress = relay(Origin("r1", "s1", "/", told.append), "fix", tool)
    token = str(next(connection._ids) + 1)
    params: dict[str, object] = {"name": tool, "arguments": {"line": line.replace("TOKEN", token)}}
    if tool == "say":
        assert "content" in await connection.ask("tools/call", params, None, progress)
    else:
        with pytest.raises(BrokerError) as got:
            await connection.ask("tools/call", params, None, progress)
        assert (got.value.code, got.value.sent) == ("PROTOCOL_ERROR", "done")
        got.value.message.encode()
    assert await text(peer, "echo", text="x") == "x"
    assert await peer.connect() is connection
    return told


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("amounts", "told"),
    [
        (f'"progress":{HUGE}', []),
        (f'"progress":1,"total":{HUGE}', ["fix.say: 1"]),
        ('"progress":true', []),
        ('"progress":2,"message":"\\ud800"', ["fix.say: 2 \\ud800"]),
        ('"progress":2,"message":[1]', ["fix.say: 2"]),
        ('"progress":2,"message":"a s3cr3t-value"', [f"fix.say: 2 a {MARK}"]),
    ],
)
async def test_progress_in_any_form(tmp_path: Path, era: str, amounts: str, told: list[str]) -> None:
    line = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":TOKEN,' + amounts + "}}"
    async with open_stage(tmp_path) as stage:
        stage.ground.redaction.add(["s3cr3t-value"])
        assert await survives(stage, era, "say", line) == told


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "members",
    [
        '"id":"\\ud800","method":"roots/list"',
        f'"id":{HUGE},"method":"roots/list"',
        '"id":5,"method":"\\ud800"',
        '"id":5,"method":"roots/list","params":{"_meta":5}',
        '"id":"\\ud800","error":{"code":1,"message":"x"}',
        '"id":1,"result":{}',
        '"method":"notifications/cancelled","params":{"requestId":[1]}',
        '"method":"notifications/cancelled","params":{"requestId":TOKEN}',
        '"method":"notifications/progress","params":{"progressToken":[1],"progress":1}',
        '"method":"notifications/message","params":{"level":7}',
    ],
)
async def test_messages_that_no_model_takes(tmp_path: Path, era: str, members: str) -> None:
    async with open_stage(tmp_path) as stage:
        await survives(stage, era, "say", '{"jsonrpc":"2.0",' + members + "}")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "error",
    [f'{{"code":{HUGE},"message":"x"}}', '{"code":1,"message":"\\ud800"}', '{"code":1,"message":"x","data":"\\ud800"}'],
)
async def test_errors_that_no_model_takes(tmp_path: Path, era: str, error: str) -> None:
    async with open_stage(tmp_path) as stage:
        await survives(stage, era, "answer", f'{{"jsonrpc":"2.0","id":ID,"error":{error}}}')


async def test_a_batch_without_an_end_is_junk(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        begun = time.process_time()
        await survives(stage, "legacy", "say", f"[{','.join(['0'] * 450_000)}]")
        assert time.process_time() - begun < 10  # many minutes, if the line were copied for each


async def test_requests_by_the_thousand_are_counted_by_a_few_names(tmp_path: Path) -> None:
    lines = [f'{{"jsonrpc":"2.0","id":{n},"method":"m{n}{"m" * 1_000}"}}' for n in range(500)]
    async with open_stage(tmp_path) as stage:
        peer = stage.peer()
        await call(peer, "say", line="\n".join(lines))
        asked = (await peer.connect()).asked()
        assert 0 < len(asked) <= 50
        assert max(map(len, asked)) <= 100


async def test_a_long_error_with_many_secrets_is_cut_before_it_is_searched(tmp_path: Path) -> None:
    secrets = [f"secret-number-{number:03}" for number in range(100)]
    begun = time.process_time()
    Redaction(secrets).head("secret-number-" * 3_000_000, 1_000)
    assert time.process_time() - begun < 2  # half a minute, if all of it were searched for each form
    async with open_stage(tmp_path, peer_message_bytes="4000000") as stage:
        stage.ground.redaction.add(secrets)
        peer = stage.peer("--era", "legacy")
        await peer.connect()
        message = "no: secret-number-007 " + "secret-number-" * 200_000
        with pytest.raises(BrokerError) as got:
            await call(peer, "answer", line=f'{{"jsonrpc":"2.0","id":ID,"error":{{"code":1,"message":"{message}"}}}}')
        assert f"no: {MARK} secret" in got.value.message
        assert len(got.value.message) < 1_200


@pytest.mark.parametrize("size", range(28, 44))
def test_a_secret_across_the_cut_of_a_message_is_one_mark(size: int) -> None:
    shown = Redaction(["secret-number-007"]).head("it is secret-number-007 and secret-number-007 " + "x" * 100, size)
    assert "secret" not in shown.replace(MARK, "")
    assert shown.count(MARK) == 2 if size > 28 else shown.count(MARK) == 1


async def test_a_bug_over_a_message_costs_its_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def buggy(self: Inbound, params: object) -> None:
        raise ZeroDivisionError("planted beside a s3cr3t-value")

    async with open_stage(tmp_path) as stage:
        stage.ground.redaction.add(["s3cr3t-value"])
        peer = stage.peer()
        await peer.connect()
        monkeypatch.setattr(Inbound, "_tell", buggy)
        line = '{"jsonrpc":"2.0","method":"notifications/progress"}'
        with caplog.at_level(logging.ERROR), pytest.raises(BrokerError, match="has a bug") as got:
            await call(peer, "say", line=line)
        assert (got.value.code, got.value.sent) == ("PEER_GONE", "unknown")
        assert f"planted beside a {MARK}" in caplog.text
        monkeypatch.undo()
        assert await text(peer, "echo", text="x") == "x"


async def test_a_bug_beside_a_connection_leaves_a_peer_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer()
        connection = await peer.connect()

        def buggy() -> None:
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(connection.link, "said", buggy)
        connection.link.lose("is gone")
        await peer._over.wait()
        with pytest.raises(BrokerError, match="bug in repl-trio"):
            await peer.connect()
        peer.forget_failure()
        assert await text(peer, "echo", text="x") == "x"


async def test_a_name_that_is_not_there_is_compared_with_few() -> None:
    def name(number: int) -> str:
        return "".join("abcde"[number // 5**place % 5] for place in range(7)) * 11

    tools = {name(number): Tool(name(number), {}) for number in range(10_000)}
    begun = time.process_time()
    for asked in ("edcba" * 15, "edcba" * 100_000):
        with pytest.raises(BrokerError, match="has no tool"):
            find_tool(Catalogue(tools, (), 15.0), "fix", asked)
    assert time.process_time() - begun < 2
    with pytest.raises(BrokerError, match="did you mean echo"):
        find_tool(Catalogue({"echo": Tool("echo", {})}, (), 15.0), "fix", "ecko")
