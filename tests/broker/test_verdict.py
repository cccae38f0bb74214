"""Verdicts: those of jsonschema, within steps, in words that hold no value."""

from __future__ import annotations

import contextlib
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from repl_trio.broker.tools.findings import Finding, Verdict
from repl_trio.broker.tools.judging import answer
from repl_trio.broker.tools.schemas import read
from repl_trio.broker.tools.verdict import Checker, Overrun, compilable
from repl_trio.limits import Limits
from repl_trio.wire import jsontext

from .schemas_strategy import ANYTHING, ARGUMENTS, SCHEMAS

LIMITS = Limits()
STEPS = 2_000
FIT = Verdict()


def check(schema: object, arguments: object, steps: int | None = STEPS) -> Verdict:
    return Checker(schema, read(schema, LIMITS).dialect, steps).check(arguments)


def one(schema: object, arguments: object) -> tuple[str, str, str]:
    """The only finding."""
    (finding,) = check(schema, arguments).findings
    return finding.pointer, finding.rule, finding.words


@given(SCHEMAS, ARGUMENTS)
def test_the_verdict_is_that_of_jsonschema(schema: Any, arguments: dict[str, object]) -> None:
    try:
        found = check(schema, arguments)
    except Overrun:
        return
    if found.broken:
        assert "$ref" in str(schema)
    elif "format" not in str(schema):  # ours are fewer, and more lenient
        assert bool(found.findings) is not jsonschema.Draft202012Validator(schema).is_valid(arguments)


@given(ANYTHING, ARGUMENTS)
def test_no_schema_makes_it_raise(schema: Any, arguments: dict[str, object]) -> None:
    reading = read(schema, LIMITS)
    if not reading.fault:
        with contextlib.suppress(Overrun):
            Checker(schema, reading.dialect, STEPS).check(arguments)
        Checker(compilable(schema), reading.dialect, None).check(arguments)


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        ({"properties": {"a": {"type": "string"}}}, {"a": 7}, ("/a", "type", "must be of type string")),
        (
            {"properties": {"a": {"type": ["string", "null"]}}},
            {"a": 7},
            ("/a", "type", "must be of type string or null"),
        ),
        (
            {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": ["null", "integer"]}]}}},
            {"a": 7.5},
            ("/a", "anyOf", "must be of type string or null or integer"),
        ),
        ({"required": ["a", "b"]}, {"b": 1}, ("", "required", "lacks 'a'")),
        ({"properties": {"a": {"enum": ["x", "y"]}}}, {"a": "z"}, ("/a", "enum", "must be one of 'x', 'y'")),
        ({"properties": {"a": {"minimum": 3}}}, {"a": 2}, ("/a", "minimum", "must be at least 3")),
        (
            {"properties": {"a": {"items": {"type": "integer"}}}},
            {"a": [1, "x"]},
            ("/a/1", "type", "must be of type integer"),
        ),
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            {"b": 1},
            ("", "additionalProperties", "has what is not allowed there: 'b'; known are 'a'"),
        ),
        (
            {"properties": {"a": {"oneOf": [{"type": "integer"}, {"minimum": 1}]}}},
            {"a": 5},
            ("/a", "oneOf", "fits several of the alternatives of which it must fit one"),
        ),
        (
            {"anyOf": [{"required": ["z"]}, {"properties": {"a": {"type": "string"}}}]},
            {"a": 5},
            ("", "anyOf", "fits none of the alternatives; nearest: /a must be of type string"),
        ),
        ({"properties": {"a": False}}, {"a": 1}, ("", "false", "holds what the schema forbids")),
        (False, {}, ("", "false", "holds what the schema forbids")),
        ({"not": {}}, {}, ("", "not", "breaks the rule `not`")),
        ({"properties": {"a/b~": {"type": "null"}}}, {"a/b~": 1}, ("/a~1b~0", "type", "must be of type null")),
        ({"properties": {"a": {"const": 1}}}, {"a": 2}, ("/a", "const", "must be 1")),
    ],
)
def test_findings_say_where_and_what(schema: object, arguments: object, expected: tuple[str, str, str]) -> None:
    assert one(schema, arguments) == expected


