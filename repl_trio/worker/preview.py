"""What a cell's value looks like: a bounded preview, and its exact JSON equal where there is one.

Only identity and `type()` are used on the user's values: never `==`, `bool`, `len`, iteration or attribute access of a
type that is not exactly a builtin one, because each of those may run code that fails, lies or never ends. Builtin
containers are walked within the byte bound, so ten million elements cost no more than a thousand. Other objects show
their own `repr`, called through the gate.
"""

from __future__ import annotations

from ..limits import DEFAULT
from ..wire import jsontext
from .gate import interrupts, outcome_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: Containers inside one another that a preview opens.
DEPTH = 30
#: Bytes of the preview kept free for the brackets and notes that close open containers.
RESERVE = 2_000
#: Bits of an int that still has fewer digits than `sys.get_int_max_str_digits` allows by default (4,300).
INT_BITS = 14_280
#: The classes of the exceptions that an interrupt raises, by name: `asyncio` may not be loaded.
INTERRUPTS = ("KeyboardInterrupt", "CancelledError")
#: The largest integer that every JSON reader keeps exactly.
SAFE_INT = 2**53 - 1
#: Bytes of JSON, containers inside one another, and nodes of an exact value.
VALUE_BYTES = 65_536
VALUE_DEPTH = 32
VALUE_NODES = 8_192

_type_name = type.__dict__["__name__"].__get__
_plain_text = str.__str__


def name_of(value: object) -> str:
    """The name of a value's class, without running anything of a metaclass."""
    return str(_type_name(type(value)))


