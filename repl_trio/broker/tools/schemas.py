"""Reading a tool's schema before anything is validated with it: its bounds, its dialect, and whether it is one at all.

Validators take a schema on trust: a list where a schema should be makes them raise whatever comes to pass. Checking it
with the dialect's own meta-schema costs a millisecond for each schema inside it; this walk costs microseconds and says
where the fault is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...errors import BrokerError
from ...limits import Limits
from ...wire import jsontext

LATEST = "2020-12"
#: How a dialect is named in `$schema`, without scheme and fragment. What is not here counts as the latest.
DIALECTS = {
    "json-schema.org/draft/2020-12/schema": LATEST,
    "json-schema.org/draft/2019-09/schema": "2019-09",
    "json-schema.org/draft-07/schema": "draft-07",
    "json-schema.org/draft-06/schema": "draft-06",
    "json-schema.org/draft-04/schema": "draft-04",
}
#: Tried in this order when a schema is none in its own dialect: few schemas that need an older one say so.
_OLDER = ("draft-07", "draft-04")
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})

_SCHEMAS = [
    "additionalProperties",
    "contains",
    "else",
    "if",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
]
_SCHEMA_LISTS = ["allOf", "anyOf", "oneOf", "prefixItems"]
_SCHEMA_MAPS = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"]
_COUNTS = [
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
]
_NUMBERS = ["maximum", "minimum"]
_STRINGS = ["$anchor", "$dynamicRef", "$id", "$recursiveRef", "$ref", "$schema", "format", "pattern"]
#: Keywords whose work no step counts. See `Reading.apart`.
_UNCOUNTED = frozenset({"patternProperties", "unevaluatedItems", "unevaluatedProperties"})
#: Keywords with a string by which a validation gets into a dialect whose steps nobody counts; on top they are harmless.
_LEADING_OUT = ("$id", "$schema", "id")
#: In draft-04 two keywords are booleans; from draft-06 on they are numbers.
_BOOLEAN_BOUNDS = ("exclusiveMaximum", "exclusiveMinimum")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a schema is.

    `fault` says why it is none, with a JSON pointer into it; "" when it is one of `dialect`. `apart`: it holds regular
    expressions, or what cannot be counted step by step, and must not be run in the server.
    """

    fault: str
    dialect: str
    apart: bool


def read(schema: object, limits: Limits) -> Reading:
    """Read a schema. Raises `BrokerError` (LIMIT_REACHED) for one that is over a bound."""
    if isinstance(schema, bool):
        return Reading("", LATEST, apart=False)
    if not isinstance(schema, dict):
        kind = "missing" if schema is None else f"a JSON {_kind(schema)}"
        return Reading(f"the schema is {kind}", LATEST, apart=False)
    apart = _survey(schema, limits)
    try:
        size = len(jsontext.dumps(schema))
    except (TypeError, ValueError):
        return Reading("the schema is not JSON", LATEST, apart=False)
    _bounded("schema_bytes", size, limits.schema_bytes, "the schema's size in bytes")
    declared = _declared(schema)
    first = ""
    for dialect in dict.fromkeys((declared, *_OLDER)):
        fault = next(_faults(schema, "", dialect), "")
        if not fault:
            return Reading("", dialect, apart)
        first = first or fault
    return Reading(first, declared, apart)


def survey(value: object, limits: Limits, nodes: int, what: str) -> None:
    """Raises `BrokerError` (LIMIT_REACHED) for a JSON value with more values or levels inside than allowed."""
    for _ in _walk(value, limits, "argument_nodes", nodes, what):
        pass


def _survey(schema: dict[str, object], limits: Limits) -> bool:
    """Whether the schema is to be run apart. Looks at every object in it: a reference may lead to any of them."""
    apart = False
    for depth, node in _walk(schema, limits, "schema_nodes", limits.schema_nodes, "the schema"):
        if isinstance(node, dict) and not apart:
            # A property may have the name of a keyword; its value is then no string.
            words = ("pattern", "$recursiveRef", *_LEADING_OUT) if depth else ("pattern", "$recursiveRef")
            references = [node.get(word) for word in ("$ref", "$dynamicRef")]
            apart = (
                not _UNCOUNTED.isdisjoint(node)
                or any(isinstance(node.get(word), str) for word in words)
                or any(isinstance(target, str) and not target.startswith("#") for target in references)
            )
    return apart


def _walk(value: object, limits: Limits, name: str, nodes: int, what: str) -> Iterator[tuple[int, object]]:
    seen = 0
    level: list[object] = [value]
    for depth in range(limits.schema_depth + 1):
        deeper: list[object] = []
        for node in level:
            yield depth, node
            if isinstance(node, dict):
                deeper += node.values()
            elif isinstance(node, list):
                deeper += node
        seen += len(level)
        _bounded(name, seen + len(deeper), nodes, f"the number of values in {what}")
        level = deeper
        if not level:
            return
    _bounded("schema_depth", limits.schema_depth + 1, limits.schema_depth, f"the number of levels in {what}")


