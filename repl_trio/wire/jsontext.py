"""Strict JSON text on CPython's C scanner and encoder, without importing `json`.

`import json` costs 8 ms (it brings `re`), most of what an opening exchange may take and a third of a worker's start.
The C accelerators behind it, `_json`, cost nothing. Where an interpreter does not have them as expected, `json` serves
with the same behaviour.

Strict means: no NaN or Infinity in either direction, nothing after the value, no lone surrogate in the output's bytes
(everything beyond ASCII is escaped, so any Python string can be sent).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Scanner = Callable[[str, int], tuple[object, int]]
    Encoder = Callable[[object, int], tuple[str, ...]]
    Pairs = Callable[[list[tuple[str, object]]], object]

_SPACE = " \t\n\r"


class NotJSON(ValueError):
    """The text is not one JSON value. The message names the kind of fault, never the text."""


def _refuse(constant: str) -> object:
    raise NotJSON(f"{constant} is not JSON")


class _ScannerContext:
    """The attributes that the C scanner reads from its context (`json.JSONDecoder`'s)."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int  # refuses more than 4,300 digits with a ValueError: a number nobody sends by intent
    parse_constant = staticmethod(_refuse)
    memo: dict[str, str] = {}  # noqa: RUF012 - the C scanner clears it after each call


def _refuse_object(value: object) -> object:
    raise TypeError(f"not a JSON value: {type(value).__name__}")


class _PairsContext(_ScannerContext):
    """The same, with a say about every object."""

    def __init__(self, pairs: Pairs) -> None:
        self.object_pairs_hook = pairs  # type: ignore[assignment]  # inferred from None


def _c_scanner(pairs: Pairs | None) -> Scanner:
    import _json

    context = _ScannerContext() if pairs is None else _PairsContext(pairs)
    return _json.make_scanner(context)  # type: ignore[arg-type]  # it reads attributes, of any object


def _json_scanner(pairs: Pairs | None) -> Scanner:
    import json

    decoder = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=pairs)
    scan: Scanner = decoder.scan_once  # type: ignore[attr-defined]  # typeshed leaves it out
    return scan


def _c_codec() -> tuple[Callable[[Pairs | None], Scanner], Encoder]:
    import _json

    _c_scanner(None)  # an interpreter whose scanner takes no context says so now
    escape = _json.encode_basestring_ascii
    encode = _json.make_encoder(None, _refuse_object, escape, None, ":", ",", False, False, False)
    if "".join(encode({"a": [1, 1.5, None, True, "\ud800"]}, 0)) != r'{"a":[1,1.5,null,true,"\ud800"]}':
        raise ImportError("the C encoder speaks another dialect")
    return _c_scanner, encode


def _json_codec() -> tuple[Callable[[Pairs | None], Scanner], Encoder]:
    import json

    encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False, default=_refuse_object)
    return _json_scanner, lambda value, _level: (encoder.encode(value),)


try:
    _scanner, _encode = _c_codec()
except (ImportError, TypeError):
    _scanner, _encode = _json_codec()
_scan = _scanner(None)


def loads(text: str, pairs: Pairs | None = None) -> object:
    """The value of one JSON text. Raises `NotJSON`, also for nesting deeper than the interpreter can follow.

    `pairs` makes each object from its names and values, in place of `dict`; it may raise `NotJSON`, too.
    """
    scan = _scan if pairs is None else _scanner(pairs)
    length = len(text)
    start = 0
    while start < length and text[start] in _SPACE:
        start += 1
    try:
        value, end = scan(text, start)
    except StopIteration:
        raise NotJSON("no JSON value") from None
    except RecursionError:
        raise NotJSON("nested too deeply") from None
    except SystemError:
        # The C scanner takes its exception class from the loaded `json.decoder` and, before 3.13, reports a fault with
        # no exception set where nobody has imported that. It left no state behind; the text is simply not JSON.
        raise NotJSON("not JSON") from None
    except NotJSON:
        raise
    except ValueError as error:
        # json.JSONDecodeError carries the whole text in `doc`: it must not travel further.
        raise NotJSON(getattr(error, "msg", None) or "not JSON") from None
    while end < length and text[end] in _SPACE:
        end += 1
    if end != length:
        raise NotJSON("more than one JSON value")
    return value


def dumps(value: object) -> str:
    """The JSON text of a value, ASCII only, on one line.

    Raises `TypeError` for what is no JSON value and `ValueError` for NaN, infinity, or endless nesting.
    """
    try:
        return "".join(_encode(value, 0))
    except RecursionError:
        raise ValueError("nested too deeply") from None
