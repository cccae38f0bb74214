"""Peers that do not start, die, flood, hang or refuse to end: errors say what happened, and nothing is left."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from repl_trio.broker.config.entries import Stdio
from repl_trio.broker.peer.connection import Ticket
from repl_trio.broker.peer.peer import Peer
from repl_trio.errors import BrokerError
from repl_trio.machines import peer as table
from tests.process.peer_stage import about, alive, call, eventually, open_stage, text


async def refused(peer: Peer, words: str) -> BrokerError:
    """The error of a connect that must fail and says so in these words."""
    with pytest.raises(BrokerError, match=words) as got:
        await peer.connect()
    assert (got.value.code, got.value.sent, got.value.server) == ("CONNECT_FAILED", "no", "fixture")
    assert peer.machine.state == table.FAILED
    return got.value


async def test_one_connect_serves_everybody_who_asks_meanwhile(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer()
        assert peer.seen.reason == "never connected"
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(peer.connect)
            for _ in range(3):
                with trio.move_on_after(0.001):
                    await peer.connect()  # one that gives up takes nothing from the others
        await peer.connect()
        assert len(stage.logged("started")) == 1


async def test_a_peer_that_ends_at_once_is_quoted_without_its_secrets(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.ground.redaction.add(["SECRET123"])
        peer = stage.peer("--stderr", "boom: token=SECRET123", "--exit", "3", env={"TOKEN": "SECRET123"})
        error = await refused(
            peer, r"(?s)fixture ended with exit status 3 before it was connected.*boom: token=\[redact"
        )
        assert "SECRET123" not in error.message
        assert "SECRET123" not in peer.seen.reason


async def test_a_failed_connect_is_remembered_and_can_be_forgotten(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--strict", "--exit", "3", mode="legacy")
        await refused(peer, "exit status 3")
        await refused(peer, r"(?s)exit status 3.*\nIt is not tried again for \d+ s; after mcp.refresh")
        assert len(stage.logged("started")) == 1
        peer.forget_failure()
        await refused(peer, "exit status 3")
        assert len(stage.logged("started")) == 2


async def test_the_memory_of_a_failure_fades(tmp_path: Path) -> None:
    async with open_stage(tmp_path, peer_retry="0.01") as stage:
        peer = stage.peer("--exit", "3", mode="legacy")
        await refused(peer, "exit status 3")
        await trio.sleep(0.02)
        await refused(peer, "exit status 3")
        assert len(stage.logged("started")) == 2


@pytest.mark.parametrize("option", ["--silent", "--deaf"])
async def test_a_peer_that_never_answers_fails_at_the_deadline(tmp_path: Path, option: str) -> None:
    async with open_stage(tmp_path, peer_probe="0.1") as stage:
        slow, good = stage.peer(option, "--stderr", "still loading", patience=0.7), stage.peer()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, slow, r"(?s)did not finish its handshake \(connect\) in 0.7 s.*still loading")
            assert await text(good, "echo", text="meanwhile") == "meanwhile"


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        entry = stage.entry()
        peer = stage.of(replace(entry, target=Stdio("no-such-program-here", (), (), str(tmp_path))))
        await refused(peer, "no-such-program-here")


async def test_a_program_that_cannot_be_executed_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF no program")
    broken.chmod(0o755)
    async with open_stage(tmp_path) as stage:
        peer = stage.of(replace(stage.entry(), target=Stdio(str(broken), (), (), str(tmp_path))))
        await refused(peer, "fixture could not be started")


async def test_junk_without_an_end_is_refused_and_quoted(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--junk", "10000000")
        await refused(peer, r"fixture prints what is no MCP to its stdout.*'junk junk junk")


async def test_stderr_is_drained_and_its_end_is_kept(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--stderr-flood", "5000000")
        assert await text(peer, "flood", size=5_000_000) == "flooded"
        with pytest.raises(BrokerError, match=r"(?s)Its stderr ends with:\n.*yyy\nlast words$"):
            await call(peer, "die", words="last words")


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_death_in_the_middle_of_a_call_is_unknown_and_the_next_use_connects(tmp_path: Path, era: str) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--era", era)
        first = (await about(peer))["pid"]
        ticket = Ticket()
        with pytest.raises(BrokerError, match=r"(?s)fixture ended with exit status 7. .*ouch") as got:
            await call(peer, "die", ticket, code=7, words="ouch")
        assert (got.value.code, got.value.sent, ticket.sent) == ("PEER_GONE", "unknown", "unknown")
        assert (await about(peer))["pid"] != first
        assert stage.logged("got").count("tools/call") == 3  # it was not sent again


async def test_every_caller_of_a_peer_that_dies_is_told(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer()
        await peer.connect()
        ends: list[str] = []

        async def one(tool: str) -> None:
            with pytest.raises(BrokerError) as got:
                await call(peer, tool, seconds=60)
            ends.append(f"{got.value.code} {got.value.sent}")

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one, "slow")
            await eventually(lambda: stage.logged("got").count("tools/call") == 5, "all have arrived")
            nursery.start_soon(one, "die")
        assert ends == ["PEER_GONE unknown"] * 6


async def test_a_peer_that_is_killed_is_seen_to_be_gone_without_being_used(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer()
        pid = (await about(peer))["pid"]
        assert peer.machine.state == table.READY
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: peer.machine.state == table.FAILED, "its end is seen")
        assert "was ended by SIGKILL" in peer.seen.reason
        assert len(stage.logged("started")) == 1
        assert (await about(peer))["pid"] != pid


async def test_a_dead_peer_is_seen_although_its_child_holds_the_pipes(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--children", "2")
        with pytest.raises(BrokerError, match="exit status 3"):
            await call(peer, "die")
        await peer.stop()
        assert alive(str(stage.log)) == []


async def test_an_orderly_peer_ends_by_itself(tmp_path: Path) -> None:
    async with open_stage(tmp_path, peer_grace="50") as stage:
        peer = stage.peer()
        await peer.connect()
        await peer.stop()  # the end of its stdin is enough
        assert (peer.machine.state, alive(str(stage.log))) == (table.CLOSED, [])
        with pytest.raises(BrokerError, match="is being stopped"):
            await peer.connect()


async def test_a_peer_that_waits_for_a_signal_gets_one(tmp_path: Path) -> None:
    async with open_stage(tmp_path, peer_grace="0.1", peer_kill="50") as stage:
        peer = stage.peer("--graceful")
        await peer.connect()
        await peer.stop()
        assert stage.logged("terminated") == [True]


@pytest.mark.parametrize("moment", ["ready", "connecting", "idle", "failed"])
async def test_a_stubborn_peer_is_ended_from_every_state(tmp_path: Path, moment: str) -> None:
    async with open_stage(tmp_path, peer_grace="0.2", peer_kill="0.2", peer_probe="20") as stage:
        peer = stage.peer("--stubborn", "--children", "2", *(["--silent"] if moment == "connecting" else []))
        async with trio.open_nursery() as nursery:
            if moment == "connecting":
                nursery.start_soon(failing_connect, peer)
                await eventually(lambda: stage.logged("got"), "it has been asked")
            elif moment != "idle":
                await peer.connect()
            if moment == "failed":
                os.kill((await about(peer))["pid"], signal.SIGKILL)
                await eventually(lambda: peer.machine.state == table.FAILED, "its end is seen")
            await peer.stop()
        assert (peer.machine.state, alive(str(stage.log))) == (table.CLOSED, [])


async def failing_connect(peer: Peer) -> None:
    with pytest.raises(BrokerError, match="was stopped before it was connected"):
        await peer.connect()


async def test_a_stop_tells_those_who_wait(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer()
        await peer.connect()
        async with trio.open_nursery() as nursery:

            async def waits() -> None:
                with pytest.raises(BrokerError, match="fixture is being stopped") as got:
                    await call(peer, "slow", seconds=60)
                assert (got.value.code, got.value.sent) == ("PEER_GONE", "unknown")

            nursery.start_soon(waits)
            await eventually(lambda: "tools/call" in stage.logged("got"), "the call has arrived")
            await peer.stop()


WRAPPER = 'exec 3<&0; "$0" "$@" <&3 & wait'


async def test_nothing_is_left_of_a_peer_behind_a_wrapper(tmp_path: Path) -> None:
    async with open_stage(tmp_path, peer_grace="0.3", peer_kill="0.3") as stage:
        for options in ((), ("--stubborn",), ("--children", "2")):
            plain = stage.entry(*options)
            assert isinstance(plain.target, Stdio)
            wrapped = Stdio("/bin/sh", ("-c", WRAPPER, plain.target.command, *plain.target.args), (), str(tmp_path))
            peer = stage.of(replace(plain, target=wrapped))
            assert await text(peer, "echo", text="through") == "through"
            await peer.stop()
            assert alive(str(stage.log)) == []


async def test_a_cancelled_owner_leaves_nothing(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        for moments in range(12):
            async with trio.open_nursery() as nursery:
                stage.nursery, kept = nursery, stage.nursery
                peer = stage.peer("--stubborn", "--children", "1")
                stage.made.remove(peer)
                stage.nursery = kept
                with trio.move_on_after(0.01 * moments):
                    await peer.connect()
                nursery.cancel_scope.cancel()
            assert alive(str(stage.log)) == []


async def test_a_hurried_stop_takes_the_time_of_workers(tmp_path: Path) -> None:
    limits = {"peer_grace": "500", "peer_kill": "500", "shutdown_term": "0.1", "shutdown_kill": "0.2"}
    async with open_stage(tmp_path, **limits) as stage:
        peer = stage.peer("--stubborn")
        await peer.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.stop)
            await trio.testing.wait_all_tasks_blocked(0.01)
            peer.hurry()
        assert alive(str(stage.log)) == []


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_catalogue_is_read_whole_and_dropped_when_it_changes(tmp_path: Path, era: str) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--era", era, "--pages", "3", "--ttl", "60000")
        known = await peer.catalogue()
        assert {"echo", "blocks", "evil"} <= set(known.tools)
        assert stage.logged("got").count("tools/list") == 3
        assert await peer.catalogue() is known
        if era == "modern":
            await eventually(lambda: "subscriptions/listen" in stage.logged("got"), "it is asked for changes")
        await call(peer, "change")
        await eventually(lambda: not known.fresh, "the change is told")
        assert await peer.catalogue() is not known
        assert stage.logged("got").count("tools/list") == 6


@pytest.mark.parametrize(("believed", "listings"), [(60.0, 1), (0.0, 2)])
async def test_a_listing_that_is_stale_at_once_is_believed_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, believed: float, listings: int
) -> None:
    monkeypatch.setattr("repl_trio.broker.peer.peer._FLOOR", believed)
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--era", "legacy", "--ttl", "0")
        for _ in range(2):
            await peer.catalogue()
        assert stage.logged("got").count("tools/list") == listings
        await call(peer, "change")
        await eventually(lambda: peer._listed_at < 0, "the change is told")
        await peer.catalogue()
        assert stage.logged("got").count("tools/list") == listings + 1


@pytest.mark.parametrize(
    ("cursor", "words"),
    [
        ("repeat", "repeats a cursor"),
        ("endless", "pages"),
        ("error", "page 2 of the tools failed.*second page is broken"),
    ],
)
async def test_a_catalogue_without_an_end_is_an_error(tmp_path: Path, cursor: str, words: str) -> None:
    async with open_stage(tmp_path) as stage:
        peer = stage.peer("--pages", "2", "--cursor", cursor)
        with pytest.raises(BrokerError, match=f"(?s){words}") as got:
            await peer.catalogue()
        assert got.value.code == "CATALOGUE_FAULT"
        assert await text(peer, "echo", text="on") == "on"


async def test_a_list_that_does_not_come_is_waited_for_with_a_bound(tmp_path: Path) -> None:
    async with open_stage(tmp_path, peer_list="0.3") as stage:
        peer = stage.peer("--cursor", "silent")
        with pytest.raises(
            BrokerError, match=r"fixture did not list its tools \(tools/list\) in 0.3 s \(limit peer_list"
        ):
            await peer.catalogue()
        assert await text(peer, "echo", text="on") == "on"


@pytest.mark.parametrize(("stray", "fine"), [(10_000, True), (10_001, False)])
async def test_stray_output_is_borne_up_to_the_limit(tmp_path: Path, stray: int, *, fine: bool) -> None:
    async with open_stage(tmp_path, peer_junk_bytes="10000") as stage:
        peer = stage.peer()
        saying = "x" * (stray - 1)  # and its newline
        if fine:
            for _ in range(3):
                assert await text(peer, "say", line=saying) == "said"
            return
        with pytest.raises(BrokerError, match=r"prints what is no MCP to its stdout \(limit peer_junk_bytes, 10000\)"):
            await text(peer, "say", line=saying)


async def test_a_peer_that_reads_nothing_more_is_left_behind(tmp_path: Path) -> None:
    async with open_stage(tmp_path, peer_unread_bytes="300000", peer_grace="0.1") as stage:
        peer = stage.peer()
        await peer.connect()
        async with trio.open_nursery() as nursery:

            async def waits(tool: str, words: str) -> None:
                with pytest.raises(BrokerError, match="fixture does not read its stdin any more"):
                    await call(peer, tool, text=words)

            nursery.start_soon(waits, "hold", "")
            await eventually(lambda: "tools/call" in stage.logged("got"), "it holds its GIL")
            nursery.start_soon(waits, "echo", "x" * 500_000)
        assert peer.machine.state == table.FAILED


async def test_a_malformed_definition_is_named_and_the_others_stay(tmp_path: Path) -> None:
    definitions = tmp_path / "tools.json"
    definitions.write_text(
        '[{"name":"ok"},{"name":5},{"inputSchema":{}},'
        '{"name":"arr","inputSchema":{"type":"object","properties":{"required":["x"]}}},'
        '{"name":"long","description":"' + "d" * 900_000 + '"}]'
    )
    async with open_stage(tmp_path) as stage:
        known = await stage.peer("--tools", str(definitions)).catalogue()
        assert list(known.tools) == ["ok", "arr", "long"]
        assert len(known.invalid) == 2
        definitions.write_text('[{"name":"huge","description":"' + "d" * 2_000_000 + '"}]')
        with pytest.raises(BrokerError, match="catalogue_bytes"):
            await stage.peer("--tools", str(definitions)).catalogue()
