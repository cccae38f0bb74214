"""The exact JSON equal of a cell's value, where there is one. Nothing of the user's runs: see `preview`."""

from __future__ import annotations

from ..wire import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The largest integer that every JSON reader keeps exactly.
SAFE_INT = 2**53 - 1
#: Bytes of JSON, containers inside one another, and nodes of an exact value.
VALUE_BYTES = 65_536
VALUE_DEPTH = 32
VALUE_NODES = 8_192


class Inexact(Exception):
    """The value has no exact JSON equal within the bounds."""


class _Copy:
    """One exact copy being made, counted in nodes and bytes."""

    def __init__(self) -> None:
        self._nodes = VALUE_NODES
        self._bytes = VALUE_BYTES

    def of(self, value: Any, depth: int) -> Any:
        """The copy of a value at this depth. Raises `Inexact`."""
        kind = type(value)
        self._nodes -= 1
        if self._nodes < 0 or depth > VALUE_DEPTH:
            raise Inexact
        if kind is str:
            return self._text(value)
        if kind is int:
            if not -SAFE_INT <= value <= SAFE_INT:
                raise Inexact
        elif kind is float:
            if value - value != 0.0:
                raise Inexact
        elif kind is list:
            # Every element is a node: a longer list cannot fit and is not worth beginning.
            if len(value) > self._nodes:
                raise Inexact
            return [self.of(item, depth + 1) for item in value]
        elif kind is dict:
            if len(value) > self._nodes:
                raise Inexact
            return {self._key(key): self.of(item, depth + 1) for key, item in value.items()}
        elif kind is not bool and value is not None:
            raise Inexact
        return value

    def _key(self, key: Any) -> str:
        if type(key) is not str:
            raise Inexact
        return self._text(key)

    def _text(self, text: str) -> str:
        self._bytes -= len(text)
        if self._bytes < 0:
            raise Inexact
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                raise Inexact from None
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
    except (Inexact, RuntimeError):
        # RuntimeError: another thread changed a dict while it was being copied.
        return False, None
    return (True, copy) if exact else (False, None)
