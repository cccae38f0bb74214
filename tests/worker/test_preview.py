"""Previews and exact values, in this process."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_trio.limits import DEFAULT
from repl_trio.wire import jsontext
from repl_trio.worker.preview import SAFE_INT, VALUE_BYTES, VALUE_DEPTH, VALUE_NODES, exact_json, preview

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
    ),
    max_leaves=20,
)
proper_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-SAFE_INT, SAFE_INT)
    | st.floats(allow_nan=False, allow_infinity=False)
    | proper_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(proper_text, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_a_small_value_is_shown_as_python_shows_it(value: object) -> None:
    text, shortened, interrupt = preview(value)
    assert (text, shortened, interrupt) == (repr(value), False, None)


@pytest.mark.parametrize(
    "value",
    [
        set(),
        {1},
        frozenset(),
        frozenset({2}),
        (1,),
        (),
        [],
        {},
        {"a"},
        range(3),
        1 + 2j,
        ...,
        NotImplemented,
        int,
        len,
        b"\xff",
    ],
)
def test_builtin_kinds(value: object) -> None:
    assert preview(value)[0] == repr(value)


def test_cycles_are_shown_as_python_shows_them() -> None:
    plain: list[Any] = [1]
    plain.append(plain)
    table: dict[str, Any] = {"k": 1}
    table["me"] = table
    knot: list[Any] = []
    knot.append((knot, knot))
    for value in (plain, table, knot):
        assert preview(value)[0] == repr(value)
    shared = [0]
    assert preview([shared, shared])[0] == "[[0], [0]]"


@settings(max_examples=200)
@given(values, st.integers(2_100, 4_000))
def test_the_bound_holds(value: object, size: int) -> None:
    for wide in (value, [value] * 500, dict.fromkeys(range(500), value), [[[value] * 50] * 50]):
        text, shortened, _interrupt = preview(wide, size)
        assert len(text.encode("utf-8")) <= size
        assert shortened or text == repr(wide)


def test_what_is_left_out_is_counted() -> None:
    text, shortened, _interrupt = preview(list(range(100_000)))
    shown = [int(part) for part in text[1:].split(", ...")[0].split(", ")]
    assert shown == list(range(len(shown)))
    assert shortened
    assert text.endswith(" more items]")
    more = int(text.rsplit("... ", 1)[1].split()[0].replace(",", ""))
    assert len(shown) + more == 100_000


def test_deep_nesting_is_cut_with_the_brackets_closed() -> None:
    deep: list[Any] = []
    for _level in range(10_000):
        deep = [deep]
    text, shortened, _interrupt = preview(deep)
    assert shortened
    assert text == "[" * 30 + "[...]" + "]" * 30


class Counted:
    """Counts how often its repr is asked for."""

    asked = 0

    def __repr__(self) -> str:
        Counted.asked += 1
        return "x" * 100


def test_reprs_beyond_the_bound_are_not_asked_for() -> None:
    Counted.asked = 0
    preview([Counted()] * 100_000)
    assert 100 < Counted.asked < 250


def test_a_container_that_changes_while_it_is_shown() -> None:
    table: dict[object, object] = {}

    class Grows:
        def __repr__(self) -> str:
            table[object()] = 1
            return "grows"

    table["a"] = Grows()
    assert "changed meanwhile" in preview(table)[0]


@given(json_values)
def test_an_exact_value_is_equal_in_value_and_type(value: object) -> None:
    given_, copy = exact_json(value)
    if value is None:
        assert (given_, copy) == (False, None)
        return
    assert given_
    assert jsontext.loads(jsontext.dumps(copy)) == value
    assert repr(jsontext.loads(jsontext.dumps(copy))) == repr(value)


class Text(str):
    """No exact str."""

    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        (1,),
        {1},
        b"x",
        math.nan,
        math.inf,
        -math.inf,
        SAFE_INT + 1,
        -SAFE_INT - 1,
        1j,
        "\ud800",
        ["\udfff"],
        {1: 2},
        {None: 1},
        {"a": (1,)},
        [math.nan],
        Text("x"),
        [Text("x")],
        {Text("k"): 1},
        range(3),
        object(),
        {"\ud800": 1},
        {True: 1, "True": 2},
    ],
)
def test_what_json_has_no_equal_for(value: object) -> None:
    assert exact_json(value) == (False, None)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _level in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("fits", "too_much"),
    [
        (SAFE_INT, SAFE_INT + 1),
        ("x" * (VALUE_BYTES - 2), "x" * (VALUE_BYTES - 1)),
        ("\x01" * ((VALUE_BYTES - 2) // 6), "\x01" * ((VALUE_BYTES - 2) // 6 + 1)),
        ([0] * (VALUE_NODES - 1), [0] * VALUE_NODES),
        (nested(VALUE_DEPTH), nested(VALUE_DEPTH + 1)),
    ],
    ids=["int", "text", "escaped", "nodes", "depth"],
)
def test_the_bounds_of_an_exact_value(fits: object, too_much: object) -> None:
    assert exact_json(fits) == (True, fits)
    assert exact_json(too_much) == (False, None)


def test_the_copy_is_the_results_own() -> None:
    value = {"a": [1]}
    _given, copy = exact_json(value)
    value["a"].append(2)
    assert copy == {"a": [1]}


def test_the_default_bound_is_the_limit() -> None:
    assert len(preview("x" * 10**6)[0]) <= DEFAULT.preview_bytes
