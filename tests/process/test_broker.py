"""The broker over real peers and a real registry file: what is refused, sent, recorded and told, in which order."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import trio
import trio.testing

from tests.process.broker_stage import Project, open_project
from tests.process.peer_stage import HANG, PROGRAM, alive, eventually


async def test_a_call_goes_through_and_is_recorded(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.add("fix", "--era", "legacy")
        assert await project.call("fix", "echo", text="hi") == {"content": [{"type": "text", "text": "hi"}]}
        assert (await project.call("fix", "fail"))["structuredContent"] == {"code": 7}
        await project.refused("PROTOCOL_ERROR", "no such thing today", server="fix", tool="refuse", arguments={})
        assert await project.journal() == [("echo", "completed"), ("fail", "tool_error"), ("refuse", "tool_error")]
        record = (await project.ask("journal"))[0]
        assert (record["run_id"], record["session_id"], record["project"]) == ("r1", "s1", str(tmp_path))
        assert "hi" not in json.dumps(record)


async def test_what_is_not_granted_starts_nothing(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.add("fix", allowedTools=["echo"])
        project.add("off", disabled=True)
        project.add("broken", wrong_field=1)
        one: dict[str, Any] = {"arguments": {}}
        await project.refused("NOT_GRANTED", "allowed: echo", server="fix", tool="blocks", **one)
        await project.refused("NOT_GRANTED", "disabled", server="off", tool="echo", **one)
        await project.refused("CONFIG_FAULT", "wrong_field", server="broken", tool="echo", **one)
        await project.refused("UNKNOWN_SERVER", "configured: broken, fix, off", server="none", tool="echo", **one)
        await project.refused("BAD_ARGUMENTS", "no object", server="fix", tool="echo", arguments=[])
        await project.refused("BAD_ARGUMENTS", "timeout", server="fix", tool="echo", timeout=0, **one)
        await project.refused("BAD_ARGUMENTS", "timeout", server="fix", tool="echo", timeout="1", **one)
        for op in ("servers", "help", "search", "explain", "refresh", "journal"):
            await project.ask(op, server="fix" if op == "explain" else None, words="echo")
        assert (await project.state("fix"))["state"] == "not started yet"
        assert (await project.state("broken"))["state"] == "refused"
        assert [project.logged("fix", "started"), await project.journal()] == [[], []]


async def test_what_does_not_fit_the_tool_is_not_sent(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.add("fix")
        await project.refused("UNKNOWN_TOOL", "did you mean echo", server="fix", tool="ecko", arguments={})
        await project.refused("BAD_ARGUMENTS", "/text", server="fix", tool="echo", arguments={"text": 5})
        # A cell that catches these goes on.
        assert (await project.call("fix", "echo", text="good"))["content"][0]["text"] == "good"
        assert project.logged("fix", "got").count("tools/call") == 1
        assert await project.journal() == [("echo", "completed")]


async def test_a_time_limit_names_what_it_ended_and_whether_it_was_sent(tmp_path: Path) -> None:
    async with open_project(tmp_path, peer_probe="0.1") as project:
        project.add("mute", "--silent")
        project.add("fix", "--era", "legacy")
        one: dict[str, Any] = {"tool": "slow", "timeout": 0.5}
        error = await project.refused(
            "CALL_TIMEOUT", "slow of mute: .*0.5 s was over during connect", server="mute", arguments={}, **one
        )
        assert error.sent == "no"
        await project.call("fix", "echo", text="everything is loaded")
        written = tmp_path / "written"
        waits = {"seconds": 1, "path": str(written), "honour": False}
        error = await project.refused("CALL_TIMEOUT", "over during call", server="fix", arguments=waits, **one)
        assert error.sent == "unknown"
        assert await project.journal() == [("echo", "completed"), ("slow", "outcome_unknown")]
        await eventually(lambda: written.exists() and written.read_text(), "the peer acts all the same")
        assert written.read_text() == "line\n"
        # Its answer comes late and settles the record.
        await project.until(lambda: settled(project))


async def settled(project: Project) -> bool:
    return await project.journal() == [("echo", "completed"), ("slow", "completed")]


async def test_a_cancelled_call_is_unknown_in_the_journal(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.add("fix")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: project.call("fix", "slow", seconds=60))
            await eventually(lambda: "tools/call" in project.logged("fix", "got"), "it has arrived")
            nursery.cancel_scope.cancel()
        assert await project.journal() == [("slow", "outcome_unknown")]
        await eventually(lambda: project.logged("fix", "cancelled"), "the peer is told")


async def test_a_call_that_never_left_has_no_record(tmp_path: Path) -> None:
    async with open_project(tmp_path, shutdown_term="0.1") as project:
        project.add("fix")
        await project.call("fix", "echo", text="everything is loaded")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: project.call("fix", "hold"))
            await eventually(lambda: project.logged("fix", "got").count("tools/call") == 2, "the peer holds its GIL")
            nursery.start_soon(lambda: project.call("fix", "echo", text="x" * 500_000))
            await trio.testing.wait_all_tasks_blocked(0.05)
            given: dict[str, Any] = {"arguments": {"text": "y"}, "timeout": 0.2}
            error = await project.refused("CALL_TIMEOUT", "during call", server="fix", tool="echo", **given)
            assert error.sent == "no"
            nursery.cancel_scope.cancel()
        assert [status for _, status in await project.journal()] == ["completed"] + ["outcome_unknown"] * 2


async def test_a_peer_that_drops_a_call_is_not_asked_twice(tmp_path: Path) -> None:
    definitions = tmp_path / "tools.json"
    hints = {"idempotentHint": True, "readOnlyHint": True}
    definitions.write_text(json.dumps([{"name": "die", "inputSchema": {"type": "object"}, "annotations": hints}]))
    async with open_project(tmp_path) as project:
        project.add("fix", "--tools", str(definitions))
        error = await project.refused("PEER_GONE", "exit status 3", server="fix", tool="die", arguments={})
        assert (error.sent, error.server, error.tool) == ("unknown", "fix", "die")
        assert project.logged("fix", "got").count("tools/call") == 1
        assert await project.journal() == [("die", "outcome_unknown")]


def wait_dead(pid: int) -> None:
    """Return when the kernel has ended a process; nothing else of this one runs meanwhile."""
    deadline = time.monotonic() + HANG
    while any(one.pid == pid for one in alive(PROGRAM)):
        assert time.monotonic() < deadline


async def test_a_peer_that_died_unnoticed_is_replaced_before_the_call_is_sent(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.add("fix")
        for _ in range(5):
            assert (await project.call("fix", "echo", text="x"))["content"]
            # No step of the loop between its death and the next call: nobody can have seen it.
            os.kill(project.pid("fix"), signal.SIGKILL)
            wait_dead(project.pid("fix"))
        assert {status for _, status in await project.journal()} == {"completed"}


async def test_a_dead_peer_is_reported_and_health_does_not_start_it(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.add("fix")
        await project.call("fix", "echo", text="x")
        assert (await project.state("fix"))["state"] == "ready"
        os.kill(project.pid("fix"), signal.SIGKILL)
        await project.until(lambda: project.lost("fix"))
        health: Any = project.reach.health(str(tmp_path))
        assert health["servers"][0]["state"] == "failed"
        assert "SIGKILL" in health["servers"][0]["reason"]
        assert "SIGKILL" in (await project.ask("explain", server="fix", tool=None))["observed"]
        assert len(project.logged("fix", "started")) == 1
        await project.call("fix", "echo", text="x")
        assert (await project.state("fix"))["state"] == "ready"


async def test_a_changed_entry_ends_its_peer(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.add("fix")
        project.add("kept")
        await project.call("fix", "echo", text="x")
        await project.call("kept", "echo", text="x")
        first, kept = project.pid("fix"), project.pid("kept")
        project.add("fix", env={"NEW": "1"})
        await project.ask("refresh", server=None)
        await eventually(lambda: not any(one.pid == first for one in alive(str(tmp_path))), "the old one has ended")
        told = (await project.call("fix", "whoami"))["structuredContent"]
        assert told["env"]["NEW"] == "1"
        assert (await project.call("kept", "whoami"))["structuredContent"]["pid"] == kept
        del project.entries["kept"]
        project.write()
        await project.refused("UNKNOWN_SERVER", "kept", server="kept", tool="echo", arguments={})
        await eventually(lambda: not any(one.pid == kept for one in alive(str(tmp_path))), "it has ended")


async def test_equal_entries_share_a_peer_and_keep_their_grants(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.add("one")
        project.entries["two"] = {**project.entries["one"], "allowedTools": ["whoami"]}
        project.write()
        pids = {(await project.call(name, "whoami"))["structuredContent"]["pid"] for name in ("one", "two")}
        assert len(pids) == 1
        await project.refused("NOT_GRANTED", "allowlist", server="two", tool="echo", arguments={"text": "x"})
        assert [tool["name"] for tool in (await project.ask("tools", server="two"))["tools"]] == ["whoami"]
        found = await project.ask("search", words="echo")
        assert ({match["server"] for match in found["matches"]}, found["note"]) == ({"one"}, None)
        project.add("new")
        assert "not used yet: new;" in (await project.ask("search", words="echo"))["note"]
        told = "not granted (allowedTools, disabledTools): echo, blocks, "
        assert told in (await project.ask("tools", server="two"))["note"]
        assert told in await project.ask("help", server="two", tool=None)


async def test_no_more_peers_than_the_limit(tmp_path: Path) -> None:
    async with open_project(tmp_path, peers="2") as project:
        for name in ("one", "two", "three"):
            project.add(name)
        for name in ("one", "two"):
            await project.call(name, "echo", text="x")
        words = "2 servers are connected and the limit `peers` is 2; three was not started"
        await project.refused("LIMIT_REACHED", words, server="three", tool="echo", arguments={"text": "x"})
        await project.call("one", "echo", text="x")
        os.kill(project.pid("two"), signal.SIGKILL)
        await project.until(lambda: project.lost("two"))
        await project.call("three", "echo", text="x")


async def test_no_more_requests_at_once_than_the_limit(tmp_path: Path) -> None:
    async with open_project(tmp_path, peer_calls="2") as project:
        project.add("fix")
        await project.ask("tools", server="fix")
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(lambda: project.call("fix", "slow", seconds=60))
            await eventually(lambda: project.logged("fix", "got").count("tools/call") == 2, "two have arrived")
            error = await project.refused(
                "CALL_TIMEOUT", "wait for a free place", server="fix", tool="echo", arguments={"text": "x"}, timeout=0.2
            )
            assert error.sent == "no"
            assert project.logged("fix", "got").count("tools/call") == 2
            nursery.cancel_scope.cancel()
        await project.call("fix", "echo", text="x")
        assert [status for _, status in await project.journal()] == ["outcome_unknown"] * 2 + ["completed"]


async def test_progress_reaches_the_run(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.add("fix")
        await project.call("fix", "progress", steps=2)
        assert project.lines == ["fix.progress: 1/2 step 1", "fix.progress: 2/2 step 2"]


async def test_a_pattern_without_an_end_ends(tmp_path: Path) -> None:
    async with open_project(tmp_path, judge_bound="0.5") as project:
        project.add("fix")
        given = {"pattern": "a" * 40 + "!"}
        await project.refused("LIMIT_REACHED", "judge_bound", server="fix", tool="evil", arguments=given)
        assert (await project.call("fix", "evil", pattern="aaa"))["content"]


async def test_projects_do_not_share_peers(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    async with open_project(tmp_path) as project:
        pids = []
        for folder in folders:
            folder.mkdir()
            other = Project(folder)
            other.reach = project.reach
            other.add("fix")
            pids.append((await other.call("fix", "whoami"))["structuredContent"]["pid"])
            assert (await other.call("fix", "whoami"))["structuredContent"]["cwd"] == str(folder)
        assert len(set(pids)) == 2
        await project.refused("UNKNOWN_SERVER", "no server is configured", server="fix", tool="echo", arguments={})


async def test_a_durable_journal_knows_a_call_before_it_is_sent(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.sqlite")
    async with open_project(tmp_path, journal=path) as project:
        project.add("fix", "--era", "legacy")
        await project.call("fix", "echo", text="x")
        await project.refused("PEER_GONE", "", server="fix", tool="die", arguments={})
    async with open_project(tmp_path, journal=path) as project:
        assert await project.journal() == [("echo", "completed"), ("die", "outcome_unknown")]
    async with open_project(tmp_path, journal=str(tmp_path)) as project:
        error = await project.refused("JOURNAL_UNAVAILABLE", "", server="fix", tool="echo", arguments={"text": "x"})
        assert error.sent == "no"
        assert project.logged("fix", "got").count("tools/call") == 2
