"""How containers of the standard library are written, and runs of plain elements of them in one step, at C's speed.

Nothing of the user's runs here: elements are looked at by `type()` alone, and only exact builtins are.
"""

from __future__ import annotations

import sys
from _collections import OrderedDict, defaultdict, deque  # type: ignore[import-not-found]
from _operator import is_
from itertools import chain, repeat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

#: Elements that are written in one step, and what is in them if they are containers themselves.
CHUNK = 256
LEAVES = 4_096
#: The numbers among which an int has few digits.
FEW_DIGITS = 2**62
#: Keys of a `Counter` that its own repr may sort by their counts, and elements that an array's own repr may show.
COUNTED = 1_000
#: The letters of arrays of characters, which look like strings.
CHARACTERS = "uw"


class Shape:
    """How one kind of container is written."""

    __slots__ = ("closing", "empty", "items", "length", "opening", "pairs")

    def __init__(
        self, opening: str, closing: str, empty: str, length: Callable[[Any], int], items: Callable[[Any], Any]
    ) -> None:
        self.opening = opening
        self.closing = closing
        self.empty = empty
        self.length = length
        #: Its elements, without running anything of a subclass.
        self.items = items
        #: Whether they are keys and values, written as such.
        self.pairs = opening.endswith(("{", "(")) and (items is _dict_items or items is _ordered_items)


_dict_items = dict.items
_ordered_items: Any = OrderedDict.items
_nothing: dict[Any, Any] = {}
_KEYS: Any = type(_nothing.keys())
_VALUES: Any = type(_nothing.values())
_ITEMS: Any = type(_nothing.items())
# From 3.12 on an OrderedDict looks like a dict, before like a list of pairs.
_ORDERED = ("OrderedDict({", "})") if sys.version_info >= (3, 12) else ("OrderedDict([", "])")
_LIST = Shape("[", "]", "[]", list.__len__, list.__iter__)
TUPLE = Shape("(", ")", "()", tuple.__len__, tuple.__iter__)
_DICT = Shape("{", "}", "{}", dict.__len__, _dict_items)
_SHAPES: dict[Any, Shape] = {
    list: _LIST,
    tuple: TUPLE,
    dict: _DICT,
    set: Shape("{", "}", "set()", set.__len__, set.__iter__),
    frozenset: Shape("frozenset({", "})", "frozenset()", frozenset.__len__, frozenset.__iter__),
    deque: Shape("deque([", "])", "", deque.__len__, deque.__iter__),
    OrderedDict: Shape(*_ORDERED, "OrderedDict()", OrderedDict.__len__, _ordered_items),
    defaultdict: Shape("defaultdict(", "})", "", defaultdict.__len__, _dict_items),
    _KEYS: Shape("dict_keys([", "])", "dict_keys([])", _KEYS.__len__, _KEYS.__iter__),
    _VALUES: Shape("dict_values([", "])", "dict_values([])", _VALUES.__len__, _VALUES.__iter__),
    _ITEMS: Shape("dict_items([", "])", "dict_items([])", _ITEMS.__len__, _ITEMS.__iter__),
}
_COUNTER = Shape("Counter({", "})", "", dict.__len__, _dict_items)
#: A subclass that has not changed the `repr` of one of these looks like it.
_INHERITED = ((list.__repr__, _LIST), (tuple.__repr__, TUPLE), (dict.__repr__, _DICT))

#: The bases of a class, and what one of them has of its own, past its metaclass.
mro_of = type.__dict__["__mro__"].__get__
members_of = type.__dict__["__dict__"].__get__


def member_of(kind: type, name: str) -> Any:
    """What the class or its nearest base has under this name, or None. Runs nothing, of a metaclass neither.

    Looked up past the object: one that answers to every name has not said that it can show itself.
    """
    for base in mro_of(kind):
        members = members_of(base)
        if name in members:
            return members[name]
    return None


def library_class(module: str, name: str) -> Any:
    """A class of a module that is loaded, or None. Runs nothing of a module that is none."""
    loaded = sys.modules.get(module)
    return loaded.__dict__.get(name) if type(loaded) is type(sys) else None


def shape_of(value: Any) -> Shape | None:
    """The shape of a value whose class has the metaclass `type`; None when it is no container of ours to walk."""
    kind = type(value)
    shape = _SHAPES.get(kind)
    if shape is not None:
        return shape
    own = member_of(kind, "__repr__")
    for inherited, base in _INHERITED:
        if own is inherited:
            return base
    if kind is library_class("collections", "Counter"):
        return _COUNTER if dict.__len__(value) > COUNTED else None
    if kind is library_class("array", "array") and len(value) > COUNTED and value.typecode not in CHARACTERS:
        return Shape(f"array({value.typecode!r}, [", "])", "", kind.__len__, kind.__iter__)
    return None


def opening_of(value: Any, shape: Shape) -> tuple[str, tuple[object] | None, str, str]:
    """(what stands before the elements, an object shown there if any, what follows it, what closes all)."""
    kind = type(value)
    if kind is defaultdict:
        return shape.opening, (value.default_factory,), ", {", shape.closing
    if kind is deque and value.maxlen is not None:
        return shape.opening, None, "", f"], maxlen={value.maxlen})"
    return shape.opening, None, "", shape.closing


def plain_text(part: list[Any], room: int, *, pairs: bool, nested: bool) -> str | None:
    """The elements as Python writes them between brackets, or None when they are not all plain, or are too many.

    Plain are small numbers, short strings and, where `nested`, tuples, lists and dicts of nothing else.
    """
    kind = type(part[0])
    leaves: Iterable[Any] = part
    if pairs:
        leaves = chain.from_iterable(part)
    elif nested and (kind is tuple or kind is list or kind is dict):
        if not all(map(is_, map(type, part), repeat(kind))) or sum(map(len, part)) > LEAVES:
            return None
        leaves = chain.from_iterable(part)
        if kind is dict:
            leaves = chain(leaves, chain.from_iterable(map(dict.values, part)))
    if not _all_plain(leaves, room):
        return None
    return repr(dict(part) if pairs else part)[1:-1]


def _all_plain(leaves: Iterable[Any], room: int) -> bool:
    for leaf in leaves:
        kind = type(leaf)
        if kind is int:
            if not -FEW_DIGITS < leaf < FEW_DIGITS:
                return False
        elif kind is str:
            room -= len(leaf)
            if room < 0:
                return False
        elif kind is not float and kind is not bool and leaf is not None:
            return False
    return True
