"""Frames between server and worker: each kind, and each way to get one wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_trio.limits import DEFAULT
from repl_trio.wire import frames
from repl_trio.wire.frames import FROM_WORKER, TO_WORKER, Frame, FrameError, Kinds, decode, encode

untimed = settings(deadline=None)
LIMIT = DEFAULT.frame_bytes

EXAMPLES: dict[type, object] = {
    str: "x",
    int: 7,
    bool: True,
    float: 1.5,
    list: ["a"],
    dict: {"a": 1},
    type(None): None,
    object: {"a": 1},
}
WRONG: tuple[object, ...] = ("x", 7, True, 1.5, ["a"], {"a": 1}, None)
BOTH: list[tuple[Kinds, str]] = [(kinds, kind) for kinds in (TO_WORKER, FROM_WORKER) for kind in kinds]
KEYS: list[tuple[Kinds, str, str]] = [(kinds, kind, key) for kinds, kind in BOTH for key in kinds[kind]]

BROKEN = [
    *(
        b"",
        b"x",
        b"\xff",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b'{"frame":null}',
        b'{"frame":["ready"]}',
        b'{"frame":"execut"}',
    ),
    *(b'{"frame":"shutdown"} x', b'{"frame":"shutdown","frame":"x"}', b'{"frame":NaN}', b"[" * 100_000),
]


def example(kinds: Kinds, kind: str) -> Frame:
    """A right frame of a kind, with the first type of each key."""
    return {"frame": kind} | {key: EXAMPLES[types[0]] for key, types in kinds[kind].items()}


def line(frame: object) -> bytes:
    return json.dumps(frame).encode()


def name(given: object) -> str | None:
    return given if isinstance(given, str) else None


@pytest.mark.parametrize(("kinds", "kind"), BOTH, ids=name)
def test_a_frame_comes_back(kinds: Kinds, kind: str) -> None:
    frame = example(kinds, kind)
    assert decode(encode(frame, LIMIT).rstrip(b"\n"), kinds) == frame


@pytest.mark.parametrize(("kinds", "kind", "key"), KEYS, ids=name)
def test_every_type_of_a_key_is_taken_and_no_other(kinds: Kinds, kind: str, key: str) -> None:
    types = kinds[kind][key]
    for value in WRONG:
        frame = example(kinds, kind) | {key: value}
        if type(value) in types or types == (object,):
            assert decode(line(frame), kinds)[key] == value
        else:
            with pytest.raises(FrameError, match=rf"{kind} frame: {key} "):
                decode(line(frame), kinds)


@pytest.mark.parametrize(("kinds", "kind", "key"), KEYS, ids=name)
def test_a_missing_key_is_refused(kinds: Kinds, kind: str, key: str) -> None:
    frame = example(kinds, kind)
    del frame[key]
    with pytest.raises(FrameError, match=rf"{kind} frame.*{key}"):
        decode(line(frame), kinds)
    with pytest.raises(FrameError, match=rf"{kind} frame: no {key}"):
        decode(line(frame | {"instead": 1}), kinds)


@pytest.mark.parametrize(("kinds", "kind"), BOTH, ids=name)
def test_an_unknown_key_is_refused(kinds: Kinds, kind: str) -> None:
    with pytest.raises(FrameError, match=rf"{kind} frame.*strange"):
        decode(line(example(kinds, kind) | {"strange": 1}), kinds)


@pytest.mark.parametrize(("kinds", "kind"), BOTH, ids=name)
def test_a_frame_of_the_other_direction_is_refused(kinds: Kinds, kind: str) -> None:
    other = FROM_WORKER if kinds is TO_WORKER else TO_WORKER
    with pytest.raises(FrameError, match="unknown frame kind"):
        decode(line(example(kinds, kind)), other)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: repr(broken[:20]))
def test_what_is_no_frame_is_refused(broken: bytes) -> None:
    for kinds in (TO_WORKER, FROM_WORKER):
        with pytest.raises(FrameError) as caught:
            decode(broken, kinds)
        assert len(str(caught.value)) < 300


@untimed
@given(st.binary(max_size=80) | st.dictionaries(st.text(max_size=5), st.text(max_size=5)).map(line))
def test_any_bytes_are_a_frame_or_a_frame_error(broken: bytes) -> None:
    try:
        frame = decode(broken, FROM_WORKER)
    except FrameError:
        return
    assert frame["frame"] in FROM_WORKER


def test_a_refusal_does_not_repeat_the_content() -> None:
    for frame in ({"frame": "execute", "id": "SECRET"}, {"frame": "shutdown", "x": "SECRET"}, {"frame": "SECRET"}):
        with pytest.raises(FrameError) as caught:
            decode(line(frame), TO_WORKER)
        assert "SECRET" not in str(caught.value)


def test_the_limit_counts_the_newline() -> None:
    frame: dict[str, Any] = {"frame": "refused", "reason": ""}
    size = len(encode(frame, LIMIT))
    room = LIMIT - size
    written = encode(frame | {"reason": "x" * room}, LIMIT)
    assert len(written) == LIMIT
    with pytest.raises(FrameError, match=rf"refused frame of {LIMIT} bytes; the limit is {LIMIT}"):
        encode(frame | {"reason": "x" * (room + 1)}, LIMIT)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"x"])
def test_what_is_no_json_is_not_sent(value: object) -> None:
    with pytest.raises(FrameError, match=r"^result frame: "):
        encode(example(FROM_WORKER, "result") | {"value": value}, LIMIT)


@untimed
@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_any_text_passes(text: str) -> None:
    frame = example(TO_WORKER, "execute") | {"code": text}
    written = encode(frame, LIMIT)
    assert written.count(b"\n") == 1
    assert decode(written[:-1], TO_WORKER) == frame


def test_the_two_directions_share_no_kind() -> None:
    # A frame that ends up on the wrong pipe must be seen as one.
    assert not set(TO_WORKER) & set(FROM_WORKER)
    assert frames.VERSION == 1
