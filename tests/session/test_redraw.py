"""Of a line that is drawn again and again only the last form is kept, whatever the pieces it comes in."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_trio.session.capture import KEPT, Capture
from repl_trio.session.redraw import FORM

untimed = settings(deadline=None)
ROOM = 100_000
"""bytes. Of one read; more than any stream here has."""

pieces = st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"10%", "é".encode(), b"\xff", b"\xe5\xad"])
long_pieces = st.sampled_from([b"x" * 100, b"y" * (FORM - 3), b"z" * FORM, b"w" * (FORM + 1), b"\r" * 5_000])
streams = st.lists(pieces | pieces | long_pieces, max_size=25).map(b"".join)
cuts = st.lists(st.integers(0, 3) | st.integers(0, 3 * FORM), max_size=8)


def model(stream: bytes) -> bytes:
    """The same in one piece and without any hurry."""
    return b"\n".join(_last_form(line) for line in stream.split(b"\n"))


def _last_form(line: bytes) -> bytes:
    kept, last = b"", (b"", b"")
    for form, returns in re.findall(rb"([^\r]*)(\r*)", line):
        if form:
            kept += last[0] + b"\r" if len(last[0]) > FORM else b""
            last = form, returns
        elif returns:
            last = form, returns  # only before the first form
    return kept + last[0] + last[1][:1]


def chunked(stream: bytes, sizes: list[int]) -> list[bytes]:
    chunks = []
    for size in sizes:
        chunks.append(stream[:size])
        stream = stream[size:]
    return [*chunks, stream]


class Spilled:
    """What a capture gives to its artifact."""

    def __init__(self) -> None:
        self.content = b""
        self.ended = False

    def write(self, chunk: bytes) -> None:
        assert not self.ended
        self.content += chunk

    def finish(self) -> Spilled:
        assert not self.ended
        self.ended = True
        return self


def captured(chunks: list[bytes], head: int = ROOM, tail: int = ROOM) -> Capture:
    capture = Capture(head, tail)
    for chunk in chunks:
        capture.write(chunk)
    return capture


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (b"10%\r20%\r30%\n", "30%\n"),
        (b"\r10%\r20%\r30%\n", "30%\n"),
        (b"10%\r20%\r", "20%\r"),
        (b"before\n\r 10%\r 20%", "before\n 20%"),
        (b"one\r\ntwo\r\n", "one\r\ntwo\r\n"),
        (b"one\r\r\ntwo\r\r\n", "one\r\ntwo\r\n"),
        (b"\r", "\r"),
        (b"\r\r\r", "\r"),
        (b"\n\r\n", "\n\r\n"),
        (b"50%|##\r        \rdone\n", "done\n"),
        (b"0%|\r 50%|#\x1b[A\r100%|##\x1b[A\n", "100%|##\x1b[A\n"),
        (b"\x1b[2K\r 10 kB\x1b[K\r 20 kB\x1b[K\r\n", " 20 kB\x1b[K\r\n"),
        (b"\xff\r\xfe\n", "\ufffd\n"),
        (b"z" * FORM + b"\rshort", "short"),
        (b"w" * (FORM + 1) + b"\rshort", "w" * (FORM + 1) + "\rshort"),
        (b"a\r" + b"w" * (FORM + 1) + b"\rb\rc", "w" * (FORM + 1) + "\rc"),
    ],
)
def test_what_is_left_of_a_line(stream: bytes, text: str) -> None:
    for chunks in ([stream], [stream[:1], stream[1:]], [bytes([byte]) for byte in stream]):
        assert captured(chunks).render() == (text, None)
    assert model(stream).decode("utf-8", "replace") == text


@untimed
@given(streams, cuts)
def test_any_stream_in_any_pieces_is_what_the_model_says(stream: bytes, sizes: list[int]) -> None:
    capture = captured(chunked(stream, sizes))
    expected = model(stream)
    assert capture.total == len(expected)
    assert capture.render() == (expected.decode("utf-8", "replace"), None)
    assert capture.read(0, ROOM, ended=True) == (expected.decode("utf-8", "replace"), len(expected))


@untimed
@given(streams, cuts, st.sampled_from([0, 1, 40, FORM]), st.sampled_from([1, 16, 200]))
def test_head_tail_and_spill_are_of_the_text_that_is_left(
    stream: bytes, sizes: list[int], head: int, tail: int
) -> None:
    spilled: list[Spilled] = []

    def spill() -> Spilled:
        spilled.append(Spilled())
        return spilled[-1]

    capture = Capture(head, tail, spill)  # type: ignore[arg-type]
    for chunk in chunked(stream, sizes):
        capture.write(chunk)
        assert len(capture._tail) <= 2 * (tail + KEPT)
    expected = model(stream)
    assert capture.total == len(expected)
    assert capture._head == expected[:head]
    assert bytes(capture._tail).endswith(expected[head:][-tail:])
    artifact = capture.finish_spill()
    assert (artifact is None) == (len(expected) <= head + tail) == (not spilled)
    if spilled:
        assert (len(spilled), spilled[0].ended, spilled[0].content) == (1, True, expected)
    assert capture.finish_spill() is None


@untimed
@given(streams, cuts)
def test_a_reader_that_follows_gets_the_text_and_the_line_as_it_is_now(stream: bytes, sizes: list[int]) -> None:
    capture, after, seen = Capture(ROOM, ROOM), 0, ""
    for chunk in chunked(stream, sizes):
        capture.write(chunk)
        text, following = capture.read(after, ROOM, ended=False)
        assert following >= after, "a cursor never goes back"
        again, still = capture.read(following, ROOM, ended=False)
        assert still == following
        assert text.endswith(again), "the line that is being redrawn is shown again"
        seen, after = seen + text[: len(text) - len(again)], following
    text, end = capture.read(after, ROOM, ended=True)
    assert end == capture.total
    assert seen + text == capture.read(0, ROOM, ended=True)[0]
    # What nobody had seen was free to go; what a reader had, stays.
    assert model(bytes(capture._head)) == model(stream)


def test_the_line_that_is_being_redrawn_is_seen_but_not_passed() -> None:
    capture = captured([b"start\n", b"\r 10%"])
    assert capture.read(0, 100, ended=False) == ("start\n 10%", 6)
    capture.write(b"\r 20%\r")
    assert capture.read(6, 100, ended=False) == (" 20%", 6)
    assert capture.last_line() == "20%"
    assert capture.read(6, 3, ended=False) == ("20%", 6)
    assert capture.read(0, 6, ended=False) == ("start\n", 6)
    capture.write(b" 30%\nend")
    assert capture.read(6, 100, ended=False) == (" 30%\nend", 14)


def test_a_line_that_a_reader_has_stays_when_it_is_redrawn() -> None:
    capture = captured([b"copying: 10%"])
    assert capture.read(0, 100, ended=False) == ("copying: 10%", 12)
    capture.write(b"\rcopying: 20%")
    assert capture.read(12, 100, ended=False) == ("\rcopying: 20%", 13)
    capture.write(b"\rcopying: 100%\n")
    assert capture.read(13, 100, ended=False) == ("copying: 100%\n", 27)


def test_a_redraw_flood_pushes_nothing_out() -> None:
    capture = Capture(100, 100, lambda: pytest.fail("nothing to spill"))
    capture.write(b"real line\n")
    for percent in range(100_000):
        capture.write(b"\r%d of 100000 [%s]" % (percent, b"#" * 50))
    capture.write(b"\nlast line\n")
    assert capture.render()[0] == f"real line\n99999 of 100000 [{'#' * 50}]\nlast line\n"


def test_a_chunk_without_a_return_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capture, "_redraw", lambda *_: pytest.fail("looked at"))
    capture = captured([b"a\nb", b"c\n" * 1_000], 10, 10)
    assert capture.total == 2_003


@pytest.mark.parametrize(
    "chunk", [b"\r" * 65_536, b"\r\n" * 32_768, b"\rx" * 32_768, b"x\r\n\r" * 16_384, b"w" * 65_536]
)
def test_no_bytes_are_slow(chunk: bytes) -> None:
    # Quadratic work on one of these would take minutes: the suite's own bound is the assertion.
    capture = captured([b"\r", *[chunk] * 100], 100, 100)
    assert len(capture._tail) <= 2 * (100 + KEPT)


def test_skipped_bytes_count_and_the_tail_is_right_after_them() -> None:
    capture = captured([b"head of it\n" * 1_000], 100, 50)
    assert capture.settled(10**9)
    rest = b"".join(b"line %d\n" % number for number in range(2_000))
    assert len(rest) >= capture.last
    capture.skip(10_000_000, rest)
    assert capture.total == 11_000 + 10_000_000 + len(rest)
    text, gap = capture.render()
    assert gap is not None
    assert text.startswith("head of it\n")
    assert text.endswith("line 1997\nline 1998\nline 1999\n")
    assert gap == 100 - 1
    capture.write(b"\r1%\r2%\n")
    assert capture.render()[0].endswith("line 1999\n2%\n")


def test_a_redrawn_line_right_after_skipped_bytes() -> None:
    capture = captured([b"x" * 10_000], 100, 50)
    rest = b"f of it\r1%\r2%\n" + b"y\n" * capture.last
    capture.skip(1_000, rest)
    assert capture.total == 11_000 + 3 + 2 * capture.last


def test_a_form_that_stays_does_not_hold_readers_up() -> None:
    capture = captured([b"1%\r", b"w" * 2 * FORM])
    assert capture.read(0, ROOM, ended=False) == ("w" * 2 * FORM, 2 * FORM)
    capture.write(b"\r2%")
    assert capture.read(2 * FORM, ROOM, ended=False) == ("\r2%", 2 * FORM + 1)


def test_a_capture_is_settled_only_when_nothing_but_the_tail_matters() -> None:
    assert not captured([b"x" * 100], 50, 50).settled(0)
    assert captured([b"x" * 101], 50, 50).settled(0)
    spilled = Spilled()
    capture = Capture(50, 50, lambda: spilled)  # type: ignore[arg-type, return-value]
    capture.write(b"x" * 20_000)
    assert capture.settled(5_000)
    assert not capture.settled(20_000)


def test_the_spill_has_the_offsets_of_the_pages() -> None:
    spilled = Spilled()
    capture = Capture(30, 30, lambda: spilled)  # type: ignore[arg-type, return-value]
    for number in range(5_000):
        capture.write(b"%d\n\r%d%%\r%d%%\n" % (number, number, number + 1))
    capture.finish_spill()
    text, following = capture.read(capture.total - 30, 100, ended=True)
    assert spilled.content[-30:].decode() == text
    assert following == len(spilled.content) == capture.total
    assert spilled.content[:30] == capture._head
