"""Non-blocking pipe ends on trio: read what is there, or write whole frames in order.

Smaller than `trio.lowlevel.FdStream`, for two reasons. A reader must be able to take what a pipe holds *now*, between
two scheduler steps, because that is how the end of a run's output is found. And a cancelled `send_all` leaves a torn
frame (65,536 of 300,000 bytes, measured): here a frame that was accepted is written by one owner, whatever happens to
the task that sent it.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import termios
from collections import deque

import trio

_READ = 65_536
_WIDE = 1_048_576
"""bytes. What a widened pipe holds: as much as Linux allows everybody, and a hundredth of a second of a fast flood."""


class BrokenPipe(Exception):
    """The other end is gone, or took too long: nothing more can be written."""


class PipeReader:
    """The reading end of a pipe (or of a socket, a terminal, a file). Owns its descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read_now(self, size: int = _READ) -> bytes | None:
        """What can be read without waiting: bytes, `b""` at EOF, None when nothing is there."""
        if self._fd < 0:
            return b""
        try:
            return os.read(self._fd, size)
        except BlockingIOError:
            return None
        except OSError:
            # EIO: a terminal whose other side went away; ECONNRESET on a socket. Nothing more will come.
            return b""

    def drain(self) -> list[bytes]:
        """Everything the pipe holds at this moment and nothing that comes later, without waiting.

        Bounded by FIONREAD: a child that floods the pipe cannot keep the server reading.
        """
        return self._take(self._waiting())

    def skim(self, last: int) -> tuple[int, bytes]:
        """Drop what the pipe holds at this moment but for the `last` bytes: how many were dropped, and those.

        Nothing is copied that is dropped, where the system can do that. Does not wait.
        """
        left = self._waiting()
        dropped = 0
        while left > last:
            count = self._drop(left - last)
            if not count:
                break
            dropped += count
            left -= count
        return dropped, b"".join(self._take(left))

    def widen(self) -> int:
        """Let the pipe hold more, where the system has and allows that; how many bytes it holds."""
        if sys.platform != "linux" or self._fd < 0:
            return _READ
        try:
            return fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _WIDE)
        except OSError:
            # EPERM: all pipes of a user have a bound together. Anything else: no pipe.
            return _READ

    def _waiting(self) -> int:
        """How many bytes can be read now."""
        if self._fd < 0:
            return 0
        waiting: int = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0"))[0]
        return waiting

    def _take(self, left: int) -> list[bytes]:
        """The next `left` bytes, which are there."""
        chunks: list[bytes] = []
        while left > 0:
            chunk = self.read_now(min(left, _READ))
            if not chunk:
                break
            left -= len(chunk)
            chunks.append(chunk)
        return chunks

    def _drop(self, count: int) -> int:
        """Drop some of the next `count` bytes, which are there; how many. 0 when the pipe broke."""
        if sys.platform == "linux":
            try:
                null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    return os.splice(self._fd, null, count)
                finally:
                    os.close(null)
            except OSError:
                # No descriptor left, or no pipe: by reading it goes as well.
                pass
        return len(self.read_now(min(count, _READ)) or b"")

    async def receive(self) -> bytes:
        """The next bytes, `b""` at EOF or after `close`. A checkpoint, and no more than one when bytes are there: each
        costs a scheduler step on the way of every call.
        """
        while await self._readable():
            chunk = self.read_now()
            if chunk is not None:
                return chunk
        return b""

    async def _readable(self) -> bool:
        """Wait until a read will not block; False after `close`."""
        if self._fd < 0:
            return False
        try:
            await trio.lowlevel.wait_readable(self._fd)
        except trio.ClosedResourceError:
            return False
        except PermissionError:
            # epoll takes no regular files (`repl-trio < requests`); those can always be read.
            await trio.lowlevel.checkpoint()
        return True

    def close(self) -> None:
        """Close the end; a waiting `receive` returns `b""`."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            trio.lowlevel.notify_closing(fd)
            os.close(fd)


class PipeWriter:
    """The writing end of a pipe: whole frames, in order, by one owner.

    `run` is the owner and must be running as a task. `frames` bounds the queue of senders that wait; `unread` bounds
    the bytes that the other side has not taken (None: only the queue is bounded).
    """

    def __init__(self, fd: int, *, frames: int | None = None, unread: int | None = None) -> None:
        self._fd = fd
        self._frames = frames
        self._unread = unread
        self._queue: deque[bytes] = deque()
        self._size = 0  # bytes in the queue
        self._written = 0  # bytes of the queue's first frame that are in the pipe
        self._wake = trio.Event()
        self._moved = trio.Event()  # set and replaced whenever a frame left the queue
        self.broken = trio.Event()

    @property
    def queued(self) -> bool:
        """Whether accepted bytes are not in the pipe yet."""
        return bool(self._queue)

    @property
    def unread(self) -> int:
        """Bytes of the frames that are not wholly in the pipe yet."""
        return self._size

    def send_now(self, frame: bytes) -> bool:
        """Accept a frame without waiting. False when the queue is full. Raises `BrokenPipe`.

        With nothing queued the frame is written right here: no task switch on the way of an ordinary answer.
        """
        if self.broken.is_set():
            raise BrokenPipe
        if not self._queue:
            written = self._write(frame)
            if written == len(frame):
                return True
            self._written = written
        elif self._frames is not None and len(self._queue) >= self._frames:
            return False
        self._queue.append(frame)
        self._size += len(frame)
        self._wake.set()
        if self._unread is not None and self._size > self._unread:
            self.fail()
            raise BrokenPipe
        return True

    async def send(self, frame: bytes) -> None:
        """Accept a frame, waiting for room in the queue. Cancelled here means: not accepted, nothing written."""
        while not self.send_now(frame):
            await self._moved.wait()

    async def flushed(self) -> None:
        """Wait until every accepted frame is in the pipe, or the pipe is broken."""
        while self._queue and not self.broken.is_set():
            await self._moved.wait()

    async def run(self) -> None:
        """Write what `send_now` could not, until the pipe breaks or the task is cancelled."""
        while not self.broken.is_set():
            while not self._queue:
                self._wake = trio.Event()
                await self._wake.wait()
                if self.broken.is_set():
                    return
            try:
                await trio.lowlevel.wait_writable(self._fd)
            except trio.ClosedResourceError:
                return
            except PermissionError:
                # A regular file: it took a part because the disk is full or its limit reached. The next write says so.
                await trio.lowlevel.checkpoint()
            self._write_queue()

    async def deserted(self) -> None:
        """Break the pipe as soon as nobody can read it any more, also while nothing is written. Needs Linux; elsewhere
        the next write finds out."""
        if sys.platform != "linux":
            return
        with select.epoll() as errors:
            try:
                errors.register(self._fd, 0)  # errors and hang-ups are always told
            except OSError:
                return  # a regular file
            await trio.lowlevel.wait_readable(errors.fileno())
            self.fail()

    def fail(self) -> None:
        """Give up on the other side: drop what is queued and wake everybody who waits."""
        self.broken.set()
        self._queue.clear()
        self._size = 0
        self._wake.set()
        self._moved.set()

    def close(self) -> None:
        """Close the end. The other side sees EOF after what was written."""
        self.fail()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            trio.lowlevel.notify_closing(fd)
            os.close(fd)

    def _write_queue(self) -> None:
        while self._queue:
            frame = self._queue[0]
            try:
                self._written += self._write(memoryview(frame)[self._written :])
            except BrokenPipe:
                return
            if self._written < len(frame):
                return
            self._queue.popleft()
            self._size -= len(frame)
            self._written = 0
            self._moved.set()
            self._moved = trio.Event()

    def _write(self, frame: bytes | memoryview) -> int:
        try:
            return os.write(self._fd, frame)
        except BlockingIOError:
            return 0
        except OSError:
            # EPIPE, ECONNRESET, EIO: nobody will read this. EBADF cannot be: `_fd` is ours alone.
            self.fail()
            raise BrokenPipe from None
