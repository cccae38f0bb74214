"""The whole of a trailing value whose preview is shortened, as one item for the server to keep.

Loaded when there is such a value. Bounded in bytes, and in time by about a second.
"""

from __future__ import annotations

from _operator import is_
from itertools import chain, repeat
from math import isfinite
from time import monotonic

from ..limits import DEFAULT
from ..wire import jsontext
from .exact import SAFE_INT, Inexact
from .preview import Preview, clip, preview, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
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
        if longer.text != shown.text:
            # Else it is cut for its depth, and the preview is all there is.
            display.send("value", "value", "text/plain", longer.text.encode(), complete=not longer.cut)
    return None


def _json(value: object) -> bytes | None:
    """The exact JSON of a list or dict; None when there is none within the bounds."""
    if type(value) is not list and type(value) is not dict:
        return None
    try:
        _check(value)
        text = jsontext.dumps(value)
    except (Inexact, RuntimeError, ValueError, TypeError):
        # All but the first: another thread changed the value meanwhile.
        return None
    return text.encode("ascii") if len(text) <= TEXT_BYTES else None


def _check(value: Any) -> None:
    """Raise `Inexact` when a list or dict has no exact JSON, or that would be too long.

    Level by level and not container by container: a hundred thousand small records are checked at C's speed.
    """
    deadline = monotonic() + JSON_SECONDS
    left = TEXT_BYTES
    level = [value]
    for _depth in range(DEPTH):
        lists = [container for container in level if type(container) is list]
        dicts = [container for container in level if type(container) is dict]
        # An element has two bytes at least: a digit and a comma.
        left -= 2 * (sum(map(len, lists)) + sum(map(len, dicts)))
        if left < 0 or monotonic() > deadline:
            raise Inexact
        keys = list(chain.from_iterable(dicts))
        if not all(map(is_, map(type, keys), repeat(str))):
            raise Inexact
        level, texts = _sorted(chain(chain.from_iterable(lists), chain.from_iterable(map(dict.values, dicts))))
        left -= _size(keys, left) + _size(texts, left)
        if left < 0:
            raise Inexact
        if not level:
            return
    raise Inexact


def _sorted(elements: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """(the lists and dicts among these, the strings). Raises `Inexact` for what JSON has no exact equal of."""
    containers, texts = [], []
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
            containers.append(element)
        elif kind is not bool and element is not None:
            raise Inexact
    return containers, texts


def _size(texts: list[str], left: int) -> int:
    """Characters of these. Raises `Inexact` for those that have no UTF-8 form."""
    size = sum(map(len, texts))
    if size <= left:
        try:
            "".join(texts).encode("utf-8")
        except UnicodeEncodeError:
            raise Inexact from None
    return size
