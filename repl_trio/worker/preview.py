"""What a cell's value looks like: a bounded preview.

Only identity and `type()` are used on the user's values: never `==`, `bool`, `len`, iteration or attribute access of a
type that is not exactly a builtin one, because each of those may run code that fails, lies or never ends. Nor is a
class hashed or compared whose metaclass may be the user's. Builtin containers are walked within the byte bound, so ten
million elements cost no more than a thousand. Other objects show their own `repr`, called through the gate.
"""

from __future__ import annotations

import _thread
import sys
from itertools import islice
from time import monotonic

from ..limits import DEFAULT
from . import border
from .gate import interrupts, outcome_of
from .isolation import isolated_import
from .shapes import CHUNK, TUPLE, Shape, library_class, opening_of, plain_text, shape_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

#: Containers inside one another that a preview opens.
DEPTH = 30
#: Bytes of the preview kept free for the brackets and notes that close open containers.
RESERVE = 2_000
#: Bits of an int that still has fewer digits than `sys.get_int_max_str_digits` allows by default (4,300), and of one
#: that is still shown when a cell has raised that.
INT_BITS = 14_280
RAISED_INT_BITS = 60_000
#: The classes of the exceptions that an interrupt raises, by name: `asyncio` may not be loaded.
INTERRUPTS = ("KeyboardInterrupt", "CancelledError")
#: Classes of libraries whose repr has no bound, or leaves out what would fit: `libraries` knows their text.
LIBRARY_CLASSES = (("numpy", "ndarray"), ("pandas", "DataFrame"), ("pandas", "Series"))

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


class Preview:
    """The text of a value and what became of it."""

    __slots__ = ("cut", "interrupt", "text", "told", "walked", "whole")

    def __init__(self, text: str, *, cut: bool = False) -> None:
        self.text = text
        #: Whether the text is shortened.
        self.cut = cut
        #: The interrupt that landed in a `repr`, or None.
        self.interrupt: BaseException | None = None
        #: The value's whole repr, when it has one of its own.
        self.whole: str | None = None
        #: Whether the value is a container that was walked: a longer walk shows more of it.
        self.walked = False
        #: (object, its repr) of each that was asked, in order.
        self.told: list[tuple[object, str]] = []


_SCALARS = frozenset((type(None), bool, float, complex, type(...), type(NotImplemented), range))


class _Walk:
    """One preview being written. `told` are reprs that an earlier walk over the same value has asked for."""

    def __init__(self, size: int, told: list[tuple[object, str]], seconds: float) -> None:
        self.parts: list[str] = []
        self.made = Preview("")
        # A bound that leaves no room beside the notes leaves the notes.
        self._left = max(0, size - RESERVE)
        self._open: set[int] = set()
        self._replay = iter(told)
        self._deadline = monotonic() + seconds if seconds else 0.0

    def write(self, text: str) -> None:
        """Append a text whole, or raise `_Full`: half a number would be another number."""
        size = len(text) if text.isascii() else len(text.encode("utf-8"))
        if size > self._left:
            raise _Full
        self._left -= size
        self.parts.append(text)

    def write_part(self, text: str) -> None:
        """Append a text, or raise `_Full` with as much of it appended as fits."""
        # A character takes at least one byte: of a huge text no more is looked at.
        kept, cut = clip(printable(text[: self._left + 1]), self._left)
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
            self.write(_digits(value))
        elif type(kind) is not type:
            self._foreign(value)
        elif kind in _SCALARS:
            # A range of huge ints has no text within the interpreter's limit on digits.
            text = asked(repr, value)[0] if kind is range else repr(value)
            self.write(text or "<range of huge ints>")
        else:
            shape = shape_of(value)
            if shape is None:
                self._foreign(value)
            else:
                self.made.walked = True
                self._container(value, shape)

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
        raise _Full

    def _container(self, value: Any, shape: Shape) -> None:
        if id(value) in self._open:
            self.write(f"{shape.opening}...{shape.closing}")
            return
        if shape.empty and not shape.length(value):
            self.write(shape.empty)
            return
        if len(self._open) >= DEPTH:
            self.write(f"{shape.opening}...{shape.closing}")
            self.made.cut = True
            return
        self._open.add(id(value))
        shown = 0
        begun = -1  # how many parts there were before the element that is being written
        try:
            closing = self._opened(value, shape)
            for part in self._parts(value, shape):
                text = plain_text(part, self._left, pairs=shape.pairs, nested=len(self._open) < DEPTH)
                if text is not None and self._fits(text):
                    self.write(f", {text}" if shown else text)
                    shown += len(part)
                    continue
                for item in part:
                    if shown:
                        self.write(", ")
                    begun = len(self.parts)
                    self._item(item, pair=shape.pairs)
                    begun = -1
                    shown += 1
            if shape is TUPLE and shown == 1:
                self.write(",")
        except _Full:
            partly = 0 <= begun < len(self.parts)
            self.parts.append(self._left_out(shape.length(value) - shown - partly) + shape.closing)
            raise
        finally:
            self._open.discard(id(value))
        # Appended in any case; there is room for those of the containers that are open now.
        self._left -= len(closing)
        self.parts.append(closing)

    def _left_out(self, more: int) -> str:
        """The note on elements that are not shown, not even in part."""
        last = self.parts[-1] if self.parts else ""
        if last.endswith(": "):
            # Of a pair, there was room for the key alone.
            return "..." + (f", ... {more:,} more item{'' if more == 1 else 's'}" if more else "")
        comma = "" if last.endswith((", ", "[", "{", "(")) else ", "
        return f"{comma}... {more:,} more item{'' if more == 1 else 's'}" if more else ""

    def _opened(self, value: Any, shape: Shape) -> str:
        """Write what stands before the elements: what shall stand behind them."""
        opening, named, following, closing = opening_of(value, shape)
        self.write(opening)
        if named is not None:
            self.value(*named)
            self.write(following)
        return closing

    def _parts(self, value: Any, shape: Shape) -> Iterator[list[Any]]:
        """The elements, some at a time."""
        items = iter(shape.items(value))
        try:
            while part := list(islice(items, CHUNK)):
                yield part
                self._look_at_clock()
        except RuntimeError:
            # A repr, or another thread, changed the container while it was being shown.
            self.write("... changed meanwhile")

    def _look_at_clock(self) -> None:
        if self._deadline and monotonic() > self._deadline:
            raise _Full

    def _fits(self, text: str) -> bool:
        return len(text) + 2 <= self._left if text.isascii() else len(text.encode("utf-8", "replace")) + 2 <= self._left

    def _item(self, item: Any, *, pair: bool) -> None:
        self._look_at_clock()
        if pair:
            self.value(item[0])
            self.write(": ")
            self.value(item[1])
        else:
            self.value(item)

    def _foreign(self, value: Any) -> None:
        if self.made.interrupt is not None:
            self.write(f"<{name_of(value)} object>")
            return
        text = self._told(value)
        if not self._open:
            self.made.whole = text
        self.made.told.append((value, text))
        self.write_part(text)

    def _told(self, value: Any) -> str:
        """The text of an object that has one of its own, or a note in its place."""
        told, text = next(self._replay, (self, ""))
        if told is value:
            return text
        self._replay = iter(())
        own = _library_text(value)
        text, error, interrupted = asked(own or repr, value)
        if error is not None and own is not None and not interrupted:
            text, error, interrupted = asked(repr, value)
        if error is None:
            # A repr may return a subclass of str with methods of its own.
            return _plain_text(text)
        if interrupted:
            self.made.interrupt = error
            return f"<{name_of(value)} object; its repr was interrupted>"
        return f"<{name_of(value)} object; its repr failed: {one_line(error)}>"


