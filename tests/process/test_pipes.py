"""Pipe ends, starts and reaping: what is there now, whole frames in order, and nothing left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from repl_trio.limits import Limits
from repl_trio.process.launch import Root
from repl_trio.process.moment import Clock
from repl_trio.process.pipes import BrokenPipe, PipeReader, PipeWriter
from repl_trio.process.reap import reap
from repl_trio.process.root import open_root
from repl_trio.process.start import start_worker

HANG = 20.0


def pipe() -> tuple[int, int]:
    """A pipe with both ends non-blocking."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


async def test_a_reader_gives_what_is_there_then_the_end() -> None:
    reading, writing = pipe()
    reader = PipeReader(reading)
    assert reader.read_now() is None
    os.write(writing, b"x" * 100_000)
    assert len(b"".join(reader.drain())) == 65_536
    os.write(writing, b"more")
    with trio.fail_after(HANG):
        assert await reader.receive() == b"more"
    os.close(writing)
    with trio.fail_after(HANG):
        assert await reader.receive() == b""
    reader.close()
    assert (reader.read_now(), reader.drain(), await reader.receive()) == (b"", [], b"")


def without_splice(_from: int, _to: int, _count: int) -> int:
    raise OSError(errno.EINVAL, "no splice here")


@pytest.mark.parametrize("spliced", [True, False])
@pytest.mark.parametrize("last", [0, 1, 10_000, 65_536, 200_000])
async def test_a_skim_drops_all_but_the_last_bytes(monkeypatch: pytest.MonkeyPatch, spliced: bool, last: int) -> None:
    if not spliced:
        monkeypatch.setattr(os, "splice", without_splice, raising=False)
    reading, writing = pipe()
    reader = PipeReader(reading)
    reader.widen()
    flood = b"".join(b"%07d\n" % number for number in range(25_000))
    written = os.write(writing, flood)
    descriptors = len(os.listdir("/dev/fd"))
    dropped, rest = reader.skim(last)
    assert dropped == max(written - last, 0)
    assert rest == flood[:written][dropped:]
    assert len(os.listdir("/dev/fd")) == descriptors
    assert reader.skim(last) == (0, b"")
    os.write(writing, b"more")
    assert reader.skim(4) == (0, b"more")
    os.close(writing)
    assert reader.skim(last) == (0, b"")
    reader.close()
    assert reader.skim(last) == (0, b"")


def test_a_pipe_that_may_not_grow_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> int:
        raise PermissionError(errno.EPERM, "too many pipes")

    reading, writing = pipe()
    reader = PipeReader(reading)
    if sys.platform == "linux":
        assert reader.widen() == 1_048_576
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "fcntl", refuse)
        assert reader.widen() == 65_536
    os.close(writing)
    os.close(reader._fd)
    reader._fd = -1
    assert reader.widen() == 65_536


async def test_a_close_wakes_a_reader() -> None:
    reading, writing = pipe()
    reader = PipeReader(reading)
    with trio.fail_after(HANG):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.receive)
            await trio.testing.wait_all_tasks_blocked()
            reader.close()
    os.close(writing)


async def test_a_regular_file_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "requests").write_bytes(b"line\n")
    reader = PipeReader(os.open(tmp_path / "requests", os.O_RDONLY))
    with trio.fail_after(HANG):
        assert await reader.receive() == b"line\n"
        assert await reader.receive() == b""
    reader.close()


def test_an_end_that_breaks_is_the_end() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.send(b"unread")
    ours.send(b"unread")
    theirs.close()  # with unread bytes: the connection is reset
    reader = PipeReader(os.dup(ours.fileno()))
    ours.close()
    assert reader.read_now() in (b"unread", b"")
    assert reader.read_now() == b""
    os.close(reader._fd)


async def test_a_writer_queues_what_does_not_fit_and_finishes_it() -> None:
    reading, writing = pipe()
    writer, reader = PipeWriter(writing, frames=2), PipeReader(reading)
    frames = [bytes([65 + number]) * 50_000 for number in range(4)]
    assert [writer.send_now(frame) for frame in frames] == [True, True, True, False]
    assert writer.queued
    taken = b""
    with trio.fail_after(HANG):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            nursery.start_soon(writer.send, frames[3])
            while len(taken) < 200_000:
                taken += await reader.receive()
            await writer.flushed()
            writer.close()
    assert taken == b"".join(frames)
    reader.close()


async def test_a_writer_without_a_reader_is_broken() -> None:
    reading, writing = pipe()
    writer = PipeWriter(writing)
    os.close(reading)
    with pytest.raises(BrokenPipe):
        writer.send_now(b"x")
    assert writer.broken.is_set()
    with pytest.raises(BrokenPipe):
        writer.send_now(b"x")
    writer.close()


async def test_a_reader_that_goes_while_frames_wait_breaks_the_writer() -> None:
    reading, writing = pipe()
    writer = PipeWriter(writing)
    writer.send_now(b"x" * 200_000)
    with trio.fail_after(HANG):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            os.close(reading)
            await writer.broken.wait()
    writer.close()


async def test_too_much_that_nobody_reads_breaks_the_writer() -> None:
    reading, writing = pipe()
    writer = PipeWriter(writing, unread=100_000)
    with pytest.raises(BrokenPipe):
        writer.send_now(b"x" * 300_000)
    writer.close()
    os.close(reading)


@pytest.mark.parametrize("with_pidfd", [True, False])
async def test_a_child_is_reaped_by_its_pid(monkeypatch: pytest.MonkeyPatch, with_pidfd: bool) -> None:
    if not with_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    child = os.posix_spawn(  # noqa: ASYNC221 - only started here
        sys.executable, [sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"], {}
    )
    with trio.fail_after(HANG):
        status = await reap(child)
        assert status is not None
        assert os.waitstatus_to_exitcode(status) == 3
        assert await reap(child) is None


async def test_a_start_that_nobody_adopts_leaves_nothing(tmp_path: Path) -> None:
    root = Root()
    start_worker(root, sys.executable, str(tmp_path), {}, Limits()).abandon()
    with trio.fail_after(HANG):
        async with open_root(root, Limits()):
            pass
    assert not root.lives


async def test_an_environment_over_the_frame_limit_is_an_error_that_names_it(tmp_path: Path) -> None:
    root = Root()
    with pytest.raises(OSError, match="frame_bytes") as error:
        start_worker(root, sys.executable, str(tmp_path), {"BIG": "x" * 2_000_000}, Limits())
    assert error.value.errno == errno.E2BIG
    async with open_root(root, Limits()):
        pass


def test_a_start_without_descriptors_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_named: object) -> int:
        raise OSError(errno.EAGAIN, "no process")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    with pytest.raises(OSError, match="limit on processes"):
        start_worker(Root(), sys.executable, str(tmp_path), {}, Limits())


def test_moments_follow_one_another() -> None:
    clock = Clock()
    first, second = clock.now(), clock.now()
    assert first.ticks <= second.ticks
    clock.close()
    clock.close()
