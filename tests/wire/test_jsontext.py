"""`jsontext` against `json`, with each codec that an interpreter may leave it with."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repl_trio.wire import jsontext

BOUND = 30.0
"""seconds. For a child interpreter."""

# Lone surrogates included: Python strings have them, and cells print them.
strings = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | strings
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(strings, inner, max_size=5), max_leaves=30
)
# Text that is nearly JSON: the pieces of its grammar in any order.
words = ["true", "nul", "NaN", "Infinity", '"a"', "\\u12"]
pieces = st.sampled_from([*"{}[],:1-0e.'/", '"', "\\", *words, " ", "\n", "\t", "\x0b", "\x00", "\ufeff", "\ud800"])
nearly_json = st.lists(pieces, max_size=12).map("".join)

NOT_STRICT = [
    *("", " ", "NaN", "[Infinity]", '{"a": -Infinity}', "1 2", "{}{}", "[1,]", '{"a":1,}', "{1:2}", "01", "1.", ".5"),
    *("+1", "'a'", '"a', '"\t"', '"\x00"', r'"\x"', r'"\u12g4"', "tru", "\ufeff1", "]", "9" * 5_000, "[" * 100_000),
]
CODECS = ("C", "json", "pure Python")
any_codec = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def load() -> ModuleType:
    """A second copy of the module, which picks its codec anew."""
    spec = importlib.util.spec_from_file_location("repl_trio.wire.jsontext_again", jsontext.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with one of the three codecs below it."""
    if request.param == "C":
        yield jsontext
        return
    monkeypatch.setitem(sys.modules, "_json", None)
    if request.param == "pure Python":
        # Imported again while there is no `_json`, the standard library falls back to its own Python as well.
        for name in ("json", "json.decoder", "json.encoder", "json.scanner"):
            monkeypatch.delitem(sys.modules, name)
    yield load()


def reference(text: str) -> object:
    """What `json` makes of a text, without the constants that are no JSON; the class `ValueError` for a refusal."""

    def refuse(constant: str) -> object:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return ValueError


def outcome(codec: Any, text: str) -> object:
    try:
        return codec.loads(text)
    except codec.NotJSON:
        return ValueError


def test_the_c_codec_is_used_here() -> None:
    # Otherwise the fixture's "C" would test `json` against itself.
    assert type(jsontext._scan).__module__ == "_json"


@any_codec
@given(value=values)
def test_a_value_comes_back(codec: Any, value: object) -> None:
    text = codec.dumps(value)
    assert text == json.dumps(value, separators=(",", ":"))
    assert text.isascii()
    assert "\n" not in text
    assert codec.loads(text) == value


@any_codec
@given(value=values, indent=st.sampled_from([None, 1, "\t"]), raw=st.booleans())
def test_any_layout_is_read(codec: Any, value: object, indent: int | str | None, raw: bool) -> None:
    assert codec.loads(f"\r\n{json.dumps(value, indent=indent, ensure_ascii=not raw)} \t\n") == value


@settings(any_codec, max_examples=400)
@given(text=nearly_json | st.text(max_size=20))
def test_every_text_is_judged_as_json_judges_it(codec: Any, text: str) -> None:
    expected = reference(text)
    # json skips a byte order mark by an error of its own; here it is the caller's business.
    assert repr(outcome(codec, text)) == repr(expected)


@pytest.mark.parametrize("text", NOT_STRICT, ids=lambda text: repr(text[:20]))
def test_what_is_not_strict_is_refused(codec: Any, text: str) -> None:
    with pytest.raises(codec.NotJSON) as caught:
        codec.loads(text)
    assert len(str(caught.value)) < 100
    # A JSONDecodeError would carry the whole text in its `doc`.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_the_caller_may_make_the_objects(codec: Any) -> None:
    """Names that are there twice are seen by who asks for them; otherwise the last one counts, as `json` has it."""
    text = '{"a": 1, "b": {"a": 2}, "a": 3}'
    assert codec.loads(text) == {"a": 3, "b": {"a": 2}}
    assert codec.loads(text, tuple) == (("a", 1), ("b", (("a", 2),)), ("a", 3))

    def refuse(pairs: object) -> object:
        raise codec.NotJSON("not like this")

    with pytest.raises(codec.NotJSON, match="not like this"):
        codec.loads(text, refuse)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [-float("inf")], {"a": float("nan")}])
def test_no_constant_beyond_json_is_written(codec: Any, value: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        codec.dumps(value)


@pytest.mark.parametrize("value", [object(), {1}, b"x", [1j], {"a": Path()}, {(1, 2): 3}])
def test_what_is_no_json_value_is_refused(codec: Any, value: object) -> None:
    with pytest.raises(TypeError):
        codec.dumps(value)


def test_endless_nesting_is_refused_in_both_directions(codec: Any) -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested too deeply"):
        codec.dumps(endless)
    with pytest.raises(codec.NotJSON):
        codec.loads('{"a":' * 100_000)


def test_a_c_encoder_of_another_dialect_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import _json

    class Dialect(ModuleType):
        make_scanner = staticmethod(_json.make_scanner)
        encode_basestring_ascii = staticmethod(_json.encode_basestring_ascii)

        @staticmethod
        def make_encoder(*_arguments: object) -> Any:
            return lambda value, level: ("something else",)

    monkeypatch.setitem(sys.modules, "_json", Dialect("_json"))
    codec = load()
    assert codec.dumps({"a": [1, None]}) == '{"a":[1,null]}'


def test_a_c_codec_with_other_parameters_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(ModuleType):
        @staticmethod
        def make_scanner() -> None:
            """Takes no context: calling it with one is the TypeError."""

    monkeypatch.setitem(sys.modules, "_json", Older("_json"))
    assert load().loads("[1]") == [1]


def test_a_scanner_that_fails_without_a_word_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def wordless(_text: str, _start: int) -> object:
        raise SystemError("error return without exception set")

    monkeypatch.setattr(jsontext, "_scan", wordless)
    with pytest.raises(jsontext.NotJSON):
        jsontext.loads("{")


FAULTS = ["[1", '{"a"', '"abc', "[1,]", r'"\x"', "{1:2}", r'"\ud8"', "NaN", "9" * 5_000, "[" * 100_000, ""]
_ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
from repl_trio.wire import jsontext
for text in {faults!r}:
    try:
        jsontext.loads(text)
    except jsontext.NotJSON:
        pass
    else:
        sys.exit("accepted " + text[:20])
assert jsontext.loads('[1, {{"a": "x"}}]') == [1, {{"a": "x"}}]
heavy = {{"json", "re", "enum", "functools"}} & set(sys.modules)
sys.exit(" ".join(sorted(heavy)) or 0)
"""


def test_alone_it_refuses_the_same_and_loads_nothing() -> None:
    # An interpreter in which nobody has imported `json`, as the server's is while it answers the opening exchange.
    root = str(Path(jsontext.__file__).parents[2])
    environment = {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
    alone = [sys.executable, "-I", "-S", "-c", _ALONE.format(faults=FAULTS), root]
    done = subprocess.run(alone, env=environment, capture_output=True, text=True, timeout=BOUND, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")
