"""Reading schemas: what is one, in which dialect, and what must not be run in the server."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given

from repl_trio.broker.tools.schemas import read, survey
from repl_trio.errors import BrokerError
from repl_trio.limits import Limits

from .schemas_strategy import ANYTHING, SCHEMAS

LIMITS = Limits()
NO_FORMATS = jsonschema.FormatChecker(formats=())


@pytest.mark.parametrize(
    ("declared", "dialect"),
    [
        ("https://json-schema.org/draft/2020-12/schema", "2020-12"),
        ("https://json-schema.org/draft/2019-09/schema#", "2019-09"),
        ("http://json-schema.org/draft-07/schema#", "draft-07"),
        ("http://json-schema.org/draft-07/schema", "draft-07"),
        ("https://json-schema.org/draft-07/schema#", "draft-07"),
        ("http://json-schema.org/draft-06/schema#", "draft-06"),
        ("http://json-schema.org/draft-04/schema#", "draft-04"),
        ("http://json-schema.org/schema#", "2020-12"),
        ("https://example.org/own", "2020-12"),
    ],
)
def test_dialects(declared: str, dialect: str) -> None:
    reading = read({"$schema": declared, "type": "object"}, LIMITS)
    assert (reading.fault, reading.dialect, reading.apart) == ("", dialect, False)


@pytest.mark.parametrize(
    ("schema", "dialect"),
    [
        ({"items": [{"type": "string"}]}, "draft-07"),
        ({"items": {"type": "string"}}, "2020-12"),
        ({"properties": {"n": {"minimum": 0, "exclusiveMinimum": True}}}, "draft-04"),
        ({"properties": {"n": {"exclusiveMinimum": 0}}}, "2020-12"),
    ],
)
def test_an_undeclared_schema_is_read_in_the_dialect_in_which_it_is_one(schema: object, dialect: str) -> None:
    assert read(schema, LIMITS).dialect == dialect
    assert read(schema, LIMITS).fault == ""


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        (None, "the schema is missing"),
        ([], "the schema is a JSON array"),
        ("object", "the schema is a JSON string"),
        (5, "the schema is a JSON number"),
        ({"properties": {"required": ["x"]}}, "/properties/required is no schema but a JSON array"),
        ({"properties": ["x"]}, "/properties is no object of schemas"),
        ({"properties": {"a/b~": None}}, "/properties/a~1b~0 is no schema but a JSON null"),
        ({"type": "any"}, "/type is no type of JSON Schema"),
        ({"type": []}, "/type is no type of JSON Schema"),
        ({"type": ["string", None]}, "/type is no type of JSON Schema"),
        ({"required": "x"}, "/required is no list of names"),
        ({"properties": {"x": {"required": True}}}, "/properties/x/required is no list of names"),
        ({"anyOf": []}, "/anyOf is no list of schemas"),
        ({"items": 5}, "/items is no schema but a JSON number"),
        ({"minItems": -1}, "/minItems is no whole number from 0 on"),
        ({"minItems": True}, "/minItems is no whole number from 0 on"),
        ({"minItems": 1.5}, "/minItems is no whole number from 0 on"),
        ({"minimum": "0"}, "/minimum is no number"),
        ({"multipleOf": 0}, "/multipleOf is no number above 0"),
        ({"pattern": ["a"]}, "/pattern is no string"),
        ({"enum": "a"}, "/enum is no list"),
        ({"uniqueItems": 1}, "/uniqueItems is no boolean"),
        ({"exclusiveMinimum": "x"}, "/exclusiveMinimum is no number"),
        ({"dependencies": []}, "/dependencies is no object"),
        ({"dependencies": {"a": 5}}, "/dependencies/a is no schema but a JSON number"),
        ({"dependencies": {"a": [5]}}, "/dependencies/a is no list of names"),
        ({"dependentRequired": 5}, "/dependentRequired is no object"),
        ({"dependentRequired": {"a": "b"}}, "/dependentRequired/a is no list of names"),
        ({"default": float("nan")}, "the schema is not JSON"),
    ],
)
def test_faults_say_where(schema: object, fault: str) -> None:
    assert read(schema, LIMITS).fault == fault


@pytest.mark.parametrize("schema", [True, False, {}, {"type": "object"}, {"minItems": 2.0}, {"x-own": [1]}])
def test_what_is_a_schema(schema: object) -> None:
    assert read(schema, LIMITS).fault == ""


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "^a"}}},
        {"patternProperties": {}},
        {"x-own": {"pattern": "^a"}},
        {"$ref": "https://example.org/s"},
        {"$ref": "other.json"},
        {"$dynamicRef": "other"},
        {"$recursiveRef": "#"},
        {"unevaluatedProperties": False},
        {"unevaluatedItems": False},
        {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}},
        {"properties": {"a": {"$id": "a"}}},
        {"items": [{"id": "a"}]},
    ],
)
def test_what_must_be_judged_apart(schema: object) -> None:
    assert read(schema, LIMITS).apart


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"pattern": {"type": "string"}, "id": {"type": "string"}, "$ref": {"type": "string"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://example.org/s", "id": "x"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"format": "regex"}}},
    ],
)
def test_what_need_not_be(schema: object) -> None:
    assert not read(schema, LIMITS).apart


def nested(levels: int) -> object:
    schema: object = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


def test_bounds_at_n_and_beyond() -> None:
    limits = Limits.overridden({"schema_nodes": "5", "schema_depth": "3", "schema_bytes": "40"})
    assert read({"enum": [1, 2, 3]}, limits).fault == ""
    for schema, words in (
        ({"enum": [1, 2, 3, 4]}, "values in the schema is 6 or more; the limit schema_nodes is 5"),
        ({"title": "x" * 40}, "in bytes is 52 or more; the limit schema_bytes is 40"),
        (nested(4), "levels in the schema is 4 or more; the limit schema_depth is 3"),
    ):
        with pytest.raises(BrokerError, match=words) as raised:
            read(schema, limits)
        assert raised.value.code == "LIMIT_REACHED"
    assert read(nested(3), limits).fault == ""


def test_arguments_are_surveyed_the_same_way() -> None:
    limits = Limits.overridden({"schema_depth": "3"})
    survey({"a": [1, 2]}, limits, 4, "the arguments")
    with pytest.raises(BrokerError, match="the number of values in the arguments is 5 or more"):
        survey({"a": [1, 2, 3]}, limits, 4, "the arguments")
    with pytest.raises(BrokerError, match="levels in the arguments"):
        survey({"a": [[[[]]]]}, limits, 100, "the arguments")


def test_nesting_that_no_recursion_survives_is_only_too_deep() -> None:
    with pytest.raises(BrokerError, match="schema_depth"):
        read(nested(100_000), LIMITS)


@given(SCHEMAS)
def test_what_the_meta_schema_accepts_is_a_schema(schema: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(schema, format_checker=NO_FORMATS)
    assert read(schema, LIMITS).fault == ""


@given(ANYTHING)
def test_anything_is_read(schema: Any) -> None:
    reading = read(schema, LIMITS)
    try:
        jsonschema.Draft202012Validator.check_schema(schema, format_checker=NO_FORMATS)
    except Exception:  # noqa: BLE001 - on what is no schema at all the meta-schema raises whatever comes
        return
    if "$schema" not in str(schema):
        assert reading.fault in ("", "the schema is not JSON")
