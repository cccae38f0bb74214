"""A flood of which only the end matters is dropped in large steps, and its last bytes are right."""

from __future__ import annotations

import os
import sys

import pytest
import trio
import trio.testing

from repl_trio.process.pipes import PipeReader
from repl_trio.session.capture import Capture
from repl_trio.session.flood import thin_out

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pipes of a size that others do not have")


async def test_a_settled_flood_is_counted_and_its_end_kept(autojump_clock: trio.testing.MockClock) -> None:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    reader = PipeReader(reading)
    capture = Capture(100, 1_000)
    capture.write(b"x" * 2_000)
    reader.widen()
    expected, turns = 2_000, 0
    begun = trio.current_time()
    lines = iter(range(10**9))
    while expected < 5_000_000:
        flood = b"".join(b"%07d\n" % next(lines) for _ in range(20_000))
        expected += os.write(writing, flood)
        await thin_out(reader, lambda: capture, 0)
        turns += 1
        assert capture.total == expected
        assert capture._tail.endswith(flood[-1_000:])
    # Not faster than the rate, however fast the writer is.
    assert trio.current_time() - begun >= turns * 0.009
    assert capture.missing == expected - 1_100
    os.close(writing)
    reader.close()


@pytest.mark.parametrize("size", [100, 100_000])
async def test_nothing_is_dropped_of_a_run_that_began_meanwhile(
    autojump_clock: trio.testing.MockClock, size: int
) -> None:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    reader = PipeReader(reading)
    reader.widen()
    before, after = Capture(10, 10), Capture(10, 10)
    before.write(b"x" * 100)
    os.write(writing, b"y" * size)
    owners = [after]
    await thin_out(reader, lambda: owners[0], 0)
    assert (before.total, after.total) == (100, 0)
    owners[0] = before
    await thin_out(reader, lambda: owners[0], 0)
    assert before.total == 100 + size
    os.close(writing)
    reader.close()
