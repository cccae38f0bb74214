"""Validating the arguments of one call with a schema that `schemas.read` has found to be one.

The only file that imports `jsonschema` and `referencing`, which takes a tenth of a second: `validation` loads it in a
thread with the first call that needs it, and the judge in its own process. Nothing is ever fetched: a reference that
leads out of the schema is a finding of its own.

Formats are checked where the standard library can, and leniently: an argument is refused for what plainly is none. A
schema's other formats are annotations, which is what JSON Schema says they are.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import jsonschema
import referencing
import referencing.exceptions
from jsonschema import validators

from .findings import Finding, Verdict, pointer, words

_FINDINGS = 5
"""findings that are told; whoever mends those sees the next."""
_STEP_BYTES = 4_096
"""bytes of arguments that cost as much to write out as one step."""
_CLASSES = {
    "2020-12": jsonschema.Draft202012Validator,
    "2019-09": jsonschema.Draft201909Validator,
    "draft-07": jsonschema.Draft7Validator,
    "draft-06": jsonschema.Draft6Validator,
    "draft-04": jsonschema.Draft4Validator,
}


#: Faults of a reference inside the schema; every other one leads out of it.
_LOCAL = (
    referencing.exceptions.PointerToNowhere,
    referencing.exceptions.NoSuchAnchor,
    referencing.exceptions.InvalidAnchor,
)


class Overrun(Exception):
    """The validation took more steps than it may take here."""


class _Steps:
    """What is left of the steps of the validation that is going on. One at a time: it never waits in between."""

    left = 0


class Checker:
    """One schema, ready to judge. `steps` bounds each `check`; None is for the judge, whose bound is a deadline."""

    def __init__(self, schema: Any, dialect: str, steps: int | None) -> None:
        if isinstance(schema, dict):
            # The validator would follow it out of the classes below, whenever a reference leads back to the root.
            schema = {word: value for word, value in schema.items() if word != "$schema"}
        self._steps = steps
        kind = _CLASSES[dialect] if steps is None else _counted(dialect)
        self._validator = kind(schema, registry=referencing.Registry(), format_checker=_FORMATS)

    def check(self, arguments: Any, size: int = 0) -> Verdict:
        """Judge arguments of `size` bytes. Raises `Overrun`.

        The library writes the faulty value into each error that it makes, so that the larger the arguments, the dearer
        a step.
        """
        _Steps.left = (self._steps or 0) // (1 + size // _STEP_BYTES)
        try:
            return Verdict(
                tuple(_finding(error) for error in islice(self._validator.iter_errors(arguments), _FINDINGS))
            )
        except (Overrun, MemoryError):
            raise  # in the judge the second is its end
        except RecursionError:
            if self._steps is not None:
                raise Overrun from None  # deep recursion is the judge's: he has the stack for it
            return Verdict(broken="it refers to itself without an end, or the arguments are nested too deeply")
        except referencing.exceptions.Unresolvable as error:
            reference = str(error.ref)[:200]
            if isinstance(error.__cause__, _LOCAL):
                return Verdict(broken=f"its reference to {reference} leads nowhere")
            return Verdict(outside=reference)
        except Exception as error:  # noqa: BLE001 - a stranger's schema in a library that trusts it: anything may come
            return Verdict(broken=f"validating with it failed ({type(error).__name__})")


def _counted(dialect: str) -> type[jsonschema.protocols.Validator]:
    """The dialect's validator with every keyword counting its work."""
    if dialect not in _COUNTED:
        kind = _CLASSES[dialect]
        counting = {word: _counting(word, check) for word, check in kind.VALIDATORS.items()}
        extend: Any = validators.extend  # of which the stubs say nothing
        _COUNTED[dialect] = extend(kind, counting)
    return _COUNTED[dialect]


_COUNTED: dict[str, type[jsonschema.protocols.Validator]] = {}
Check = Callable[..., Iterator[jsonschema.ValidationError] | None]


def _counting(word: str, check: Check) -> Check:
    def counted(validator: object, value: object, instance: object, schema: object) -> object:
        cost = 1 + (len(value) if isinstance(value, dict | list) else 0)
        if word == "uniqueItems" and isinstance(instance, list):
            cost += len(instance) ** 2  # what it comes to for values that cannot be sorted
        elif word in ("enum", "const") and isinstance(instance, dict | list):
            cost += cost * len(instance)
        elif isinstance(instance, dict | list):
            cost += len(instance)
        _Steps.left -= cost
        if _Steps.left < 0:
            raise Overrun
        return check(validator, value, instance, schema)

    return counted  # type: ignore[return-value]  # a keyword's function, as the library calls it


def _finding(error: jsonschema.ValidationError) -> Finding:
    return Finding(pointer(error.absolute_path), str(error.validator or "false"), words(error))


def compilable(schema: object) -> object:
    """A copy of the schema without the patterns that Python's `re` does not read: they are ECMAScript's.

    Whatever such a pattern would have asked for is not checked: a name that it might match may have any value.
    """
    if isinstance(schema, list):
        return [compilable(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    copied: dict[str, Any] = {word: compilable(value) for word, value in schema.items()}
    if isinstance(copied.get("pattern"), str) and not _compiles(copied["pattern"]):
        del copied["pattern"]
    named = copied.get("patternProperties")
    if isinstance(named, dict) and not all(map(_compiles, named)):
        copied["patternProperties"] = {pattern: value for pattern, value in named.items() if _compiles(pattern)}
        copied["patternProperties"][""] = True
    return copied


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


_FORMATS = jsonschema.FormatChecker(formats=())


def _format(name: str) -> Callable[[Callable[[str], object]], Callable[[str], object]]:
    """Check a format by a function that raises `ValueError`; what is no string has no format."""

    def register(parse: Callable[[str], object]) -> Callable[[str], object]:
        def holds(value: object) -> bool:
            if isinstance(value, str):
                parse(value)
            return True

        _FORMATS.checks(name, raises=ValueError)(holds)
        return parse

    return register


_format("ipv4")(ipaddress.IPv4Address)
_format("ipv6")(ipaddress.IPv6Address)
_format("uuid")(uuid.UUID)
_format("date")(datetime.date.fromisoformat)


@_format("date-time")
def _moment(value: str) -> None:
    # A leap second is one in RFC 3339 and none in Python. Without an offset it is no RFC 3339, and peers take it.
    datetime.datetime.fromisoformat(value.upper().replace(":60", ":59"))


@_format("email")
def _address(value: str) -> None:
    if "@" not in value:
        raise ValueError


@_format("uri")
def _uri(value: str) -> None:
    scheme, colon, _rest = value.partition(":")
    if not colon or not scheme[:1].isalpha() or not scheme.isascii() or " " in value:
        raise ValueError
