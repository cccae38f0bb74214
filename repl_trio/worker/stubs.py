"""The tools of a peer as Python functions: signatures, annotations and docstrings from their schemas.

What a schema says is shown and not enforced: the server validates, and knows all of the schema. Loaded on the first
`mcp.stub` (`isolation.isolated_import`), because `inspect` and `typing` are no light imports.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import operator
import typing

from . import origin
from .identifiers import identifier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .envelope import Envelope

    class Calls(typing.Protocol):
        """`mcp` itself, which knows this module."""

        def call(self, server: str, tool: str, *, arguments: dict[str, Any]) -> Envelope: ...

        async def acall(self, server: str, tool: str, *, arguments: dict[str, Any]) -> Envelope: ...


#: References followed, and types looked at inside one another: a schema may refer to itself.
DEPTH = 8
#: Types looked at for one argument: references multiply the members of unions.
TYPES = 200
#: Types looked at for the words about all arguments of a tool.
DOC_TYPES = 1_000
#: Members of a union or an enumeration that an annotation names.
MEMBERS = 12
#: Bytes of a docstring, and of the text about one argument.
DOC_BYTES = 8_000
ARGUMENT_BYTES = 300
#: Characters of the name of a field inside an argument, and of a tool's description beside its signature.
NAME = 60
LINE = 100
#: Where a stub keeps what is to be said about tools that it has not: no identifier, so no name of a tool.
_NOTE = "(note)"
_SIMPLE: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": type(None),
    "object": dict[str, typing.Any],
    "array": list[typing.Any],
}
# A task or a thread that runs nothing but one of these functions is the cell's own work.
origin.executed_files.add((lambda: None).__code__.co_filename)


class Stub:
    """The tools of one server as functions. Each has an `acall` for asyncio: `await stub.tool.acall(...)`."""

    def __init__(
        self, mcp: Calls, server: str, tools: list[dict[str, Any]], invalid: list[str], note: str | None
    ) -> None:
        names = _python_names([tool["name"] for tool in tools])
        renamed = [f"  {name} is {tool}" for tool, name in names.items() if tool != name]
        functions = {names[tool["name"]]: _function(mcp, server, tool, names[tool["name"]]) for tool in tools}
        lines = [_line(tool, functions[names[tool["name"]]]) for tool in tools]
        self.__dict__.update(functions)
        self.__dict__[_NOTE] = note
        self.__doc__ = "\n".join(
            [
                f"The tools of the MCP server {server!r}.",
                "",
                *(f"  {line}" for line in lines),
                *(["", "Names that are no Python names:", *renamed] if renamed else []),
                *(["", "Not usable:", *(f"  {words}" for words in invalid)] if invalid else []),
                *(["", note] if note else []),
            ]
        )

    def __repr__(self) -> str:
        return str(self.__doc__)

    def __dir__(self) -> list[str]:
        return [name for name in vars(self) if name not in ("__doc__", _NOTE)]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            more = f"; {vars(self)[_NOTE]}" if vars(self).get(_NOTE) else ""
            known = ", ".join(self.__dir__()) or "none"
            raise AttributeError(f"no tool is called {name!r} here; there are: {known}{more}")
        raise AttributeError(name)


Stub.__module__ = "__main__"
Stub.__qualname__ = "mcp.stub"


def _function(mcp: Calls, server: str, definition: dict[str, Any], name: str) -> Any:
    """One tool as a function, with its coroutine function as `acall`."""
    tool: str = definition["name"]
    schema = definition.get("inputSchema")
    schema = schema if isinstance(schema, dict) else {}
    names = _python_names(list(_properties(schema)))
    signature = _signature(schema, names)
    properties = {python: key for key, python in names.items()}

    def given(positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = signature.bind(*positional, **named).arguments
        except TypeError as error:
            hint = f"; mcp.call({server!r}, {tool!r}, timeout=...) sets a time limit" if "timeout" in named else ""
            raise TypeError(f"{name}(): {error}; it is {name}{signature}{hint}") from None
        arguments = {
            properties[key]: value for key, value in bound.items() if key in properties and value is not _NOT_SENT
        }
        return {**arguments, **bound.get(_REST, {})}

    def call(*positional: Any, **named: Any) -> Envelope:
        return mcp.call(server, tool, arguments=given(positional, named))

    async def acall(*positional: Any, **named: Any) -> Envelope:
        return await mcp.acall(server, tool, arguments=given(positional, named))

    shown: list[tuple[Any, str]] = [(call, name), (acall, f"{name}.acall")]
    for function, called in shown:
        # What `help` and `inspect` show.
        function.__signature__ = signature
        function.__doc__ = _doc(definition, server, names, schema)
        function.__name__ = name
        function.__qualname__ = f"mcp.stub({server!r}).{called}"
        function.__module__ = "__main__"
        function.__annotations__ = {
            key: parameter.annotation for key, parameter in signature.parameters.items() if key != _REST
        }
    call.acall = acall  # type: ignore[attr-defined]
    return call


class _NotSent:
    """The default of an argument that is not sent, and of which nothing more is known."""

    def __repr__(self) -> str:
        return "..."


_NOT_SENT = _NotSent()
#: Parameter of a tool whose schema allows arguments that it does not name.
_REST = "more"


def _signature(schema: dict[str, Any], names: dict[str, str]) -> inspect.Signature:
    """Required arguments first, by position or name; then the others, by name alone. `...`: not sent."""
    properties = _properties(schema)
    listed = schema.get("required")
    wanted = {key for key in listed if isinstance(key, str)} if isinstance(listed, list) else set()
    required = [key for key in properties if key in wanted]
    parameters = [
        inspect.Parameter(
            names[key],
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            annotation=_annotation(properties[key], schema),
        )
        for key in required
    ]
    parameters += [
        inspect.Parameter(
            names[key],
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(properties[key]),
            annotation=_annotation(properties[key], schema),
        )
        for key in properties
        if key not in wanted
    ]
    more = schema.get("additionalProperties")
    if more or (more is None and "properties" not in schema):
        parameters.append(inspect.Parameter(_REST, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _default(schema: Any) -> Any:
    """What the tool takes for an argument that is not given, as far as its schema says it; it is never sent."""
    default = schema.get("default", _NOT_SENT) if isinstance(schema, dict) else _NOT_SENT
    return default if default is None or isinstance(default, (str, int, float, bool)) else _NOT_SENT


def _annotation(schema: Any, root: dict[str, Any], depth: int = 0, room: list[None] | None = None) -> Any:
    """The Python type that comes closest to a schema. `room`: an item for each type that may still be looked at."""
    schema = _resolved(schema, root)
    room = [None] * TYPES if room is None else room
    if not isinstance(schema, dict) or depth > DEPTH or not room:
        return typing.Any
    room.pop()
    if "const" in schema:
        return _literal([schema["const"]])
    if isinstance(schema.get("enum"), list):
        return _literal(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return _union([_annotation(member, root, depth + 1, room) for member in schema[key][: MEMBERS + 1]])
    kind = schema.get("type")
    if isinstance(kind, list):
        members = [{**schema, "type": member} for member in kind[: MEMBERS + 1]]
        return _union([_annotation(member, root, depth + 1, room) for member in members])
    if kind == "array" and isinstance(schema.get("items"), dict):
        return list[_annotation(schema["items"], root, depth + 1, room)]  # type: ignore[misc]  # made at run time
    return _SIMPLE.get(kind, typing.Any) if isinstance(kind, str) else typing.Any


def _resolved(schema: Any, root: dict[str, Any]) -> Any:
    """What a local reference leads to; None where it leads nowhere."""
    for _step in range(DEPTH):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str):
            return schema
        if not reference.startswith("#/"):
            return None
        schema = root
        for token in reference[2:].split("/"):
            schema = schema.get(token.replace("~1", "/").replace("~0", "~")) if isinstance(schema, dict) else None
    return None


def _literal(values: list[Any]) -> Any:
    if 0 < len(values) <= MEMBERS and all(value is None or isinstance(value, (str, int, bool)) for value in values):
        return typing.Literal[tuple(values)]
    kinds = {type(value) for value in values}
    return kinds.pop() if len(kinds) == 1 else typing.Any


def _union(members: list[Any]) -> Any:
    if not 0 < len(members) <= MEMBERS or typing.Any in members:
        return typing.Any
    return functools.reduce(operator.or_, members)


def _doc(definition: dict[str, Any], server: str, names: dict[str, str], schema: dict[str, Any]) -> str:
    words = str(definition.get("description") or definition.get("title") or "").strip()
    lines = [words or f"The tool {definition['name']} of {server}."]
    described = _described(names, schema)
    if described:
        lines += ["", "Arguments:", *described]
    lines += ["", f"Tool {definition['name']!r} of the MCP server {server!r}. Returns its complete result (.text)."]
    output = definition.get("outputSchema")
    shape = _shape(output, output, [None] * TYPES) if isinstance(output, dict) else ""
    lines += [f"Its .data: {shape}"] if shape else []
    text = "\n".join(lines)
    return text if len(text) <= DOC_BYTES else f"{text[:DOC_BYTES]}..."


def _described(names: dict[str, str], schema: dict[str, Any]) -> list[str]:
    """A line for each argument that has more to it than its annotation."""
    room = [None] * DOC_TYPES
    lines = []
    for key, python in names.items():
        asked = _properties(schema)[key]
        about = _resolved(asked, schema)
        told = [one["description"] for one in (asked, about) if isinstance(one, dict) and "description" in one]
        words = [
            _shape(asked, schema, room),
            " ".join(str(told[0]).split())[:ARGUMENT_BYTES] if told else "",
            f"sent as {key!r}" if key != python else "",
        ]
        if any(words):
            lines.append(f"    {python}: {'; '.join(filter(None, words))}")
    return lines


def _shape(schema: Any, root: dict[str, Any], room: list[None]) -> str:
    """The type in words, where objects in it name their properties: `list[{sku: str, count: int = 1}]`; else ""."""
    text = _words(schema, root, 0, room)
    return text[:ARGUMENT_BYTES] if "{" in text else ""


def _words(schema: Any, root: dict[str, Any], depth: int, room: list[None]) -> str:
    found = _resolved(schema, root)
    if not isinstance(found, dict) or depth > DEPTH or not room:
        return "Any"
    room.pop()
    for key in ("anyOf", "oneOf"):
        if isinstance(found.get(key), list):
            return " | ".join(_words(member, root, depth + 1, room) for member in found[key][:MEMBERS])
    kind = found.get("type")
    if kind == "null":
        return "None"
    if kind == "array" and isinstance(found.get("items"), dict):
        return f"list[{_words(found['items'], root, depth + 1, room)}]"
    properties = _properties(found)
    if not properties or kind not in ("object", None):
        plain: str = inspect.formatannotation(_annotation(found, root, depth, room))
        return plain.replace("typing.", "")
    listed = found.get("required")
    fields = []
    for name, member in list(properties.items())[:MEMBERS]:
        wanted = isinstance(listed, list) and name in listed
        default = "" if wanted else f" = {_default(member)!r}"
        fields.append(f"{name[:NAME]}: {_words(member, root, depth + 1, room)}{default[:NAME]}")
    more = ", ..." if len(properties) > MEMBERS else ""
    return f"{{{', '.join(fields)}{more}}}"


def _line(definition: dict[str, Any], function: Any) -> str:
    """A tool as its signature and the first line of what it says of itself."""
    said = str(definition.get("description") or definition.get("title") or "").strip().partition("\n")[0][:LINE]
    return f"{function.__name__}{inspect.signature(function)}{' - ' if said else ''}{said}"


def _python_names(names: list[str]) -> dict[str, str]:
    """Name -> a Python identifier of its own; those that are identifiers already keep theirs."""
    made = {name: name for name in names if name.isidentifier() and not keyword.iskeyword(name) and name != _REST}
    taken = set(made.values())
    numbers: dict[str, int] = {}  # of each base, where to go on: ten thousand names may have the same
    for name in names:
        if name in made:
            continue
        base = identifier(name) or "_"
        base = base if base.isidentifier() else f"_{base}"
        base = f"{base}_" if keyword.iskeyword(base) or base == _REST else base
        python = base
        while python in taken:
            number = numbers[base] = numbers.get(base, 1) + 1
            python = f"{base}_{number}"
        made[name] = python
        taken.add(python)
    return {name: made[name] for name in names}
