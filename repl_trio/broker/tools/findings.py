"""What validation finds, in words. Of the arguments only places and names are told, never a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import jsonschema

_LISTED = 8
"""names or values that are listed."""
_LONG = 60
"""characters of one name, value or pattern."""
_BOUNDS = {
    "minimum": "must be at least",
    "maximum": "must be at most",
    "exclusiveMinimum": "must be more than",
    "exclusiveMaximum": "must be less than",
    "multipleOf": "must be a multiple of",
    "minLength": "must have at least this many characters:",
    "maxLength": "must have at most this many characters:",
    "minItems": "must have at least this many items:",
    "maxItems": "must have at most this many items:",
    "minProperties": "must have at least this many properties:",
    "maxProperties": "must have at most this many properties:",
    "minContains": "must have at least this many items of the kind that `contains` asks for:",
    "maxContains": "must have at most this many items of the kind that `contains` asks for:",
    "pattern": "must match the pattern",
    "format": "must have the format",
    "const": "must be",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Where the arguments break a rule: JSON pointer, keyword, and what it asks for."""

    pointer: str
    rule: str
    words: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`findings` is empty for arguments that fit. `broken` says why the schema cannot judge them; `outside` names a
    reference that leads out of it."""

    findings: tuple[Finding, ...] = ()
    broken: str = ""
    outside: str = ""

    def as_json(self) -> dict[str, object]:
        """How it travels from the judge."""
        return asdict(self)

    @classmethod
    def from_json(cls, sent: dict[str, object]) -> Verdict:
        """What `as_json` has made. Raises `TypeError`, `KeyError` or `AttributeError` for anything else."""
        found = sent["findings"]
        if not isinstance(found, list):
            raise TypeError("findings")
        findings = tuple(Finding(str(one["pointer"]), str(one["rule"]), str(one["words"])) for one in found)
        return cls(findings, str(sent["broken"]), str(sent["outside"]))


def pointer(path: Iterable[str | int]) -> str:
    """A JSON pointer; "" is the whole."""
    return "".join(f"/{_cut(str(step)).replace('~', '~0').replace('/', '~1')}" for step in path)


def words(error: jsonschema.ValidationError) -> str:
    """One sentence without its subject and its full stop: "must be of type string"."""
    rule, asked, instance = error.validator, cast("Any", error.validator_value), cast("Any", error.instance)
    if rule in _BOUNDS:
        return f"{_BOUNDS[rule]} {_cut(repr(asked))}"
    if rule == "type":
        return f"must be of type {' or '.join(asked if isinstance(asked, list) else [str(asked)])}"
    if rule == "enum":
        return f"must be one of {_listed(asked)}"
    if rule == "required":
        return f"lacks {_listed(name for name in asked if name not in instance)}"
    if rule in ("additionalProperties", "unevaluatedProperties") and isinstance(instance, dict):
        known = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
        unknown = _listed(name for name in instance if name not in known)
        return f"has what is not allowed there: {unknown}; known are {_listed(known)}"
    if rule in ("anyOf", "oneOf"):
        return _alternatives(error)
    # A schema that is just `false`; the library does not say for which part of the value it stands.
    return f"breaks the rule `{rule}`" if rule else "holds what the schema forbids"


def _alternatives(error: jsonschema.ValidationError) -> str:
    if not error.context:
        return "fits several of the alternatives of which it must fit one"
    if all(inner.validator == "type" and not inner.path for inner in error.context):
        kinds: list[str] = []
        for inner in error.context:
            asked = inner.validator_value
            kinds += asked if isinstance(asked, list) else [str(asked)]
        return f"must be of type {' or '.join(dict.fromkeys(kinds))}"
    # The alternative in which the fault lies deepest is the one that was meant.
    nearest = max(error.context, key=lambda inner: len(inner.path))
    return f"fits none of the alternatives; nearest: {pointer(nearest.absolute_path) or 'it'} {words(nearest)}"


def _listed(values: Iterable[object]) -> str:
    shown = [_cut(repr(value)) for value in values]
    more = ", ..." if len(shown) > _LISTED else ""
    return (", ".join(shown[:_LISTED]) or "none") + more


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else text[: _LONG - 3] + "..."
