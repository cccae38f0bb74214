"""The official SDK's client drives a real server on trio, in each of its modes, over a stdio link of our own."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import psutil
import pytest
import trio
from mcp import Client, MCPError
from mcp.client._transport import TransportStreams
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.shared.message import SessionMessage

from tests.e2e.client import MODERN, server_command, wait_gone
from tests.e2e.oracle import Oracle
from tests.process.peer_stage import PROGRAM
from tests.server.test_pictures import image_of

BOUND = 60.0
"""seconds. For a whole test."""
EXIT_BOUND = 10.0
"""seconds. From the end of stdin to the exit."""

MODES = ["legacy", "auto", MODERN]
each_mode = pytest.mark.parametrize("mode", MODES)


@asynccontextmanager
async def stdio_link(folder: Path) -> AsyncIterator[TransportStreams]:
    """A server process as an SDK transport; every line of the server is judged on its way, also for its version."""
    oracle = Oracle()
    to_client, read = anyio.create_memory_object_stream[SessionMessage | Exception](100)
    write, from_client = anyio.create_memory_object_stream[SessionMessage](100)
    with (folder / "stderr").open("wb") as stderr:
        process = await trio.lowlevel.open_process(
            server_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, cwd=folder
        )
    family: list[psutil.Process] = []
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_carry_out, process, from_client, oracle)
            nursery.start_soon(_carry_in, process, to_client, oracle)
            yield read, write
            family = psutil.Process(process.pid).children(recursive=True)
            write.close()
            with trio.fail_after(EXIT_BOUND):
                assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
        read.close()
        write.close()
    assert await trio.to_thread.run_sync(wait_gone, family) == []


async def _carry_out(process: trio.Process, source: Any, oracle: Oracle) -> None:
    assert process.stdin is not None
    async with source, process.stdin:
        async for message in source:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            oracle.sent(json.loads(text))
            await process.stdin.send_all(text.encode() + b"\n")


async def _carry_in(process: trio.Process, target: Any, oracle: Oracle) -> None:
    assert process.stdout is not None
    rest = b""
    async with target, process.stdout:
        async for chunk in process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                oracle.check(line)
                message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                # A client that is already leaving no longer listens; what it misses has been judged.
                with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                    await target.send(SessionMessage(message))
    assert rest == b""


@asynccontextmanager
async def connected(folder: Path, mode: str, **callbacks: Any) -> AsyncIterator[Client]:
    with trio.fail_after(BOUND):
        async with AsyncExitStack() as stack:
            yield await stack.enter_async_context(Client(stdio_link(folder), mode=mode, **callbacks))


async def session_of(client: Client) -> dict[str, str]:
    """The arguments that name the default session, as an agent learns them: from python_health."""
    health = await structured(client, "python_health")
    return {"session_id": health["sessions"][0]["session_id"]}


async def structured(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


@each_mode
async def test_it_lists_and_calls(mode: str, tmp_path: Path) -> None:
    async with connected(tmp_path, mode) as client:
        listed = await client.list_tools()
        assert listed.tools[0].name == "execute_python"
        assert len(listed.tools) == 11
        assert all(tool.output_schema and tool.annotations for tool in listed.tools)
        session = await session_of(client)
        result = await client.call_tool("execute_python", {"code": "x = 20\nx + 1", **session})
        assert result.is_error is False
        assert result.structured_content is not None
        assert result.structured_content["value"] == 21
        (block,) = result.content
        assert isinstance(block, mcp_types.TextContent)
        assert block.text == "21"
        assert (await structured(client, "execute_python", code="x * 2", **session))["value"] == 40


@pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), ("auto", MODERN), (MODERN, MODERN)])
async def test_the_era_is_the_clients(mode: str, version: str, tmp_path: Path) -> None:
    async with connected(tmp_path, mode) as client:
        assert client.protocol_version == version
        if mode != MODERN:  # adopted without a question
            assert client.server_info is not None
            assert client.server_info.name == "repl-trio"
            assert "persistent" in (client.instructions or "")
        health = await structured(client, "python_health")
        assert health["server"]["protocol"] == version


async def test_it_answers_what_peers_ask(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": [PROGRAM, "--era", "legacy"]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"fix": entry}}))

    async def elicit(_context: object, params: mcp_types.ElicitRequestParams) -> mcp_types.ElicitResult:
        return mcp_types.ElicitResult(action="accept", content={"heard": params.message})

    async with connected(tmp_path, "legacy", elicitation_callback=elicit) as client:
        code = "mcp.call('fix', 'ask', method='elicitation/create')['structuredContent']['result']"
        said = (await structured(client, "execute_python", code=code))["value"]
        assert said == {"action": "accept", "content": {"heard": "fix asks: Name?"}}


async def test_the_handshake_era_needs_no_session(tmp_path: Path) -> None:
    async with connected(tmp_path, "legacy") as client:
        with pytest.warns(MCPDeprecationWarning):  # the SDK's word for a method of the handshake era
            await client.send_ping()
        assert (await structured(client, "execute_python", code="1 + 1"))["value"] == 2


@pytest.mark.parametrize("tool", ["execute_python", "python_start"])
async def test_the_modern_era_needs_a_session(tool: str, tmp_path: Path) -> None:
    async with connected(tmp_path, MODERN) as client:
        result = await client.call_tool(tool, {"code": "open('ran', 'w')"})
        assert result.is_error is True
        assert result.structured_content is not None
        assert result.structured_content["error_code"] == "SESSION_REQUIRED"
        assert "python_health" in result.structured_content["error"]
        assert (await structured(client, "python_health"))["sessions"][0]["generation"] == 0
    assert not (tmp_path / "ran").exists()


@each_mode
async def test_a_failed_cell_is_an_error_result(mode: str, tmp_path: Path) -> None:
    async with connected(tmp_path, mode) as client:
        session = await session_of(client)
        result = await client.call_tool("execute_python", {"code": "print('before')\n1/0", **session})
        assert result.is_error is True
        assert result.structured_content is not None
        assert result.structured_content["error_code"] == "EXCEPTION"
        assert "ZeroDivisionError" in result.structured_content["error"]
        assert result.structured_content["stdout"] == "before\n"


@each_mode
async def test_an_image_arrives_as_an_image(mode: str, tmp_path: Path) -> None:
    content = base64.b64encode(image_of("image/png")).decode()
    async with connected(tmp_path, mode) as client:
        session = await session_of(client)
        code = f"import base64; display(base64.b64decode({content!r}))"
        result = await client.call_tool("execute_python", {"code": code, **session})
        text, block = result.content
        assert isinstance(text, mcp_types.TextContent)
        assert isinstance(block, mcp_types.ImageContent)
        assert (block.mime_type, block.data) == ("image/png", content)
        assert result.structured_content is not None
        (image,) = result.structured_content["images"]
        again = await client.call_tool("artifact_read", {"artifact_id": image["artifact_id"]})
        assert again.content[1] == block


@each_mode
async def test_bad_arguments_and_tools_are_protocol_errors(mode: str, tmp_path: Path) -> None:
    async with connected(tmp_path, mode) as client:
        for tool, arguments in [("execute_python", {"code": 7}), ("no_such_tool", {}), ("python_run", {"wait": -1})]:
            with pytest.raises(MCPError) as caught:
                await client.call_tool(tool, arguments)
            assert caught.value.error.code == -32602
        assert (await structured(client, "python_health"))["server"]["name"] == "repl-trio"


@each_mode
async def test_progress_reaches_the_callback(mode: str, tmp_path: Path) -> None:
    told: list[tuple[float, str | None]] = []
    enough = trio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        told.append((progress, message))
        if len(told) >= 3:
            enough.set()
            (tmp_path / "go").touch()

    code = "import os, time\nprint('step one')\nwhile not os.path.exists('go'): time.sleep(0.01)\n'done'"
    async with connected(tmp_path, mode) as client:
        session = await session_of(client)
        result = await client.call_tool("execute_python", {"code": code, **session}, progress_callback=note)
        assert result.structured_content is not None
        assert result.structured_content["value"] == "done"
        assert enough.is_set()
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert "step one" in (told[-1][1] or "")


@each_mode
async def test_a_cancelled_call_ends_its_run_and_keeps_the_namespace(mode: str, tmp_path: Path) -> None:
    running = tmp_path / "running"
    code = f"kept = 'still here'\nopen({str(running)!r}, 'w').close()\nwhile True: pass"
    async with connected(tmp_path, mode) as client:
        session = await session_of(client)
        await structured(client, "execute_python", code="1", **session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "execute_python", {"code": code, **session})
            while (await structured(client, "python_health"))["sessions"][0][
                "active_run"
            ] is None or not running.exists():
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        # The next run waits for the clean-up of the one that is being cancelled.
        after = await structured(client, "execute_python", code="kept", **session)
        assert (after["value"], after["generation"], after["state_reset"]) == ("still here", 1, False)
        runs = (await structured(client, "python_session_inspect", **session))["runs"]
        assert sorted(run.get("error_code", "") for run in runs) == ["", "", "CANCELLED"]


@each_mode
async def test_long_work_is_started_and_polled(mode: str, tmp_path: Path) -> None:
    async with connected(tmp_path, mode) as client:
        session = await session_of(client)
        started = await structured(client, "python_start", code="import time; time.sleep(0.05); 6 * 7", **session)
        finished = await structured(client, started["poll_tool"], run_id=started["run_id"], wait=30)
        assert (finished["status"], finished["value"]) == ("finished", 42)
        cancelled = await structured(client, started["cancel_tool"], **session)
        assert cancelled["cancel_requested"] is False
