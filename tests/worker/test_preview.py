"""Previews and exact values, in this process."""

import array
import contextlib
import dataclasses
import enum
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_trio.limits import DEFAULT
from repl_trio.worker.exact import exact_json
from repl_trio.worker.preview import preview
from repl_trio.worker.shapes import CHUNK

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


@given(values)
def test_a_small_value_is_shown_as_python_shows_it(value: object) -> None:
    shown = preview(value)
    assert (shown.text, shown.cut, shown.interrupt) == (repr(value), False, None)


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
    assert preview(value).text == repr(value)


class Named(NamedTuple):
    number: int
    text: str


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: int
    y: list[int]


class Numbers(list[int]):
    """Shown as a list."""


class Table(dict[str, int]):
    """Shown as a dict."""


class Loud(list[int]):
    """Has a repr of its own."""

    def __repr__(self) -> str:
        return "loud"


MANY = list(range(CHUNK + 50))


@pytest.mark.parametrize(
    "value",
    [
        deque(),
        deque(MANY),
        deque([1, "a"], maxlen=3),
        deque(maxlen=2),
        OrderedDict(),
        OrderedDict(a=1, b=[2]),
        OrderedDict.fromkeys(MANY),
        defaultdict(int),
        defaultdict(None, {1: 2}),
        defaultdict(list, {"k": [1]}),
        Counter("abracadabra"),
        Counter(),
        {}.keys(),
        dict.fromkeys(MANY).keys(),
        {"a": 1}.values(),
        {"a": 1, 2: None}.items(),
        array.array("d", [1.5, 2]),
        array.array("u", "text"),
        Named(1, "one"),
        [Colour.RED, Level.HIGH],
        Point(1, MANY),
        Numbers(MANY),
        Table(a=1),
        Loud([1]),
        Fraction(1, 3),
        slice(1, None),
        # Runs of plain elements, and what interrupts them.
        [*MANY, "text", *MANY, None, 2**70, *MANY],
        [1.5] * 600,
        ["text", "\u00e9", b"x"] * 200,
        [(n, str(n)) for n in MANY],
        [[n] for n in MANY],
        [{"id": n, "ok": True} for n in MANY],
        [{"id": n, 1: [n]} for n in MANY],
        [(n,) for n in MANY],
        [()] * 300,
        tuple(MANY),
        set(MANY),
        {n: str(n) for n in MANY},
        {(n, n): None for n in MANY},
        ["\ud800"] * 3,
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_are_shown_as_python_shows_them(value: object) -> None:
    made = preview(value)
    assert made.text == repr(value).encode("utf-8", "backslashreplace").decode()
    assert not made.cut


@pytest.mark.parametrize(
    ("value", "closing"),
    [
        (deque(range(10**5), maxlen=10**6), " more items])"),
        (OrderedDict.fromkeys(range(10**5)), " more items})" if sys.version_info >= (3, 12) else " more items])"),
        (defaultdict(int, dict.fromkeys(range(10**5))), " more items})"),
        (Counter(range(10**5)), " more items})"),
        (dict.fromkeys(range(10**5)).keys(), " more items])"),
        (array.array("i", range(10**5)), " more items])"),
        (Numbers(range(10**5)), " more items]"),
        ([(n, "text") for n in range(10**5)], " more items]"),
        # Many brackets, which count as well.
        ([[[]]] * 10**5, " more items]"),
        ([[[1]]] * 10**5, " more items]"),
        ([{1: [2]}] * 10**5, " more items]"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_large_containers_are_cut_with_the_rest_counted(value: Any, closing: str) -> None:
    made = preview(value)
    assert made.cut
    assert made.text.endswith(closing)
    assert len(made.text) > DEFAULT.preview_bytes - 2_200
    assert int(made.text.rsplit("... ", 1)[1].split()[0].replace(",", "")) < 10**5 - 1_000


def test_a_wide_row_is_not_written_in_one_step() -> None:
    rows = [list(range(10**6))] * 300
    began = time.monotonic()
    assert preview(rows).cut
    assert time.monotonic() - began < 1


def test_huge_ints_are_named_wherever_they_are() -> None:
    huge = 1 << 100_000
    assert preview({"k": [huge, -huge]}).text == "{'k': [<int with 100001 bits>, <int with 100001 bits>]}"
    assert preview([huge] * 300).text.count("<int") == 300
    assert preview(range(huge)).text == "<range of huge ints>"


@pytest.mark.skipif(not hasattr(sys, "set_int_max_str_digits"), reason="this Python has no limit on digits")
def test_the_limit_on_digits_may_be_lowered_and_raised() -> None:
    number = 10**3_000
    before = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(640)
        assert preview([number]).text == "[<int with 9966 bits>]"
        sys.set_int_max_str_digits(0)
        assert preview([10**9_000]).text == f"[{10**9_000}]"
        assert preview(10**30_000).text == "<int with 99658 bits>"
    finally:
        sys.set_int_max_str_digits(before)


class Meta(type):
    """Fails at whatever it is asked."""

    def __getattribute__(cls, name: str) -> Any:
        raise ValueError(name)

    __hash__ = __eq__ = __repr__ = __instancecheck__ = __getattribute__  # type: ignore[assignment]


class Odd(metaclass=Meta):
    """Its class cannot be hashed, compared, shown or asked."""

    def __repr__(self) -> str:
        return "odd"


def test_nothing_of_a_metaclass_runs() -> None:
    odd = Odd()
    assert preview(odd).text == "odd"
    assert preview([odd] * 300).text == "[" + ", ".join(["odd"] * 300) + "]"
    assert preview({"k": (odd, {1: odd})}).text == "{'k': (odd, {1: odd})}"
    assert preview([Odd, 1]).text.startswith("[<Meta object; its repr failed: ")
    assert exact_json([odd]) == (False, None)


def test_a_repr_of_a_hundred_megabytes_is_cut_and_at_hand() -> None:
    class Huge:
        def __repr__(self) -> str:
            return "\u00e9" * 50_000_000

    made = preview(Huge())
    assert made.cut
    assert len(made.text.encode()) <= DEFAULT.preview_bytes
    assert made.whole is not None
    assert len(made.whole) == 50_000_000
    assert preview([Huge(), 1]).whole is None


def test_a_repr_that_recurs_for_ever_is_a_note() -> None:
    class Recurs:
        def __repr__(self) -> str:
            return repr([self])

    class Endless:
        def __repr__(self) -> str:
            return f"<{self!r}>"

    assert preview(Recurs()).text == "[[...]]" or "RecursionError" in preview(Recurs()).text
    assert "its repr failed: RecursionError" in preview(Endless()).text


def test_a_repr_that_lowers_the_recursion_limit_does_no_harm() -> None:
    before = sys.getrecursionlimit()

    class Lowers:
        def __repr__(self) -> str:
            for limit in range(10, before):
                with contextlib.suppress(RecursionError):
                    sys.setrecursionlimit(limit)
                    break
            return "lowered"

    try:
        text = preview([Lowers(), [[[[[[[[[[1]]]]]]]]]]]).text
    finally:
        sys.setrecursionlimit(before)
    assert text.startswith("[lowered")


def test_a_longer_walk_asks_no_repr_again() -> None:
    class Asked:
        count = 0

        def __repr__(self) -> str:
            Asked.count += 1
            return "x" * 50

    many = [Asked() for _ in range(2_000)]
    short = preview(many)
    assert 0 < Asked.count < 500
    longer = preview(many, 10**6, short.told)
    assert (longer.text, longer.cut) == (f"[{', '.join(['x' * 50] * 2_000)}]", False)
    assert Asked.count == 2_000


def test_a_walk_with_a_time_limit_ends() -> None:
    class Slow:
        def __repr__(self) -> str:
            end = time.monotonic() + 0.001
            while time.monotonic() < end:
                pass
            return "slow"

    made = preview([Slow() for _ in range(100_000)], 10**6, seconds=0.05)
    assert made.cut
    assert made.text.count("slow") < CHUNK
    assert made.text.endswith(" more items]")


def test_cycles_are_shown_as_python_shows_them() -> None:
    plain: list[Any] = [1]
    plain.append(plain)
    table: dict[str, Any] = {"k": 1}
    table["me"] = table
    knot: list[Any] = []
    knot.append((knot, knot))
    for value in (plain, table, knot):
        assert preview(value).text == repr(value)
    shared = [0]
    assert preview([shared, shared]).text == "[[0], [0]]"


@settings(max_examples=200)
@given(values, st.integers(2_100, 4_000))
def test_the_bound_holds(value: object, size: int) -> None:
    for wide in (value, [value] * 500, dict.fromkeys(range(500), value), [[[value] * 50] * 50]):
        shown = preview(wide, size)
        text, shortened = shown.text, shown.cut
        assert len(text.encode("utf-8")) <= size
        assert shortened or text == repr(wide)


def test_what_is_left_out_is_counted() -> None:
    made = preview(list(range(100_000)))
    shown = [int(part) for part in made.text[1:].split(", ...")[0].split(", ")]
    assert shown == list(range(len(shown)))
    assert made.cut
    assert made.text.endswith(" more items]")
    more = int(made.text.rsplit("... ", 1)[1].split()[0].replace(",", ""))
    assert len(shown) + more == 100_000


def test_deep_nesting_is_cut_with_the_brackets_closed() -> None:
    deep: list[Any] = []
    for _level in range(10_000):
        deep = [deep]
    shown = preview(deep)
    text, shortened = shown.text, shown.cut
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
    table: dict[object, object] = dict.fromkeys(range(1_000))

    class Grows:
        def __repr__(self) -> str:
            table[object()] = 1
            return "grows"

    table[0] = Grows()
    assert "changed meanwhile" in preview(table).text


def test_the_default_bound_is_the_limit() -> None:
    assert len(preview("x" * 10**6).text) <= DEFAULT.preview_bytes


@pytest.mark.parametrize(
    ("value", "ending"),
    [
        (["x" * 25_000], "25,000 characters in all]"),
        (["x" * 25_000, 2, 3], "25,000 characters in all, ... 2 more items]"),
        ([1, 2, "x" * 25_000, 4], "25,000 characters in all, ... 1 more item]"),
        ({"a": "x" * 25_000, "c": 2, "d": 3}, "25,000 characters in all, ... 2 more items}"),
        ([["x" * 25_000], 2], "25,000 characters in all], ... 1 more item]"),
        (["x" * 17_990, 10**30], "x', ... 1 more item]"),
        ({"a": "x" * 17_980, "b": 10**30}, "x', 'b': ...}"),
    ],
    ids=["alone", "first", "later", "in a dict", "nested", "no room for the next", "room for its key"],
)
def test_what_is_shown_in_part_is_not_counted_as_left_out(value: object, ending: str) -> None:
    assert preview(value).text.endswith(ending)
