"""Schemas as Hypothesis draws them: well-formed ones, and ones with anything anywhere."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "c", "id", "pattern"])
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("abc", max_size=3)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)

TYPES = st.sampled_from(["array", "boolean", "integer", "null", "number", "object", "string"])
COUNTS = st.integers(0, 3)
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "const": VALUES,
    "minimum": st.integers(-2, 2),
    "exclusiveMaximum": st.integers(-2, 2),
    "multipleOf": st.sampled_from([1, 2, 0.5]),
    "minLength": COUNTS,
    "maxLength": COUNTS,
    "minItems": COUNTS,
    "maxItems": COUNTS,
    "uniqueItems": st.booleans(),
    "minProperties": COUNTS,
    "required": st.lists(NAMES, max_size=2, unique=True),
    "format": st.sampled_from(["date", "uuid", "ipv4", "email", "no-format-at-all"]),
    "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b"]),
    "title": st.text(max_size=3),
}


def _deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(NAMES, inner, max_size=3)
    several = st.lists(inner, min_size=1, max_size=3)
    nested = {
        **dict.fromkeys(("properties", "$defs", "dependentSchemas"), named),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("not", "if", "then", "else", "items", "contains", "additionalProperties"), inner),
        "propertyNames": inner,
    }
    return st.fixed_dictionaries({}, optional={**PLAIN, **nested})


SCHEMAS = st.recursive(st.booleans() | st.fixed_dictionaries({}, optional=PLAIN), _deeper, max_leaves=8)
KEYWORDS = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "$ref",
        "enum",
        "const",
        "anyOf",
        "allOf",
        "not",
        "required",
        "pattern",
        "patternProperties",
        "if",
        "then",
        "$id",
        "id",
        "$schema",
        "$defs",
        "dependencies",
        "dependentRequired",
        "minimum",
        "exclusiveMinimum",
        "multipleOf",
        "maxItems",
        "uniqueItems",
        "contains",
        "format",
        "additionalProperties",
        "unevaluatedProperties",
        "prefixItems",
        "propertyNames",
        "$dynamicRef",
        "$anchor",
    ]
)
ODD = st.sampled_from(["#", "#/a", "string", "(", "^a", "https://example.org/s", "date", float("inf"), 1 << 70])
ANYTHING = st.recursive(
    LEAVES | ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS | NAMES, inner, max_size=4),
    max_leaves=15,
)
