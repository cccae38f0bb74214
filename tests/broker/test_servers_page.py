"""docs/servers.md says what the code does: its example, its fields, its list of harmless ones, its numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from repl_trio.broker.config import dialects
from repl_trio.broker.config.entries import RECURSION, Entry, Refused
from repl_trio.broker.config.registry import Registry
from repl_trio.limits import DEFAULT

PAGE = (Path(__file__).resolve().parents[2] / "docs/servers.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_example_works(tmp_path: Path) -> None:
    found = re.search("```json\n(.*?)```", PAGE, re.S)
    assert found
    (tmp_path / ".mcp.json").write_text(found[1])
    snapshot = Registry(str(tmp_path), {"ISSUES_TOKEN": "a-token"}).look()
    assert [type(entry) for entry in snapshot.entries.values()] == [Entry] * len(json.loads(found[1])["mcpServers"])


def test_the_harmless_fields_are_all_named() -> None:
    named = section("Dialects").partition("`mcp.explain` names them.")[2]
    assert set(re.findall(r"`([^`]+)`", named)) == dialects.HARMLESS


def test_every_known_field_is_explained() -> None:
    explained = set(re.findall(r"`(\w+)`", section("Fields") + section("Dialects")))
    assert dialects._KNOWN - explained <= {"bearer_token_env_var", "cmd", "environment", "requestInit"}
    # What is only refused for its spelling explains itself.
    for name in ("bearer_token_env_var", "cmd", "environment", "requestInit"):
        with pytest.raises(Refused):
            dialects.read_entry({"command": "x", name: {"a": "b"}})


def test_numbers_and_names_are_the_codes() -> None:
    assert (DEFAULT.config_bytes, DEFAULT.client_state_bytes) == (1 << 20, 8 << 20)
    assert "more than 1 MiB (`--limit config_bytes`; 8 MiB and `client_state_bytes`" in PAGE
    assert f"`{RECURSION[0]}={RECURSION[1]}`" in PAGE
    assert (DEFAULT.timeout_min, DEFAULT.timeout_max) == (0.01, 3600)
