"""A capture keeps the head and the tail of a stream, and gives every kept byte once."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_trio.session.capture import KEPT, Capture

HEAD, TAIL = 40, 16
untimed = settings(deadline=None)
MARKER = re.compile(r"\[\.\.\. ([\d,]+) bytes of output not shown \.\.\.\]\n")
ROOM = 20
"""bytes. Of one read; more than a character has."""

letters = st.characters(codec="utf-8", exclude_characters="\r")  # test_redraw.py is about those
texts = st.lists(st.sampled_from(["a", "\n", "é", "字", "🎈"]) | letters, max_size=60).map("".join)


def chunked(stream: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(cut, len(stream)) for cut in cuts})
    return [stream[start:stop] for start, stop in zip([0, *at], [*at, len(stream)], strict=True)]


chunks_of_text = st.tuples(texts, st.lists(st.integers(0, 200), max_size=10)).map(
    lambda two: chunked(two[0].encode(), two[1])
)


def captured(chunks: list[bytes], head: int = HEAD, tail: int = TAIL) -> Capture:
    capture = Capture(head, tail)
    for chunk in chunks:
        capture.write(chunk)
    return capture


def pages(capture: Capture, room: int = ROOM) -> list[str]:
    """Everything by `read`, from the start until nothing more comes."""
    found, after = [], 0
    while after < capture.total:
        text, following = capture.read(after, room, ended=True)
        assert following > after, "a reader would ask for ever"
        assert len(text.encode()) <= 3 * room + 80
        found.append(text)
        after = following
    return found


@untimed
@given(chunks_of_text)
def test_a_stream_that_fits_is_complete(chunks: list[bytes]) -> None:
    capture = captured(chunks, 400, 100)
    assert capture.total == sum(map(len, chunks))
    assert capture.missing == 0
    assert capture.render() == (b"".join(chunks).decode(), None)


@untimed
@given(chunks_of_text)
def test_head_and_tail_of_a_stream(chunks: list[bytes]) -> None:
    stream = b"".join(chunks)
    capture = captured(chunks)
    missing = max(len(stream) - HEAD - TAIL, 0)
    assert (capture.total, capture.missing) == (len(stream), missing)
    text, gap = capture.render()
    if not missing:
        assert (text, gap) == (stream.decode(), None)
        return
    before, told, after = MARKER.split(text)
    assert gap is not None
    head, tail = before.encode()[:gap], after.encode()  # without the newline that sets the marker apart
    assert (stream[:gap], stream[len(stream) - len(tail) :]) == (head, tail)
    assert len(head) + int(told) + len(tail) == len(stream)
    # Nothing that fits is left out but a character that was cut, or a line that would begin or end in its middle.
    assert gap <= HEAD
    assert gap > HEAD - 4 or head.endswith(b"\n")
    assert len(tail) <= TAIL
    assert len(tail) > TAIL - 4 or stream[: len(stream) - len(tail)].endswith(b"\n")


@untimed
@given(chunks_of_text, st.integers(8, 80))
def test_a_smaller_room_takes_from_both_ends(chunks: list[bytes], room: int) -> None:
    stream = b"".join(chunks)
    capture = captured(chunks)
    text, gap = capture.render(room)
    if gap is None:
        assert text == stream.decode()
        return
    before, _, after = text.partition("[... ")
    _, _, after = after.partition(" bytes of output not shown ...]\n")
    before = before[: len(before.encode()[:gap].decode())]  # without the newline that sets the marker apart
    assert len(before.encode()) + len(after.encode()) <= room
    assert gap == len(before.encode())
    assert stream.startswith(before.encode())
    assert stream.endswith(after.encode())
    # What a cell says last matters more; a line that would begin in its middle is left out.
    cut = stream[: len(stream) - len(after.encode())]
    assert len(after.encode()) >= min(TAIL, room * 3 // 5) - 3 or cut.endswith(b"\n")


def test_a_cut_falls_between_lines_where_they_are_short() -> None:
    capture = Capture(1_000, 500)
    capture.write(b"".join(b"%d\n" % number for number in range(10_000)))
    text, gap = capture.render(800)
    before, _, after = text.partition("[... ")
    assert gap == len(before)
    assert before.splitlines() == [str(number) for number in range(len(before.splitlines()))]
    last = after.partition("\n")[2].splitlines()
    assert last == [str(number) for number in range(10_000 - len(last), 10_000)]


@untimed
@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(0, 60) | st.none())
def test_any_bytes_are_text(chunks: list[bytes], room: int | None) -> None:
    capture = captured(chunks)
    capture.render(room)[0].encode()
    for text in pages(capture):
        text.encode()
    capture.last_line().encode()


@untimed
@given(chunks_of_text)
def test_pages_of_a_complete_stream_are_the_stream(chunks: list[bytes]) -> None:
    capture = captured(chunks, 400, 100)
    assert "".join(pages(capture)) == b"".join(chunks).decode()


@untimed
@given(chunks_of_text)
def test_pages_over_the_seam_of_head_and_tail_are_the_stream(chunks: list[bytes]) -> None:
    # Nothing is lost, but the head ends wherever its room ended: also inside a character.
    stream = b"".join(chunks)[: HEAD + TAIL].decode(errors="ignore")
    capture = captured([stream.encode()])
    assert capture.missing == 0
    assert "".join(pages(capture)) == stream


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_character_on_the_seam(cut: int) -> None:
    stream = "x" * (HEAD - cut) + "字" * 4
    assert "".join(pages(captured([stream.encode()]))) == stream


@untimed
@given(chunks_of_text)
def test_pages_of_a_cut_stream_are_what_is_kept(chunks: list[bytes]) -> None:
    stream = b"x" * HEAD + b"".join(chunks) + b"y" * TAIL
    capture = captured([stream])
    marker = f"\n[... {capture.missing} bytes of output not kept ...]\n" if capture.missing else ""
    middle = "" if capture.missing else b"".join(chunks).decode()
    assert "".join(pages(capture)) == "x" * HEAD + marker + middle + "y" * TAIL


@untimed
@given(chunks_of_text)
def test_a_reader_that_follows_sees_every_character_once(chunks: list[bytes]) -> None:
    capture, after, seen = Capture(400, 100), 0, ""
    for chunk in chunks:
        capture.write(chunk)
        text, following = capture.read(after, 1_000, ended=False)
        assert "�" not in text or "�" in b"".join(chunks).decode()
        seen, after = seen + text, following
    text, after = capture.read(after, 1_000, ended=True)
    assert seen + text == b"".join(chunks).decode()
    assert after == capture.total


def test_half_a_character_waits_for_its_rest_but_not_beyond_the_end() -> None:
    capture = captured(["a字".encode()[:-1]])
    assert capture.read(0, ROOM, ended=False) == ("a", 1)
    assert capture.read(1, ROOM, ended=False) == ("", 1)
    assert capture.read(1, ROOM, ended=True) == ("�", 3)
    capture.write("字".encode()[-1:])
    assert capture.read(1, ROOM, ended=False) == ("字", 4)


@pytest.mark.parametrize("after", [-5, 0, 3, 99])
def test_an_offset_beyond_the_stream_is_its_nearest(after: int) -> None:
    capture = captured([b"abc"])
    assert capture.read(after, ROOM, ended=True) == ("abc"[max(after, 0) :], 3)


def test_memory_is_bounded() -> None:
    capture = captured([b"x" * 1_000] * 1_000)
    assert len(capture._head) + len(capture._tail) <= HEAD + 2 * (TAIL + KEPT)
    assert capture.total == 1_000_000


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (b"", ""),
        (b"\n\n", ""),
        (b"one\ntwo", "two"),
        (b"one\ntwo\n\n  \n", "two"),
        (b"10%\r50%\r99%\r", "99%"),
        (b"a\r\nb\r\n", "b"),
        ("字\n".encode(), "字"),
        (b"x" * HEAD + b"\nlast\n", "last"),
        (b"y" * (HEAD - 5) + b"\nlast" + b"\n", "last"),
        (b"\xff\n", "�"),
    ],
)
def test_the_last_line(written: bytes, line: str) -> None:
    assert captured([written]).last_line() == line
