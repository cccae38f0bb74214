"""What the broker says when something goes wrong, to the cell and to the log: without the configuration's secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.process.broker_stage import open_project


async def test_secrets_of_the_configuration_are_in_no_error(tmp_path: Path) -> None:
    secret = "s3cr3t-value-of-a-token"
    async with open_project(tmp_path) as project:
        options = ("--stderr", f"starting with {secret}", "--before", f"banner {secret}")
        project.add("dies", *options, "--exit", "2", env={"TOKEN": secret})
        project.add("fix", *options, env={"TOKEN": secret})
        told = [
            (await project.refused("CONNECT_FAILED", "exit status 2", server="dies", tool="x", arguments={})).message
        ]
        told.append((await project.refused("PEER_GONE", "", server="fix", tool="die", arguments={})).message)
        for op in ("servers", "help", "journal"):
            told.append(json.dumps(await project.ask(op)))
        told += [json.dumps(await project.ask("explain", server=name)) for name in ("dies", "fix")]
        told.append(json.dumps(project.reach.health(str(tmp_path))))
        assert [words for words in told if secret in words] == []
        assert "[redacted]" in told[0]


async def test_what_a_peer_puts_into_its_catalogue_makes_no_secret_known_by_errors(tmp_path: Path) -> None:
    secret = "s3cr3t-value-of-a-token"
    schema = {"type": "object", "properties": {"a": {"enum": [secret]}}}
    tools = [{"name": f"tool-{secret}", "inputSchema": {}}, {"name": "one", "inputSchema": schema}]
    for name, listed in (("fix", tools), ("twice", [*tools, tools[0]])):
        (tmp_path / name).write_text(json.dumps(listed))
    async with open_project(tmp_path) as project:
        for name in ("fix", "twice"):
            project.add(name, "--tools", str(tmp_path / name), env={"TOKEN": secret})
        given: dict[str, Any] = {"arguments": {"a": 1}}
        told = [
            await project.refused("UNKNOWN_TOOL", "did you mean", server="fix", tool="tool-s3cr3t", **given),
            await project.refused("BAD_ARGUMENTS", "must be one of", server="fix", tool="one", **given),
            await project.refused("CATALOGUE_FAULT", "is listed twice", server="twice", tool="one", **given),
        ]
        for error in told:
            assert secret not in error.message
            assert "[redacted]" in error.message


async def test_arguments_that_a_broken_schema_cannot_judge_are_sent_and_it_is_told(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"required": ["text"]}}
    (tmp_path / "tools").write_text(json.dumps([{"name": "echo", "inputSchema": schema}]))
    async with open_project(tmp_path) as project:
        project.add("fix", "--tools", str(tmp_path / "tools"))
        assert (await project.call("fix", "echo", text="x"))["content"]
        (line,) = project.lines
        assert line.startswith("fix.echo: the arguments were not checked, because the schema of echo is broken: ")


async def test_a_bug_in_an_operation_is_told_and_its_words_hold_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "s3cr3t-value-of-a-token"

    async def bug(*_given: object) -> object:
        raise KeyError(f"no {secret}")

    monkeypatch.setattr("repl_trio.broker.broker.Broker.prompts", bug)
    async with open_project(tmp_path) as project:
        project.add("fix", env={"TOKEN": secret})
        await project.ask("servers")
        error = await project.refused("INTERNAL_ERROR", "see its log", "prompts", server="fix")
        assert error.sent == "unknown"
    (record,) = caplog.records
    assert "KeyError: 'no [redacted]'" in record.getMessage()
    assert secret not in caplog.text