def _digits(value: int) -> str:
    bits = value.bit_length()
    most = INT_BITS
    if bits > INT_BITS:
        digits = getattr(sys, "get_int_max_str_digits", int)()
        most = RAISED_INT_BITS if digits == 0 or digits > bits * 0.302 + 1 else INT_BITS
    try:
        return repr(value) if bits <= most else f"<int with {bits} bits>"
    except ValueError:
        # A cell has lowered the interpreter's limit on digits.
        return f"<int with {bits} bits>"


def _library_text(value: object) -> Callable[[object], str] | None:
    """What makes the text of an object of a library class, None for every other."""
    kind = type(value)
    for module, name in LIBRARY_CLASSES:
        if kind is library_class(module, name):
            return getattr(isolated_import("_repl_trio.worker.libraries"), name)  # type: ignore[no-any-return]
    return None


def asked(call: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None, bool]:
    """Call something of the user's: (its value, what left it, whether that is an interrupt of this run).

    Also from below the gate, and on any thread: no interrupt is for another than the main one.
    """
    before = interrupts.count
    if _thread.get_ident() == interrupts.thread:
        value, error = outcome_of(border.within, call, *arguments)
        # As KeyboardInterrupt, or as what cancels the task that a loop is running.
        return value, error, error is not None and interrupts.count > before and not issubclass(type(error), Exception)
    try:
        return call(*arguments), None, False
    except BaseException as error:  # noqa: BLE001 - shown as a note, like all that a repr may raise
        return None, error, False


def one_line(error: BaseException) -> str:
    """An exception as a note of one line."""
    text, failure, _interrupted = asked(str, error)
    if failure is not None:
        return name_of(error)
    kept, cut = clip(printable(_plain_text(text)[:1_000]), 300)
    return " ".join(f"{name_of(error)}: {kept}{'...' if cut else ''}".split())


def preview(
    value: object,
    size: int = DEFAULT.preview_bytes,
    told: Iterable[tuple[object, str]] = (),
    seconds: float = 0.0,
) -> Preview:
    """The preview of a value, at most `size` bytes; a walk that takes longer than `seconds` is cut, if they are given.

    `told` of an earlier preview of the same value keeps its objects from being asked for their `repr` once more.
    """
    walk = _Walk(size, list(told), seconds)
    made = walk.made
    try:
        walk.value(value)
    except _Full:
        made.cut = True
    except RecursionError:
        # A repr has lowered the limit under our feet.
        walk.parts.append("...")
        made.cut = True
    made.text, cut = clip("".join(walk.parts), size)
    made.cut = made.cut or cut
    return made