def test_no_value_is_told() -> None:
    secret = "my-password-1"
    schema = {
        "properties": {
            "a": {"type": "integer"},
            "b": {"enum": ["x"]},
            "c": {"const": 1},
            "d": {"maxLength": 3},
            "e": {"anyOf": [{"type": "integer"}, {"maxLength": 2}]},
            "f": {"format": "date"},
            "g": {"not": {}},
            "h": {"minItems": 5},
        }
    }
    for name in "abcdefg":
        found = check(schema, {name: secret})
        assert found.findings, name
        assert secret not in repr(found)
    assert secret not in repr(check(schema, {"h": [secret]}))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29"], ["2023-02-29", "today"]),
        ("date-time", ["2024-02-29T12:00:00Z", "2016-12-31T23:59:60Z", "2024-02-29t12:00:00+01:00"], ["noon"]),
        ("ipv4", ["127.0.0.1"], ["127.0.0.256", ""]),
        ("ipv6", ["::1"], ["::g"]),
        ("uuid", ["12345678-1234-1234-1234-123456789abc"], ["1234"]),
        ("email", ["a@b"], ["a"]),
        ("uri", ["https://example.org/x", "urn:x"], ["example", "/x", "a b:c", ""]),
        ("hostname", ["", "anything at all"], []),
        ("regex", ["("], []),
        ("int32", ["x"], []),
    ],
)
def test_formats(name: str, good: list[str], bad: list[str]) -> None:
    schema = {"properties": {"a": {"format": name}}}
    for value in [*good, 5, None]:
        assert check(schema, {"a": value}) == FIT, value
    for value in bad:
        assert one(schema, {"a": value}) == ("/a", "format", f"must have the format '{name}'")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "properties": {"a": {"$ref": "#/definitions/p"}},
                "definitions": {"p": {"type": "array", "items": [{"type": "integer"}], "additionalItems": False}},
            },
            {"a": [1]},
            {"a": [1, 2]},
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"prefixItems": [{"type": "integer"}]}}},
            {"a": [1]},
            {"a": ["x"]},
        ),
        ({"properties": {"n": {"minimum": 0, "exclusiveMinimum": True}}}, {"n": 1}, {"n": 0}),
        (
            {"$defs": {"t": {"$anchor": "t", "type": "null"}}, "properties": {"a": {"$ref": "#t"}}},
            {"a": None},
            {"a": 1},
        ),
        (
            {"properties": {"child": {"$ref": "#"}, "n": {"type": "null"}}},
            {"child": {"child": {}}},
            {"child": {"n": 1}},
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$id": "https://example.org/tree",
                "properties": {"child": {"$ref": "#"}, "n": {"type": "null"}},
            },
            {"child": {"child": {}}},
            {"child": {"n": 1}},
        ),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
    ],
)
def test_dialects_and_references(schema: object, good: object, bad: object) -> None:
    for steps in (STEPS, None):
        assert check(schema, good, steps) == FIT
        assert check(schema, bad, steps).findings


def test_references_that_lead_out_are_not_followed() -> None:
    for reference in ("https://example.org/schema.json", "other.json", "file:///etc/hostname"):
        found = check({"properties": {"a": {"$ref": reference}}}, {"a": 1}, None)
        assert found.outside == reference
        assert check({"properties": {"a": {"$ref": reference}}}, {}, None) == FIT  # nothing had to be known of it
    assert check({"$ref": "#/$defs/none"}, {}).broken == "its reference to /$defs/none leads nowhere"
    assert check({"$ref": "#none"}, {}).broken.endswith("leads nowhere")


def doubling(levels: int) -> dict[str, object]:
    """A schema of `levels` lines that takes 2 ** levels steps."""
    inner: dict[str, object] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**inner, f"d{levels}": {"type": "object"}}}


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (doubling(40), {}),
        ({**doubling(40), "$schema": "http://json-schema.org/draft-07/schema#", "definitions": {}}, {}),
        ({"$ref": "#"}, {}),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [{"x": n} for n in range(50)]}),
        ({"properties": {"a": {"items": {"type": "integer"}}}}, {"a": list(range(5_000))}),
        ({"properties": {"a": {"enum": [[0] * 50] * 50}}}, {"a": [0] * 49 + [1]}),
    ],
)
def test_steps_are_bounded(schema: object, arguments: object) -> None:
    with pytest.raises(Overrun):
        check(schema, arguments)


def test_steps_are_counted_behind_a_reference_to_the_root_too() -> None:
    """A `$schema` on top must not lead the validator into classes that count nothing."""
    twice = {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}
    arguments: dict[str, object] = {}
    for _ in range(12):
        arguments = {"a": arguments}
    with pytest.raises(Overrun):
        check({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": twice}}, arguments)


def test_a_step_is_dearer_the_larger_the_arguments_are() -> None:
    checker = Checker({"anyOf": [{"minProperties": 5}] * 100}, "2020-12", STEPS)
    assert checker.check({"a": 1}, 10).findings
    with pytest.raises(Overrun):
        checker.check({"a": "x" * 100_000}, 100_000)


def test_the_steps_of_one_verdict_are_not_the_next_ones() -> None:
    checker = Checker({"properties": {"a": {"items": {"type": "integer"}}}}, "2020-12", STEPS)
    for _ in range(3):
        assert checker.check({"a": [1] * 50}) == FIT
        with pytest.raises(Overrun):
            checker.check({"a": [1] * 5_000})


def travelled(verdict: dict[str, object]) -> Verdict:
    sent: Any = jsontext.loads(jsontext.dumps(verdict))
    return Verdict.from_json(sent)


def test_patterns_of_other_engines_are_left_out() -> None:
    schema = {
        "properties": {"a": {"pattern": r"^\p{L}+$", "type": "string"}, "b": {"pattern": "^x"}},
        "patternProperties": {r"^\p{L}$": {"type": "null"}, "^n": {"type": "integer"}},
        "additionalProperties": False,
    }
    asked = {"id": 4, "schema": schema, "dialect": "2020-12", "arguments": {"a": "é", "b": "x", "q": 1, "n": 1}}
    assert answer(jsontext.dumps(asked)) == {"id": 4, **FIT.as_json()}
    asked["arguments"] = {"a": 5, "b": "y", "n": "z"}
    found = travelled(answer(jsontext.dumps(asked)))
    assert {(finding.pointer, finding.rule) for finding in found.findings} == {
        ("/a", "type"),
        ("/b", "pattern"),
        ("/n", "type"),
    }


def test_a_verdict_travels() -> None:
    verdict = Verdict((Finding("/a", "type", "must"),), "b", "c")
    assert travelled(verdict.as_json()) == verdict
    with pytest.raises(TypeError):
        Verdict.from_json({"findings": 5})
