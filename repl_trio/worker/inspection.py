"""What is in the namespace, told without running any of the user's code.

Answered by the reader thread, so also while a cell runs: copying a dict's items is one step under the GIL, and a type's
name is read past its metaclass.
"""

from __future__ import annotations

from .preview import clip, name_of, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..wire.frames import Frame

#: Names in one answer, the newest, and bytes of each: the frame stays far below its limit.
NAMES = 500
NAME_BYTES = 100


def inspect(number: object, namespace: dict[str, object], given: frozenset[str]) -> Frame:
    """The `namespace` frame: names and types, but for `given` (ours) and the module's own dunder names."""
    items = [
        (name, value)
        for name, value in list(namespace.items())
        if type(name) is str and name not in given and not (name.startswith("__") and name.endswith("__"))
    ]
    names = [[_short(name), _short(name_of(value))] for name, value in items[-NAMES:]]
    return {"frame": "namespace", "id": number, "names": names, "total": len(items)}


def _short(text: str) -> str:
    return clip(printable(text), NAME_BYTES)[0]
