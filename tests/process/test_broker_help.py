"""What the broker tells about servers, tools, resources and prompts, and what it says of those that cannot be used."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from tests.process.broker_stage import open_project


async def test_resources_and_prompts(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.add("fix", "--era", "legacy")
        project.add("bare", "--bare")
        found = await project.ask("resources", server="fix")
        assert found == {"resources": [{"uri": "test://one", "name": "one", "extra": None}], "templates": []}
        read = await project.ask("read_resource", server="fix", uri="test://one")
        assert read["contents"][0]["text"] == "first\nsecond"
        await project.refused("PROTOCOL_ERROR", "not found", "read_resource", server="fix", uri="test://two")
        assert [one["name"] for one in await project.ask("prompts", server="fix")] == ["greet"]
        got = await project.ask("get_prompt", server="fix", name="greet", arguments={"who": "you"})
        assert got["messages"][0]["content"]["text"] == "hello you"
        assert await project.journal() == []
        words = re.escape("; mcp.list_resources('fix') tells its resources")
        await project.refused("PROTOCOL_ERROR", f"not found{words}", "read_resource", server="fix", uri="test://two")
        assert await project.ask("prompts", server="bare") == []
        words = re.escape("; mcp.list_prompts('bare') tells its prompts and their arguments")
        asked: dict[str, Any] = {"server": "bare", "name": "greet", "arguments": {}}
        await project.refused("PROTOCOL_ERROR", f"no method prompts/get{words}", "get_prompt", **asked)
        found = await project.ask("resources", server="bare")
        assert (len(found["resources"]), found["templates"]) == (1, [])


async def test_help_and_explain_say_how(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        assert '{"mcpServers":' in await project.ask("help", server=None, tool=None)
        project.add("fix", "--instructions", "Be gentle.", "--era", "legacy")
        assert "fix (not started yet)" in await project.ask("help", server=None, tool=None)
        text = await project.ask("help", server="fix", tool=None)
        assert "echo(text: str) - Say the text again." in text
        assert text.endswith("Be gentle.")
        assert "Say the text again." in await project.ask("help", server="fix", tool="echo")
        told = await project.ask("explain", server="fix", tool="echo")
        assert (told["allowed"], told["listed"], told["definition"]["name"]) == (True, True, "echo")
        assert (await project.ask("explain", server="none", tool=None))["known"] == ["fix"]
        await project.refused("UNKNOWN_SERVER", "configured: fix", "refresh", server="none")


async def test_a_server_that_cannot_be_reached_says_so_before_it_is_used(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        project.entries["far"] = {"url": "https://example.com/mcp"}
        project.write()
        words = "http servers cannot be reached in this version"
        state = await project.state("far")
        assert (state["state"], words in state["reason"]) == ("not reachable", True)
        assert words in (await project.ask("explain", server="far", tool=None))["observed"]
        await project.refused("UNSUPPORTED", f"far: {words}", server="far", tool="x", arguments={})


async def test_what_failed_says_when_it_is_tried_again_on_a_line_of_its_own(tmp_path: Path) -> None:
    async with open_project(tmp_path) as project:
        talk = "import sys; print('x' * 3_000, file=sys.stderr); print('one   \\ntwo', file=sys.stderr); sys.exit(3)"
        project.entries["bad"] = {"command": sys.executable, "args": ["-c", talk]}
        project.write()
        ends = "exit status 3 before it was connected. Its stderr ends with:\none\ntwo"
        await project.refused("CONNECT_FAILED", f"{ends}$", "tools", server="bad")
        await project.refused("CONNECT_FAILED", f"{ends}\nIt is not tried again for", "tools", server="bad")
