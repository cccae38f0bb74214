"""stdout and stderr of this process, for runs and commands: the loop never blocks, nothing is lost or reordered."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from ..process.named import named
from ..process.pipes import BrokenPipe, PipeWriter
from ..process.stdio import Outputs


class Streams:
    """Both output streams; the `Tap` of a run.

    `broken` is set when one of them takes nothing any more: its reader is gone, or the disk is full.
    """

    def __init__(self, outputs: Outputs) -> None:
        self._writers = {"stdout": PipeWriter(outputs.stdout), "stderr": PipeWriter(outputs.stderr)}
        self.broken = trio.Event()
        # Where both are one terminal, a line that stdout left open is also stderr's.
        self._lines = {"stdout": "stdout", "stderr": "stdout" if os.path.sameopenfile(1, 2) else "stderr"}
        self._open: set[str] = set()

    def write(self, stream: str, chunk: bytes) -> None:
        """Take bytes of `stdout` or `stderr` without waiting; dropped once that stream is broken."""
        if chunk.endswith(b"\n"):
            self._open.discard(self._lines[stream])
        elif chunk:
            self._open.add(self._lines[stream])
        try:
            self._writers[stream].send_now(chunk)
        except BrokenPipe:
            self.broken.set()

    def say(self, stream: str, text: str) -> None:
        """Write whole lines of our own, on a new line if a cell left the last one open."""
        # backslashreplace: a lone surrogate in an error message must not become an error of ours.
        lines = text.rstrip("\n").encode("utf-8", "backslashreplace") + b"\n"
        self.write(stream, b"\n" + lines if self._lines[stream] in self._open else lines)

    def end_line(self) -> None:
        """End a line that a cell left open, so that the prompt does not overwrite it."""
        if "stdout" in self._open:
            self.write("stdout", b"\n")

    async def drained(self) -> None:
        """Wait until everything written has left this process, or can no longer."""
        for writer in self._writers.values():
            await writer.flushed()

    async def own(self, stream: str) -> None:
        """Write what could not be written at once. The one task that owns `stream`."""
        writer = self._writers[stream]
        try:
            await writer.run()
        except OSError:
            # A file on a full disk takes a part, and epoll refuses to wait for files.
            writer.fail()
        self.broken.set()


@asynccontextmanager
async def open_streams(outputs: Outputs) -> AsyncIterator[Streams]:
    """Own both streams. Leaving drops what is not written yet: wait for `drained` before."""
    streams = Streams(outputs)
    async with trio.open_nursery() as nursery:
        for name in ("stdout", "stderr"):
            nursery.start_soon(streams.own, name, name=named(f"writes {name}"))
        yield streams
        nursery.cancel_scope.cancel()


def complain(sentence: str) -> None:
    """One line on stderr from outside the event loop; a stderr that is closed is no reason to fail."""
    with suppress(OSError):
        os.write(2, f"{sentence}\n".encode("utf-8", "backslashreplace"))
