"""Whose coroutine is it: a cell's, or a library's."""

from __future__ import annotations

from . import origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: Objects that end an asynchronous generator: they are on their way out by themselves.
_ENDING = frozenset(("async_generator_athrow", "async_generator_asend"))
_CHAIN = 200


def _chain(coroutine: Any) -> Iterator[Any]:
    """A coroutine and what it awaits, as far as the interpreter shows it."""
    for _step in range(_CHAIN):
        if coroutine is None:
            return
        yield coroutine
        for name in ("cr_await", "gi_yieldfrom", "ag_await"):
            inner = getattr(coroutine, name, None)
            if inner is not None:
                break
        coroutine = inner


def ends_by_itself(coroutine: Any) -> bool:
    """Whether this is the end of an asynchronous generator."""
    return type(coroutine).__name__ in _ENDING


def runs_cell_code(coroutine: Any) -> bool:
    """Whether a cell's code is on the await chain of this coroutine."""
    for link in _chain(coroutine):
        if type(link).__name__ in _ENDING:
            return True
        for name in ("cr_code", "gi_code", "ag_code"):
            code = getattr(link, name, None)
            if code is not None and origin.is_cell(code.co_filename):
                return True
    return False
