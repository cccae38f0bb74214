"""A tool's schema as one line of Python: `create_issue(title: str, body: str = None, labels: list[str] = [])`."""

from __future__ import annotations

import keyword
from collections.abc import Mapping

_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict",
    "array": "list",
}
_DEPTH = 4
"""levels of types inside types; what is deeper is `object`."""
_CHOICES = 6
"""values of an `enum` that are listed; more are only a type."""
_ALTERNATIVES = 20
"""members of an `anyOf` that are looked at: references multiply them with those of the next level."""
_DEFAULT = 40
"""characters of a default value."""
_PARAMETERS = 24
"""parameters that are listed, and fields of one object."""
_LOOKED_AT = 2_000
"""types that are looked at for one text."""
_DESCRIBED = 200
"""parameters that are described."""
_SHAPE = 600
"""characters of what is said about the shape of one parameter or result."""
_TAKEN = {"server", "tool", "arguments", "timeout"}
"""names that `mcp.call` keeps for itself."""
_BOUNDS = (
    *("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern"),
    *("format", "minItems", "maxItems", "uniqueItems"),
)
"""words of a schema that are shown as they are."""
_SUMMARY = 120
"""characters of a description's first sentence."""


def signature(name: str, schema: object) -> str:
    """The call that `schema` describes; `name(...)` when it describes none.

    Required parameters come first, optional ones have their default, None where the schema names none. Parameters whose
    names Python does not allow, or `mcp.call` has for itself, stand in `arguments={...}`, as they are given in a call.
    """
    properties = schema.get("properties", {}) if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return f"{name}(...)"
    wanted = _required(schema)
    kinds = _Kinds(schema)
    first = [parameter for parameter in properties if parameter in wanted]
    others = [parameter for parameter in properties if parameter not in wanted]
    shown: list[str] = []
    awkward: list[str] = []
    for parameter in [*first, *others][:_PARAMETERS]:
        kind = kinds.of(properties[parameter])
        default = "" if parameter in wanted else f" = {_default(properties[parameter])}"
        if not parameter.isidentifier() or keyword.iskeyword(parameter) or parameter in _TAKEN:
            awkward.append(f"{parameter!r}: {kind}{default}")
        else:
            shown.append(f"{parameter}: {kind}{default}")
    if len(properties) > _PARAMETERS:
        shown.append("...")
    if awkward:
        shown.append(f"arguments={{{', '.join(awkward)}}}")
    return f"{name}({', '.join(shown)})"


def parameters(schema: object) -> list[str]:
    """A line for each parameter of which there is more to say than `signature` does: fields of objects inside it,
    bounds, its description.
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    kinds, shapes = _Kinds(schema), _Kinds(schema, shapes=True)
    lines = []
    for name, asked in list(properties.items())[:_DESCRIBED] if isinstance(properties, dict) else ():
        told = _followed(schema, asked)
        shape = shapes.of(asked)
        words = [] if shape == kinds.of(asked) else [shape[:_SHAPE]]
        words += [f"{word} {_short(told[word])}" for word in _BOUNDS if word in told]
        description = asked.get("description", told.get("description")) if isinstance(asked, dict) else None
        words += [description] if isinstance(description, str) and description else []
        if words:
            lines.append(f"{name}: {'; '.join(words)}")
    return lines


def returns(schema: object) -> str:
    """What a schema says of a tool's structured result, as a type; "" when it says nothing."""
    shape = _Kinds(schema, shapes=True).of(schema)
    return "" if shape in ("object", "dict") else shape[:_SHAPE]


def brief(definition: Mapping[str, object]) -> str:
    """One line about a tool: its signature and the first sentence of its description."""
    line = signature(str(definition.get("name")), definition.get("inputSchema"))
    summary = first_sentence(definition.get("description") or definition.get("title"))
    return f"{line} - {summary}" if summary else line


