"""What is in the namespace, told without running any of the user's code.

The frame is answered by the reader thread, so also while a cell runs: copying a dict's items is one step under the GIL,
and a type's name is read past its metaclass. `repl_namespace` tells a little more, in the cell that asks.
"""

from __future__ import annotations

import sys

from .preview import clip, name_of, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..wire.frames import Frame

#: Names in one answer, the newest, and bytes of each: the frame stays far below its limit.
NAMES = 500
NAME_BYTES = 100


#: Types with a `shape` that is theirs and not the user's: module -> names in it.
SHAPED = {"numpy": ("ndarray",), "pandas": ("DataFrame", "Series"), "polars": ("DataFrame", "Series")}
_SIZED: dict[type, str] = {
    str: "character",
    bytes: "byte",
    bytearray: "byte",
    list: "item",
    tuple: "item",
    dict: "item",
    set: "item",
    frozenset: "item",
}
_FUNCTION = type(lambda: None)


def users_items(namespace: dict[str, object], given: frozenset[str]) -> list[tuple[str, object]]:
    """Names and values, but for `given` (ours) and the module's own dunder names."""
    return [
        (name, value)
        for name, value in list(namespace.items())
        if type(name) is str and name not in given and not (name.startswith("__") and name.endswith("__"))
    ]


def inspect(number: object, namespace: dict[str, object], given: frozenset[str]) -> Frame:
    """The `namespace` frame: names and types of what the user has defined."""
    items = users_items(namespace, given)
    names = [[_short(name), _short(name_of(value))] for name, value in items[-NAMES:]]
    return {"frame": "namespace", "id": number, "names": names, "total": len(items)}


def described(namespace: dict[str, object], given: frozenset[str]) -> dict[str, str]:
    """Name -> type and size of what the user has defined, in the order of definition."""
    return {name: _short(_description(value)) for name, value in users_items(namespace, given)}


def _description(value: Any) -> str:
    kind = type(value)
    named = name_of(value)
    # By its metaclass first: hashing a class may run that.
    if type(kind) is type and kind in _SIZED:
        size = len(value)
        return f"{named}, {size:,} {_SIZED[kind]}{'' if size == 1 else 's'}"
    if kind is _FUNCTION:
        code = value.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return f"{named} ({', '.join(names)})"
    shape = _shape(value)
    return f"{named}, {shape}" if shape else named


def _shape(value: Any) -> str:
    """The shape of an array or a frame of a library's own exact type, or nothing."""
    kind = type(value)
    for module, types in SHAPED.items():
        names = getattr(sys.modules.get(module), "__dict__", {})
        if any(names.get(name) is kind for name in types) and kind.__module__.partition(".")[0] == module:
            shape = value.shape
            if type(shape) is tuple and all(type(length) is int for length in shape):
                return " x ".join(f"{length:,}" for length in shape) or "no dimension"
    return ""


def _short(text: str) -> str:
    return clip(printable(text), NAME_BYTES)[0]
