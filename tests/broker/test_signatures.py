"""A schema as the line that a Python programmer would have written."""

from __future__ import annotations

import ast
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_trio.broker.tools.signatures import brief, first_sentence, parameters, returns, signature

LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner), max_leaves=12)
WORDS = st.sampled_from(["type", "properties", "items", "$ref", "enum", "anyOf", "default", "required", "const"])
SCHEMAS = st.recursive(
    JSON | st.sampled_from(["string", "#", "#/properties/a"]),
    lambda inner: st.lists(inner) | st.dictionaries(WORDS | st.text(max_size=4), inner),
    max_leaves=20,
)


def properties(required: list[str] | None = None, **schemas: object) -> dict[str, object]:
    return {"type": "object", "properties": schemas, "required": required or []}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            properties(
                ["title"],
                body={"type": "string"},
                title={"type": "string"},
                labels={"type": "array", "items": {"type": "string"}, "default": []},
            ),
            "f(title: str, body: str = None, labels: list[str] = [])",
        ),
        (properties(n={"type": ["integer", "null"]}), "f(n: int | None = None)"),
        (properties(n={"anyOf": [{"type": "number"}, {"type": "null"}]}), "f(n: float | None = None)"),
        (properties(how={"enum": ["a", "b"]}), "f(how: Literal['a', 'b'] = None)"),
        (properties(how={"const": 1}), "f(how: Literal[1] = None)"),
        (properties(how={"type": "string", "enum": list("abcdefgh")}), "f(how: str = None)"),
        (properties(x=True), "f(x: object = None)"),
        (properties(x={}), "f(x: object = None)"),
        (properties(x={"type": "boolean", "default": False}), "f(x: bool = False)"),
        (properties(x={"default": "y" * 50}), "f(x: object = ...)"),
        (properties(x={"type": "array"}), "f(x: list = None)"),
        (
            {"properties": {"a-b": {"type": "object"}, "class": {}}, "required": ["a-b"]},
            "f(arguments={'a-b': dict, 'class': object = None})",
        ),
        (
            {**properties(x={"$ref": "#/$defs/p~1q"}), "$defs": {"p/q": {"type": "integer"}}},
            "f(x: int = None)",
        ),
        (
            properties(timeout={"type": "number"}, server={}, x={}),
            "f(x: object = None, arguments={'timeout': float = None, 'server': object = None})",
        ),
        (properties(x={"$ref": "#/properties/x"}), "f(x: object = None)"),
        (properties(x={"$ref": "https://example.org/x"}), "f(x: object = None)"),
        (properties(), "f()"),
        ({"type": "object"}, "f()"),
        ({}, "f()"),
        (True, "f(...)"),
        (None, "f(...)"),
        ([], "f(...)"),
        ({"properties": []}, "f(...)"),
        ({"properties": {"x": {}}, "required": "x"}, "f(x: object = None)"),
    ],
)
def test_signature(schema: object, expected: str) -> None:
    assert signature("f", schema) == expected


LINE = {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"type": "integer", "default": 1}}}


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"type": "string", "description": "Which one"}, "Which one"),
        ({"type": "string"}, ""),
        ({"type": "integer", "minimum": 1, "maximum": 9, "description": ""}, "minimum 1; maximum 9"),
        ({"$ref": "#/$defs/line"}, "{sku: str, n: int = 1}"),
        ({"$ref": "#/$defs/line", "description": "Of it"}, "{sku: str, n: int = 1}; Of it"),
        (
            {"type": "array", "items": {"$ref": "#/$defs/line"}, "maxItems": 3},
            "list[{sku: str, n: int = 1}]; maxItems 3",
        ),
        ({"anyOf": [{"$ref": "#/$defs/line"}, {"type": "null"}]}, "{sku: str, n: int = 1} | None"),
        ({"type": "object"}, ""),
        ({"type": "object", "properties": {"a b": {}}}, "{'a b': object = None}"),
        (True, ""),
        ({"$ref": "#/$defs/none"}, ""),
    ],
)
def test_what_the_signature_does_not_say(asked: object, line: str) -> None:
    line_of = {**LINE, "required": ["sku"]}
    schema = {"properties": {"x": asked}, "$defs": {"line": line_of}}
    assert parameters(schema) == ([f"x: {line}"] if line else [])


def test_what_comes_back() -> None:
    assert returns({"type": "object", "properties": {"result": {"type": "array", "items": LINE}}}) == (
        "{result: list[{sku: str = None, n: int = 1}] = None}"
    )
    assert [returns(schema) for schema in (None, True, {}, {"type": "object"})] == [""] * 4


def test_what_is_said_about_a_crowd_is_bounded() -> None:
    crowd = {"properties": {f"{'p' * 10_000}{n}": {"$ref": "#"} for n in range(300)}, "type": "object"}
    begun = time.process_time()
    assert sum(map(len, parameters(crowd))) < 4_000_000
    assert len(returns(crowd)) == 600
    # References name all three hundred again in each of them.
    assert time.process_time() - begun < 5


def test_a_crowd_of_parameters_is_cut() -> None:
    line = signature("f", {"properties": {f"p{number}": {"type": "string"} for number in range(100)}})
    assert line.endswith("p23: str = None, ...)")


@given(SCHEMAS)
def test_whatever_a_peer_sends_is_one_line(schema: object) -> None:
    line = signature("f", schema)
    assert line.startswith("f(")
    assert line.endswith(")")


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=6), SCHEMAS, max_size=6))
def test_what_is_shown_is_python(schemas: dict[str, object]) -> None:
    line = signature("f", {"properties": schemas})
    if "arguments={" not in line:
        ast.parse(f"def {line}: ...")


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("Open an issue. And more.", "Open an issue."),
        ("Open\n  an issue\n\nIn detail: x.", "Open an issue"),
        ("x" * 500, "x" * 117 + "..."),
        ("", ""),
        (None, ""),
        (5, ""),
    ],
)
def test_first_sentence(description: object, expected: str) -> None:
    assert first_sentence(description) == expected


def test_brief() -> None:
    assert brief({"name": "f", "inputSchema": {}, "description": "Does. Not."}) == "f() - Does."
    assert brief({"name": "f", "title": "The f"}) == "f(...) - The f"
    assert brief({"name": "f"}) == "f(...)"


def _many(count: int) -> dict[str, object]:
    names = [f"p{number}" for number in range(count)]
    return {"properties": dict.fromkeys(names, True), "required": [f"q{number}" for number in range(count)]}


def _levels(members: int, kind: object) -> dict[str, object]:
    """Definitions that refer to each other: every level multiplies the members of those below it."""
    found: dict[str, object] = {
        f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * members} for level in range(9)
    }
    return {"$defs": found | {"d9": {"type": kind}}, "properties": {"a": {"$ref": "#/$defs/d0"}}}


@pytest.mark.parametrize(
    "schema",
    [
        _many(40_000),
        _levels(10_000, "string"),
        {"properties": {"a": {"type": ["array"] * 3_000, "items": {"type": ["array"] * 3_000, "items": {}}}}},
    ],
    ids=["required", "references", "types"],
)
def test_a_schema_made_to_take_long_takes_no_time(schema: object) -> None:
    begun = time.process_time()
    signature("f", schema)
    assert time.process_time() - begun < 1  # a minute and more where each is looked at