def first_sentence(description: object) -> str:
    """The first sentence of a description on one line, at most 120 characters; "" when there is none."""
    if not isinstance(description, str):
        return ""
    # A description may be a megabyte long, and all that is wanted stands at its beginning.
    line = " ".join(description[: 20 * _SUMMARY].strip().partition("\n\n")[0].split())
    end = line.find(". ")
    sentence = line if end < 0 else line[: end + 1]
    return sentence if len(sentence) <= _SUMMARY else sentence[: _SUMMARY - 3].rstrip() + "..."


class _Kinds:
    """Schemas as Python types. `shapes`: an object that names its properties is `{name: type}` and not `dict`.

    One of these is for one text: it looks at so many types and no more, because references multiply them.
    """

    def __init__(self, root: object, *, shapes: bool = False) -> None:
        self._root = root
        self._shapes = shapes
        self._room = _LOOKED_AT

    def of(self, schema: object, depth: int = _DEPTH) -> str:
        """The type, `object` for what is not known, too deep or too many."""
        self._room -= 1
        if not isinstance(schema, dict) or depth <= 0 or self._room < 0:
            return "object"
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self.of(_target(self._root, reference), depth - 1)
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(choices, list) and 0 < len(choices) <= _CHOICES and all(map(_is_plain, choices)):
            return f"Literal[{', '.join(_short(choice) for choice in choices)}]"
        for word in ("anyOf", "oneOf"):
            alternatives = schema.get(word)
            if isinstance(alternatives, list) and alternatives:
                if len(alternatives) > _ALTERNATIVES:
                    return "object"
                return _union([self.of(alternative, depth - 1) for alternative in alternatives])
        declared = schema.get("type")
        names = declared if isinstance(declared, list) else [declared]
        if len(names) > len(_TYPES):
            return "object"
        return _union([self._named(name, schema, depth) for name in names])

    def _named(self, name: object, schema: dict[str, object], depth: int) -> str:
        kind = _TYPES.get(name, "object") if isinstance(name, str) else "object"
        if kind == "list" and isinstance(items := schema.get("items"), dict):
            return f"list[{self.of(items, depth - 1)}]"
        properties = schema.get("properties")
        if kind == "dict" and self._shapes and isinstance(properties, dict) and properties:
            return self._shape(properties, _required(schema), depth)
        return kind

    def _shape(self, properties: dict[str, object], wanted: set[str], depth: int) -> str:
        fields = []
        for name, schema in list(properties.items())[:_PARAMETERS]:
            default = "" if name in wanted else f" = {_default(schema)}"
            fields.append(f"{_name(name)}: {self.of(schema, depth - 1)}{default}")
        if len(properties) > _PARAMETERS:
            fields.append("...")
        return f"{{{', '.join(fields)}}}"


def _union(kinds: list[str]) -> str:
    unique = list(dict.fromkeys(kinds))
    return "object" if "object" in unique or len(unique) > _CHOICES else " | ".join(unique)


def _required(schema: object) -> set[str]:
    required = schema.get("required") if isinstance(schema, dict) else None
    return {entry for entry in required if isinstance(entry, str)} if isinstance(required, list) else set()


def _name(name: str) -> str:
    # Cut, because references multiply names, too.
    name = name if len(name) <= _DEFAULT else f"{name[:_DEFAULT]}..."
    return name if name.isidentifier() else repr(name)


def _followed(root: object, schema: object) -> dict[str, object]:
    """The schema that a reference leads to in the end; an empty one where it leads nowhere."""
    for _step in range(_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str):
            return schema if isinstance(schema, dict) else {}
        schema = _target(root, reference)
    return {}


def _target(root: object, reference: str) -> object:
    """What a reference inside the schema leads to; None for every other one."""
    if not reference.startswith("#/"):
        return root if reference == "#" else None
    found = root
    for step in reference[2:].split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _default(schema: object) -> str:
    if not isinstance(schema, dict) or "default" not in schema:
        return "None"
    return _short(schema["default"])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _DEFAULT else "..."


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)
