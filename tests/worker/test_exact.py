"""The exact JSON equal of a value, in this process."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_trio.wire import jsontext
from repl_trio.worker.exact import SAFE_INT, VALUE_BYTES, VALUE_DEPTH, VALUE_NODES, exact_json

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
