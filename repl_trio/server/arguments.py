"""Checking a call's arguments against the tool's own schema.

`jsonschema` would take 0.1 s to import and more time for a check than a whole warm call may; the schemas of `tools`
use seven keywords. A test compares the verdicts with `jsonschema`'s. Errors name the JSON pointer of the offending
place and never its value.
"""

from __future__ import annotations

from ..wire.jsonrpc import Params
from ..wire.mcp import Tool

_ROOT = "/params/arguments"


class BadArguments(Exception):
    """The arguments break the schema. `reason` begins with a JSON pointer."""

    def __init__(self, pointer: str, rule: str) -> None:
        super().__init__(f"{pointer}: {rule}")
        self.reason = f"{pointer}: {rule}"


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
}


def check(tool: Tool, arguments: Params) -> None:
    """Raise `BadArguments` for the first place that breaks `tool`'s input schema."""
    schema = tool["inputSchema"]
    assert isinstance(schema, dict)
    properties = schema["properties"]
    for name in schema.get("required", ()):
        if name not in arguments:
            raise BadArguments(f"{_ROOT}/{name}", "is required")
    for name, value in arguments.items():
        rules = properties.get(name)
        if rules is None:
            known = ", ".join(properties) or "none"
            raise BadArguments(f"{_ROOT}/{_escape(name)}", f"is unknown; known: {known}")
        _check_value(f"{_ROOT}/{name}", value, rules)


def _check_value(pointer: str, value: object, rules: dict[str, object]) -> None:
    kind = str(rules["type"])
    # An integral float is an integer in JSON Schema, and JavaScript clients send them; a bool never is.
    whole = kind == "integer" and type(value) is float and value.is_integer()
    if type(value) not in _TYPES[kind] and not whole:
        raise BadArguments(pointer, f"{'an' if kind[0] in 'aeio' else 'a'} {kind} is expected")
    options = rules.get("enum")
    if isinstance(options, list):
        if value not in options:
            raise BadArguments(pointer, f"must be one of {', '.join(options)}")
    elif isinstance(value, str):
        longest = rules["maxLength"]
        assert isinstance(longest, int)
        if len(value) > longest:
            raise BadArguments(pointer, f"has more than {longest} bytes")
        try:
            size = len(value.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise BadArguments(pointer, f"has a lone surrogate at character {error.start}") from None
        if size > longest:
            raise BadArguments(pointer, f"has {size} bytes, more than {longest}")
    elif isinstance(value, int | float):
        smallest, largest = rules.get("minimum"), rules.get("maximum")
        # `not >=` instead of `<`: a NaN compares false with everything and must not pass.
        if isinstance(smallest, int | float) and not value >= smallest:
            raise BadArguments(pointer, f"must be at least {smallest:g}")
        if isinstance(largest, int | float) and not value <= largest:
            raise BadArguments(pointer, f"must be at most {largest:g}")


def _escape(name: str) -> str:
    """A name as a JSON pointer token, bounded."""
    return name[:100].replace("~", "~0").replace("/", "~1")
