"""The whole of a trailing value whose preview is shortened, as one item for the server to keep.

Loaded when there is such a value. Bounded in bytes, and in time by about a second.
"""

from __future__ import annotations

from _operator import is_
from itertools import repeat
from math import isfinite
from time import monotonic

from ..limits import DEFAULT
from ..wire import jsontext
from .exact import SAFE_INT, Inexact
from .preview import Preview, clip, preview, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .display import Display

#: Seconds for the JSON of a value, and for its text where there is none.
JSON_SECONDS = 0.5
TEXT_SECONDS = 0.6
TEXT_BYTES = min(DEFAULT.value_text_bytes, DEFAULT.artifact_bytes)
#: Containers inside one another that are looked into for exact JSON.
DEPTH = 100


def keep(display: Display, value: object, shown: Preview) -> BaseException | None:
    """Send the whole of a value whose preview `shown` is shortened. The interrupt that landed in a `repr`, or None.

    `str` as UTF-8, `bytes` as they are, containers as JSON if that is exact, else as their text; other objects' repr.
    """
    kind = type(value)
    if kind is str or shown.whole is not None:
        text: str = value if shown.whole is None else shown.whole  # type: ignore[assignment]
        kept, cut = clip(printable(text[: DEFAULT.artifact_bytes]), DEFAULT.artifact_bytes)
        complete = not cut and len(text) <= DEFAULT.artifact_bytes
        display.send("value", "value", "text/plain", kept.encode(), complete=complete)
    elif kind is bytes or kind is bytearray:
        content = bytes(value[: DEFAULT.artifact_bytes])  # type: ignore[index]
        complete = len(value) <= DEFAULT.artifact_bytes  # type: ignore[arg-type]
        display.send("value", "value", "application/octet-stream", content, complete=complete)
    elif shown.walked:
        json = _json(value)
        if json is not None:
            display.send("value", "value", "application/json", json)
            return None
        longer = preview(value, TEXT_BYTES, shown.told, TEXT_SECONDS)
        if longer.interrupt is not None:
            return longer.interrupt
        display.send("value", "value", "text/plain", longer.text.encode(), complete=not longer.cut)
    return None


def _json(value: object) -> bytes | None:
    """The exact JSON of a list or dict; None when there is none within the bounds."""
    if type(value) is not list and type(value) is not dict:
        return None
    try:
        _Check().value(value, 1)
        text = jsontext.dumps(value)
    except (Inexact, RuntimeError, ValueError, TypeError):
        # All but the first: another thread changed the value meanwhile.
        return None
    return text.encode("ascii") if len(text) <= TEXT_BYTES else None


class _Check:
    """Walks a value and raises `Inexact` when it has no exact JSON, or that would be too long."""

    def __init__(self) -> None:
        self._left = TEXT_BYTES
        self._deadline = monotonic() + JSON_SECONDS

    def value(self, container: Any, depth: int) -> None:
        """Check a list or dict at this depth."""
        # An element has two bytes at least: a digit and a comma.
        self._left -= 2 * len(container)
        if depth > DEPTH or self._left < 0 or monotonic() > self._deadline:
            raise Inexact
        if type(container) is dict:
            if not all(map(is_, map(type, container), repeat(str))):
                raise Inexact
            self._texts(list(container))
            self._elements(list(container.values()), depth)
        else:
            self._elements(container, depth)

    def _elements(self, elements: list[Any], depth: int) -> None:
        texts = []
        for element in elements:
            kind = type(element)
            if kind is str:
                texts.append(element)
            elif kind is int:
                if not -SAFE_INT <= element <= SAFE_INT:
                    raise Inexact
            elif kind is float:
                if not isfinite(element):
                    raise Inexact
            elif kind is list or kind is dict:
                self.value(element, depth + 1)
            elif kind is not bool and element is not None:
                raise Inexact
        if texts:
            self._texts(texts)

    def _texts(self, texts: list[str]) -> None:
        self._left -= sum(map(len, texts))
        if self._left < 0:
            raise Inexact
        try:
            "".join(texts).encode("utf-8")
        except UnicodeEncodeError:
            raise Inexact from None
