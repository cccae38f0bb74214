"""Whose coroutine is it: a cell's, or a library's."""

from __future__ import annotations

import types

from . import origin
from .shapes import member_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: Objects that end an asynchronous generator: they are on their way out by themselves.
_ENDING = frozenset(("async_generator_athrow", "async_generator_asend"))
_CHAIN = 200
#: What a type written in C shows of its objects, Cython's coroutines among them. Looking at anything else of what a
#: coroutine awaits may run code of a library or the user: a proxy raises at every name.
_SHOWN = frozenset(map(id, (types.GetSetDescriptorType, types.MemberDescriptorType)))


def _shown(link: Any, names: tuple[str, ...]) -> Any:
    """The first of these attributes that is there and not None. Runs nothing."""
    kind = type(link)
    for name in names:
        found = member_of(kind, name)
        if id(type(found)) in _SHOWN:
            try:
                value = found.__get__(link, kind)
            except AttributeError:
                # A slot of a class in Python, unset.
                continue
            if value is not None:
                return value
    return None


def code_of(coroutine: Any) -> Any:
    """The code of a coroutine, generator or asynchronous generator, or None. Runs nothing."""
    code = _shown(coroutine, ("cr_code", "gi_code", "ag_code"))
    return code if type(code) is types.CodeType else None


def _chain(coroutine: Any) -> Iterator[Any]:
    """A coroutine and what it awaits, as far as the interpreter shows it."""
    for _step in range(_CHAIN):
        if coroutine is None:
            return
        yield coroutine
        coroutine = _shown(coroutine, ("cr_await", "gi_yieldfrom", "ag_await"))


def ends_by_itself(coroutine: Any) -> bool:
    """Whether this is the end of an asynchronous generator."""
    return type(coroutine).__name__ in _ENDING


def runs_cell_code(coroutine: Any) -> bool:
    """Whether a cell's code is on the await chain of this coroutine."""
    for link in _chain(coroutine):
        if type(link).__name__ in _ENDING:
            return True
        code = code_of(link)
        if code is not None and origin.is_cell(code.co_filename):
            return True
    return False