def printable(text: str) -> str:
    """The text with lone surrogates escaped, so that it has a UTF-8 form."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def clip(text: str, size: int) -> tuple[str, bool]:
    """(the longest beginning of a printable text within `size` bytes of UTF-8, whether something was cut)."""
    if len(text) * 4 <= size:
        return text, False
    raw = text.encode("utf-8")
    if len(raw) <= size:
        return text, False
    return raw[:size].decode("utf-8", "ignore"), True


class _Full(Exception):
    """The preview has reached its bound."""


class _Walk:
    """One preview being written."""

    def __init__(self, size: int) -> None:
        self.parts: list[str] = []
        self.cut = False
        self.interrupt: BaseException | None = None
        self._left = size - RESERVE
        self._open: set[int] = set()

    def write(self, text: str) -> None:
        """Append a text whole, or raise `_Full`: half a number would be another number."""
        size = len(text) if text.isascii() else len(text.encode("utf-8"))
        if size > self._left:
            raise _Full
        self._left -= size
        self.parts.append(text)

    def write_part(self, text: str) -> None:
        """Append a text, or raise `_Full` with as much of it appended as fits."""
        kept, cut = clip(text, self._left)
        self.write(kept)
        if cut:
            self.parts.append("...")
            raise _Full

    def value(self, value: Any) -> None:
        """Append the preview of any value."""
        kind = type(value)
        if kind is str or kind is bytes or kind is bytearray:
            self._string(value)
        elif kind is int:
            bits = value.bit_length()
            self.write(repr(value) if bits <= INT_BITS else f"<int with {bits} bits>")
        elif kind in _CONTAINERS:
            self._container(value, kind)
        elif kind in _SCALARS:
            self.write(repr(value))
        else:
            self._foreign(value)

    def _string(self, value: Any) -> None:
        length = len(value)
        # A character takes at least one byte, so more of them than bytes left need not be looked at.
        if length <= self._left:
            text = printable(repr(value))
            if len(text) + 60 <= self._left or len(text.encode("utf-8")) <= self._left:
                self.write(text)
                return
        note = f"... {length:,} {'characters' if type(value) is str else 'bytes'} in all"
        text = printable(repr(value[: self._left]))
        kept, _cut = clip(text, max(0, self._left))
        self.parts += (kept, note)
        self._left = 0
        self.cut = True
        raise _Full

    def _container(self, value: Any, kind: type) -> None:
        opening, closing, empty = _CONTAINERS[kind]
        if id(value) in self._open:
            self.write(f"{opening}...{closing}")
            return
        if not value:
            self.write(empty)
            return
        if len(self._open) >= DEPTH:
            self.write(f"{opening}...{closing}")
            self.cut = True
            return
        self.write(opening)
        self._open.add(id(value))
        shown = 0
        try:
            for item in self._items(value, kind):
                self._item(item, kind, ", " if shown else "")
                shown += 1
            if kind is tuple and shown == 1:
                self.write(",")
        except _Full:
            # An item that was cut in its middle counts as left out.
            more = len(value) - shown
            comma = "" if self.parts[-1] in (", ", opening) else ", "
            self.parts.append(f"{comma}... {more:,} more item{'' if more == 1 else 's'}{closing}")
            raise
        finally:
            self._open.discard(id(value))
        self.parts.append(closing)

    def _items(self, value: Any, kind: type) -> Iterator[Any]:
        try:
            yield from value.items() if kind is dict else value
        except RuntimeError:
            # A repr, or another thread, changed the container while it was being shown.
            self.write("... changed meanwhile")

    def _item(self, item: Any, kind: type, comma: str) -> None:
        if comma:
            self.write(comma)
        if kind is dict:
            self.value(item[0])
            self.write(": ")
            self.value(item[1])
        else:
            self.value(item)

    def _foreign(self, value: Any) -> None:
        if self.interrupt is not None:
            self.write(f"<{name_of(value)} object>")
            return
        text, error = outcome_of(repr, value)
        if error is None:
            # A repr may return a subclass of str with methods of its own.
            self.write_part(printable(_plain_text(text)))
            return
        if interrupts.landed and isinstance(error, KeyboardInterrupt):
            self.interrupt = error
            self.write(f"<{name_of(value)} object; its repr was interrupted>")
            return
        self.write(f"<{name_of(value)} object; its repr failed: {_one_line(error)}>")


_CONTAINERS: dict[type, tuple[str, str, str]] = {
    list: ("[", "]", "[]"),
    tuple: ("(", ")", "()"),
    dict: ("{", "}", "{}"),
    set: ("{", "}", "set()"),
    frozenset: ("frozenset({", "})", "frozenset()"),
}
_SCALARS = frozenset((type(None), bool, float, complex, type(...), type(NotImplemented), range))


def _one_line(error: BaseException) -> str:
    text, failure = outcome_of(str, error)
    if failure is not None:
        return name_of(error)
    kept, cut = clip(printable(_plain_text(text)), 300)
    return " ".join(f"{name_of(error)}: {kept}{'...' if cut else ''}".split())


def preview(value: object, size: int = DEFAULT.preview_bytes) -> tuple[str, bool, BaseException | None]:
    """(the preview, whether it is shortened, the interrupt that landed in a `repr` or None). At most `size` bytes."""
    walk = _Walk(size)
    try:
        walk.value(value)
    except _Full:
        walk.cut = True
    text, cut = clip("".join(walk.parts), size)
    return text, walk.cut or cut, walk.interrupt


class _Inexact(Exception):
    """The value has no exact JSON equal within the bounds."""


class _Copy:
    """One exact copy being made, counted in nodes and bytes."""

    def __init__(self) -> None:
        self._nodes = VALUE_NODES
        self._bytes = VALUE_BYTES

    def of(self, value: Any, depth: int) -> Any:
        """The copy of a value at this depth. Raises `_Inexact`."""
        kind = type(value)
        self._nodes -= 1
        if self._nodes < 0 or depth > VALUE_DEPTH:
            raise _Inexact
        if kind is str:
            return self._text(value)
        if kind is int:
            if not -SAFE_INT <= value <= SAFE_INT:
                raise _Inexact
        elif kind is float:
            if value - value != 0.0:
                raise _Inexact
        elif kind is list:
            # Every element is a node: a longer list cannot fit and is not worth beginning.
            if len(value) > self._nodes:
                raise _Inexact
            return [self.of(item, depth + 1) for item in value]
        elif kind is dict:
            if len(value) > self._nodes:
                raise _Inexact
            return {self._key(key): self.of(item, depth + 1) for key, item in value.items()}
        elif kind is not bool and value is not None:
            raise _Inexact
        return value

    def _key(self, key: Any) -> str:
        if type(key) is not str:
            raise _Inexact
        return self._text(key)

    def _text(self, text: str) -> str:
        self._bytes -= len(text)
        if self._bytes < 0:
            raise _Inexact
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                raise _Inexact from None
        return text


def exact_json(value: object) -> tuple[bool, Any]:
    """(True, a copy of the value) when that is its exact JSON equal within the bounds, else (False, None).

    None has no value: nothing is what it says.
    """
    kind = type(value)
    if kind is bool or (kind is int and -SAFE_INT <= value <= SAFE_INT):  # type: ignore[operator]
        return True, value
    if value is None:
        return False, None
    try:
        copy = _Copy().of(value, 1)
        exact = len(jsontext.dumps(copy)) <= VALUE_BYTES
    except (_Inexact, RuntimeError):
        # RuntimeError: another thread changed a dict while it was being copied.
        return False, None
    return (True, copy) if exact else (False, None)
