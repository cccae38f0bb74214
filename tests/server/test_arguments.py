"""Argument checking against `jsonschema` as the judge, and errors that name the place and never the value."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_trio.limits import DEFAULT
from repl_trio.server.arguments import BadArguments, check
from repl_trio.server.tools import tools

Arguments = dict[str, object]

TOOLS: dict[str, dict[str, Any]] = {str(tool["name"]): tool for tool in tools(DEFAULT)}
NAMES = sorted({name for tool in TOOLS.values() for name in tool["inputSchema"]["properties"]})

untimed = settings(deadline=None, max_examples=300)
# The bounds of the schemas and their neighbours, so that off-by-one verdicts are met.
numbers = (
    st.sampled_from([0, 0.01, 0.0099, -1, 60, 60.01, 61, 3600, 3600.5, 1e308, 2**70])
    | st.integers()
    | st.floats(-10, 4000)
)
values: st.SearchStrategy[Any] = st.none() | st.booleans() | numbers | st.text(max_size=5) | st.just([]) | st.just({})
names = st.sampled_from(NAMES) | st.text(max_size=5)


def verdict(tool: str, arguments: Arguments) -> str | None:
    """Why the arguments are refused, None when they are not."""
    try:
        check(TOOLS[tool], arguments)
    except BadArguments as error:
        return error.reason
    return None


def arguments_of(tool: str) -> st.SearchStrategy[Arguments]:
    """Mostly of the right names, often of the right types."""
    fitting: dict[str, st.SearchStrategy[Any]] = {"string": st.text(max_size=5), "boolean": st.booleans()}
    rules = TOOLS[tool]["inputSchema"]["properties"]
    known = {name: fitting.get(rule["type"], numbers) | values for name, rule in rules.items()}
    known |= {name: st.sampled_from(rule["enum"]) | values for name, rule in rules.items() if "enum" in rule}
    extra = st.dictionaries(names, values, max_size=1)
    return st.tuples(st.fixed_dictionaries({}, optional=known), extra).map(lambda two: {**two[1], **two[0]})


@untimed
@given(st.sampled_from(sorted(TOOLS)).flatmap(lambda tool: st.tuples(st.just(tool), arguments_of(tool))))
def test_verdicts_are_jsonschemas(given_call: tuple[str, Arguments]) -> None:
    tool, arguments = given_call
    valid = jsonschema.Draft202012Validator(TOOLS[tool]["inputSchema"]).is_valid(arguments)
    assert (verdict(tool, arguments) is None) is valid


SECRET = "SECRET"


@pytest.mark.parametrize(
    ("tool", "arguments", "pointer"),
    [
        ("execute_python", {}, "/code"),
        ("execute_python", {"code": None}, "/code"),
        ("execute_python", {"code": [SECRET]}, "/code"),
        ("execute_python", {"code": "1", "timeout": SECRET}, "/timeout"),
        ("execute_python", {"code": "1", "timeout": True}, "/timeout"),
        ("execute_python", {"code": "1", "timeout": -7777}, "/timeout"),
        ("execute_python", {"code": "1", "timeout": 7777}, "/timeout"),
        ("execute_python", {"code": "1", "wait": -0.5}, "/wait"),
        ("execute_python", {"code": "1", "reset": 1}, "/reset"),
        ("execute_python", {"code": "1", "reset": SECRET}, "/reset"),
        ("execute_python", {"code": "1", "session_id": 7777}, "/session_id"),
        ("execute_python", {"code": "1", "expected_generation": 1.5}, "/expected_generation"),
        ("execute_python", {"code": "1", "expected_generation": -1}, "/expected_generation"),
        ("execute_python", {"code": "1", "surprise": SECRET}, "/surprise"),
        ("execute_python", {"code": "1", "a/b~c": SECRET}, "/a~1b~0c"),
        ("execute_python", {"code": SECRET * 100_000}, "/code"),
        ("python_health", {"session_id": SECRET}, "/session_id"),
        ("python_session_close", {}, "/session_id"),
        ("python_session_open", {"name": SECRET * 100}, "/name"),
        ("python_run", {"wait": 61}, "/wait"),
        ("artifact_read", {}, "/artifact_id"),
        ("artifact_read", {"artifact_id": "a", "offset": -7777}, "/offset"),
        ("artifact_read", {"artifact_id": "a", "length": 0}, "/length"),
        ("artifact_read", {"artifact_id": "a", "length": 77_777}, "/length"),
        ("artifact_read", {"artifact_id": "a", "encoding": SECRET}, "/encoding"),
        ("artifact_read", {"artifact_id": "a", "encoding": 7777}, "/encoding"),
    ],
)
def test_an_error_names_the_place_and_not_the_value(tool: str, arguments: Arguments, pointer: str) -> None:
    reason = verdict(tool, arguments)
    assert reason is not None
    assert reason.startswith(f"/params/arguments{pointer}: ")
    assert SECRET not in reason
    assert "7777" not in reason
    assert len(reason) < 300


@pytest.mark.parametrize("letter", ["x", "é", "字", "🎈"])
def test_code_is_bounded_in_bytes(letter: str) -> None:
    each = len(letter.encode())
    fits = letter * (DEFAULT.code_bytes // each)
    assert verdict("execute_python", {"code": fits}) is None
    reason = verdict("execute_python", {"code": fits + letter})
    assert reason is not None
    assert reason.startswith("/params/arguments/code: has ")
    assert str(DEFAULT.code_bytes) in reason


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["timeout", "wait", "expected_generation"])
def test_no_number_beyond_json_passes(name: str, number: float) -> None:
    # 1e999 is JSON and infinity in Python; jsonschema lets NaN pass every bound.
    assert verdict("execute_python", {"code": "", name: number}) is not None


def test_an_integral_float_is_an_integer() -> None:
    assert verdict("execute_python", {"code": "", "expected_generation": 3.0, "timeout": 5}) is None


def test_an_unknown_argument_is_told_the_known_ones() -> None:
    reason = verdict("python_run", {"runid": "x"}) or ""
    assert re.search(r"run_id.*after.*wait.*session_id", reason)
    assert "none" in (verdict("python_session_list", {"x": 1}) or "")


def test_an_unknown_name_is_bounded_too() -> None:
    assert len(verdict("python_health", {"x" * 100_000: 1}) or "") < 300


def test_text_that_is_none_is_told_where() -> None:
    # Nothing that is passed on (a path, source, a name) can be one.
    reason = verdict("execute_python", {"code": "SECRET\ud800"})
    assert reason == "/params/arguments/code: has a lone surrogate at character 6"
