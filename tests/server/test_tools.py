"""What `tools/list` says, as the strictest of the known clients would read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from repl_trio.limits import DEFAULT, Limits
from repl_trio.server.tools import INSTRUCTIONS, implementation, tools

Schema = dict[str, Any]

TOOLS: dict[str, Schema] = {str(tool["name"]): tool for tool in tools(DEFAULT)}
LIST_BYTES = 19_000
"""bytes. The whole list in the client's context."""
DESCRIPTION_BYTES = 2_000
"""bytes. The contract's bound; clients cut at 2,048."""
LEAD = 400
"""characters. Where what matters must have been said."""

CONTAINERS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")

each_tool = pytest.mark.parametrize("name", TOOLS)
each_schema = pytest.mark.parametrize(
    ("name", "side"), [(name, f"{side}Schema") for name in TOOLS for side in ("input", "output")]
)


def walk(schema: object, where: str) -> Iterator[tuple[str, object]]:
    """Every sub-schema with its place."""
    yield where, schema
    if not isinstance(schema, dict):
        return
    for key in CONTAINERS:
        for name, inner in schema.get(key, {}).items():
            yield from walk(inner, f"{where}/{key}/{name}")
    for key in SINGLE:
        if key in schema and not (key == "additionalProperties" and schema[key] is False):
            yield from walk(schema[key], f"{where}/{key}")
    for key in LISTED:
        for index, inner in enumerate(schema.get(key, [])):
            yield from walk(inner, f"{where}/{key}/{index}")


def test_the_tools_are_the_contracts() -> None:
    sessions = [f"python_session_{verb}" for verb in ("open", "list", "inspect", "close")]
    runs = ["execute_python", "python_start", "python_run", "python_cancel", "python_health"]
    assert list(TOOLS) == [*runs, *sessions, "artifact_list", "artifact_read"]
    for name in TOOLS:
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)


@each_schema
def test_a_schema_is_valid_and_plain(name: str, side: str) -> None:
    schema = TOOLS[name][side]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert isinstance(schema["properties"], dict)
    assert set(schema.get("required", [])) <= set(schema["properties"])
    for where, inner in walk(schema, side):
        assert isinstance(inner, dict), f"{where} is a boolean"
        assert inner, f"{where} is empty"
        assert "$ref" not in inner, where
        assert not {*LISTED, "not", "if"} & set(inner), where
        assert "type" in inner, where


@each_schema
def test_defaults_are_valid(name: str, side: str) -> None:
    for where, inner in walk(TOOLS[name][side], side):
        assert isinstance(inner, dict)
        for example in ([inner["default"]] if "default" in inner else []) + inner.get("enum", []):
            jsonschema.validate(example, inner, cls=jsonschema.Draft202012Validator)
        smallest, largest = inner.get("minimum", 0), inner.get("maximum", float("inf"))
        assert smallest < largest, where


@each_tool
def test_every_argument_is_described(name: str) -> None:
    for argument, schema in TOOLS[name]["inputSchema"]["properties"].items():
        assert 5 < len(schema["description"]) < 200, argument


@each_tool
def test_a_description_fits_and_leads(name: str) -> None:
    description = TOOLS[name]["description"]
    assert 40 < len(description.encode()) < DESCRIPTION_BYTES
    assert description[0].isupper()


def test_what_matters_of_execute_python_comes_first() -> None:
    lead = TOOLS["execute_python"]["description"][:LEAD]
    for word in ("persistent", "await", "trailing expression", "timeout"):
        assert word in lead


def test_instructions_fit_and_say_what_they_must() -> None:
    assert len(INSTRUCTIONS.encode()) < DESCRIPTION_BYTES
    for word in ("persistent", "trusted local execution", "no sandbox", "python_health", "python_run", "python_cancel"):
        assert word in INSTRUCTIONS


def test_the_whole_list_is_small() -> None:
    assert len(json.dumps(tools(DEFAULT), separators=(",", ":"))) < LIST_BYTES


@each_tool
def test_annotations_are_there(name: str) -> None:
    hints = TOOLS[name]["annotations"]
    assert set(hints) == {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}
    assert all(isinstance(hint, bool) for hint in hints.values())


def test_annotations_are_true() -> None:
    reads = {"python_run", "python_health", "python_session_list", "python_session_inspect"}
    reads |= {"artifact_list", "artifact_read"}
    runs = {"execute_python", "python_start"}
    ends = {"python_cancel", "python_session_close"}

    def having(hint: str) -> set[str]:
        return {name for name, tool in TOOLS.items() if tool["annotations"][hint]}

    assert having("readOnlyHint") == reads
    # A cell can do anything at all, and a second time it does it again.
    assert having("openWorldHint") == runs
    assert having("destructiveHint") == runs | ends
    assert having("idempotentHint") == reads | ends


def test_limits_show_in_the_schemas() -> None:
    numbers = {"code_bytes": 1_000, "timeout_default": 9, "timeout_max": 99, "wait_max": 7, "artifact_read": 5}
    limits = Limits.overridden({name: str(number) for name, number in numbers.items()})
    changed = {str(tool["name"]): tool for tool in tools(limits)}
    execute: Any = changed["execute_python"]["inputSchema"]
    assert execute["properties"]["code"]["maxLength"] == 1_000
    assert execute["properties"]["timeout"]["maximum"] == 99
    run: Any = changed["python_run"]["inputSchema"]
    assert run["properties"]["wait"]["maximum"] == 7
    read: Any = changed["artifact_read"]["inputSchema"]
    assert read["properties"]["length"]["maximum"] == 5


def test_who_this_is() -> None:
    server = implementation(DEFAULT)
    assert (server.name, server.instructions, len(server.tools)) == ("repl-trio", INSTRUCTIONS, 11)
