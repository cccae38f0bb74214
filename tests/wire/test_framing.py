"""Lines out of a byte stream: the same for every chunking, and never more memory than one line may take."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_trio.wire.framing import LineDecoder, Oversized

untimed = settings(deadline=None)
LIMIT = 10

# Few letters, so that newlines, carriage returns and lines around the limit are common.
streams = st.lists(st.sampled_from([b"\n", b"\r", b"a", b"bcdef", b"\x00", b"\xff" * LIMIT]), max_size=40).map(b"".join)


def decoded(chunks: list[bytes], limit: int = LIMIT) -> list[bytes | int]:
    """All lines of a stream that came in these chunks; an oversized one as its size."""
    decoder = LineDecoder(limit)
    lines = [line for chunk in chunks for line in decoder.feed(chunk)] + decoder.finish()
    return [line.size if isinstance(line, Oversized) else line for line in lines]


def expected(stream: bytes, limit: int = LIMIT) -> list[bytes | int]:
    """The same by the definition, with everything in memory."""
    *lines, rest = stream.split(b"\n")
    return [
        len(line) if len(line) > limit else line.removesuffix(b"\r") for line in [*lines, *([rest] if rest else [])]
    ]


@untimed
@given(streams, st.data())
def test_every_chunking_gives_the_same_lines(stream: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    chunks = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decoded(chunks) == expected(stream)


@untimed
@given(streams)
def test_byte_by_byte(stream: bytes) -> None:
    assert decoded([bytes([byte]) for byte in stream]) == expected(stream)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b""])
def test_a_line_at_the_limit_passes_and_one_over_it_does_not(ending: bytes) -> None:
    room = LIMIT - (len(ending) - 1 if ending else 0)  # the carriage return counts
    assert decoded([b"x" * room + ending]) == [b"x" * room]
    assert decoded([b"x" * (room + 1) + ending]) == [LIMIT + 1]


def test_lines_are_handed_out_as_soon_as_they_are_complete() -> None:
    decoder = LineDecoder(LIMIT)
    assert decoder.feed(b"one\ntwo") == [b"one"]
    assert decoder.feed(b"") == []
    assert decoder.feed(b"\n\n") == [b"two", b""]
    assert decoder.finish() == []


def test_an_unterminated_rest_is_a_line_at_the_end_only_once() -> None:
    decoder = LineDecoder(LIMIT)
    assert decoder.feed(b"rest") == []
    assert decoder.finish() == [b"rest"]
    assert decoder.finish() == []


def test_the_line_behind_an_oversized_one_is_read() -> None:
    assert decoded([b"x" * 7, b"x" * 7, b"x\nnext\n", b"y" * 100]) == [15, b"next", 100]


def test_a_long_line_is_not_held() -> None:
    # 64 MB in chunks of 64 KiB against a limit of 1 MiB; the peak counts the limit, one chunk and the list's growth.
    limit, chunk = 1 << 20, b"x" * (1 << 16)
    decoder = LineDecoder(limit)
    tracemalloc.start()
    try:
        for _ in range(1_024):
            assert decoder.feed(chunk) == []
        (line,) = decoder.feed(b"\n")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(line, Oversized)
    assert line.size == 1_024 * len(chunk)
    assert peak < 3 * limit
    assert decoder.feed(b"next\n") == [b"next"]