def _bounded(name: str, asked: int, allowed: int, what: str) -> None:
    if asked > allowed:
        raise BrokerError("LIMIT_REACHED", f"{what} is {asked} or more; the limit {name} is {allowed}")


def _declared(schema: dict[str, object]) -> str:
    named = schema.get("$schema")
    if not isinstance(named, str):
        return LATEST
    return DIALECTS.get(named.partition("://")[2].partition("#")[0].rstrip("/"), LATEST)


def _faults(schema: object, where: str, dialect: str) -> Iterator[str]:
    if isinstance(schema, bool) and dialect != "draft-04":
        return
    if not isinstance(schema, dict):
        if not (isinstance(schema, bool) and where.endswith(("/additionalProperties", "/additionalItems"))):
            yield f"{where or '/'} is no schema but a JSON {_kind(schema)}"
        return
    for word, value in schema.items():
        check = _CHECKS.get(word)
        if check is not None:
            yield from check(value, f"{where}/{_escaped(word)}", dialect)


def _one(value: object, where: str, dialect: str) -> Iterator[str]:
    yield from _faults(value, where, dialect)


def _older(value: object, where: str, dialect: str) -> Iterator[str]:
    if dialect != LATEST:  # which knows the keyword no more
        yield from _faults(value, where, dialect)


def _several(value: object, where: str, dialect: str) -> Iterator[str]:
    if not isinstance(value, list) or not value:
        yield f"{where} is no list of schemas"
        return
    for index, entry in enumerate(value):
        yield from _faults(entry, f"{where}/{index}", dialect)


def _named(value: object, where: str, dialect: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is no object of schemas"
        return
    for name, entry in value.items():
        yield from _faults(entry, f"{where}/{_escaped(name)}", dialect)


def _items(value: object, where: str, dialect: str) -> Iterator[str]:
    if isinstance(value, list) and dialect != LATEST:
        for index, entry in enumerate(value):
            yield from _faults(entry, f"{where}/{index}", dialect)
    else:
        yield from _faults(value, where, dialect)


def _dependencies(value: object, where: str, dialect: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is no object"
        return
    for name, entry in value.items():
        inside = f"{where}/{_escaped(name)}"
        yield from _names(entry, inside, dialect) if isinstance(entry, list) else _faults(entry, inside, dialect)


def _required_by(value: object, where: str, dialect: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is no object"
        return
    for name, entry in value.items():
        yield from _names(entry, f"{where}/{_escaped(name)}", dialect)


def _names(value: object, where: str, _dialect: str) -> Iterator[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        yield f"{where} is no list of names"


def _type(value: object, where: str, _dialect: str) -> Iterator[str]:
    kinds = value if isinstance(value, list) else [value]
    if not kinds or not all(isinstance(kind, str) and kind in _TYPES for kind in kinds):
        yield f"{where} is no type of JSON Schema"


def _count(value: object, where: str, _dialect: str) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        yield f"{where} is no whole number from 0 on"


def _number(value: object, where: str, _dialect: str) -> Iterator[str]:
    if not _is_number(value):
        yield f"{where} is no number"


def _factor(value: object, where: str, _dialect: str) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        yield f"{where} is no number above 0"


def _exclusive(value: object, where: str, dialect: str) -> Iterator[str]:
    if not (isinstance(value, bool) if dialect == "draft-04" else _is_number(value)):
        yield f"{where} is no {'boolean' if dialect == 'draft-04' else 'number'}"


def _string(value: object, where: str, _dialect: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{where} is no string"


def _list(value: object, where: str, _dialect: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{where} is no list"


def _boolean(value: object, where: str, _dialect: str) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{where} is no boolean"


_CHECKS: dict[str, Callable[[object, str, str], Iterator[str]]] = {
    **dict.fromkeys(_SCHEMAS, _one),
    **dict.fromkeys(_SCHEMA_LISTS, _several),
    **dict.fromkeys(_SCHEMA_MAPS, _named),
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(_NUMBERS, _number),
    **dict.fromkeys(_STRINGS, _string),
    **dict.fromkeys(_BOOLEAN_BOUNDS, _exclusive),
    "additionalItems": _older,
    "items": _items,
    "dependencies": _dependencies,
    "dependentRequired": _required_by,
    "required": _names,
    "type": _type,
    "multipleOf": _factor,
    "enum": _list,
    "uniqueItems": _boolean,
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: object) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _escaped(step: str) -> str:
    """One step of a JSON pointer."""
    return step.replace("~", "~0").replace("/", "~1")
