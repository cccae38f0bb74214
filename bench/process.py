"""One measured process: started with pipes, read by the line, every wait bounded, ended with all that it started.

Times are `time.perf_counter()` seconds, taken right before the fork and right after the read that completed a line.
"""

import contextlib
import os
import selectors
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Self

import psutil

READ_BYTES = 1 << 18
END_SECONDS = 5.0
"""How long a process may take to end after its input ended; longer than the 3 s that repl_trio promises."""
ORPHAN_SECONDS = 1.0
"""How long what a process started may outlive it before it is counted as left behind."""
STDERR_LINES = 15
STDERR_BYTES = 1 << 14


class MeasureError(Exception):
    """A figure could not be measured; the message says what was awaited, and shows the end of the process's stderr."""


class Unanswered(MeasureError):
    """What was awaited did not come in time; the process still runs."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output without its newline, and when it was complete."""

    content: bytes
    arrived: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes held by a process and all its descendants; `pss` is None where the system does not tell."""

    rss: int
    pss: int | None


class MeasuredProcess:
    """A process in a session of its own: a Ctrl-C at the terminal reaches only this program, which then ends it.

    `started` is the moment before the fork. `left_behind` is, after `close`, the number of descendants that outlived
    the process and were killed.
    """

    def __init__(self, command: Sequence[str], cwd: str) -> None:
        self.name = " ".join(command)
        self.left_behind = 0
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close(), after the last look into it
        self.started = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=cwd,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._stderr.close()
            raise MeasureError(f"{self.name}: cannot be started: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        self._readable = selectors.DefaultSelector()
        self._readable.register(self._stdout, selectors.EVENT_READ)
        self._partial = bytearray()
        self._lines: deque[Line] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, content: bytes, bound: float) -> None:
        """Write all of `content` within `bound` seconds."""
        deadline = time.perf_counter() + bound
        rest = memoryview(content)
        while rest:
            try:
                rest = rest[os.write(self._stdin.fileno(), rest) :]
            except BlockingIOError:
                self._wait_writable(deadline)
            except BrokenPipeError:
                raise self.failure("closed its stdin") from None

    def read_line(self, deadline: float, awaited: str) -> Line:
        """The next line of output; Unanswered at the deadline, MeasureError at the end of the output."""
        while not self._lines:
            if not self._read_some(deadline):
                if time.perf_counter() >= deadline:
                    raise Unanswered(self._described(f"no {awaited} in time"))
                raise self.failure(f"ended, so no {awaited}")
        return self._lines.popleft()

    def read_to_end(self, bound: float) -> float:
        """The moment the output ended, which for a process without descendants is the moment of its exit."""
        deadline = time.perf_counter() + bound
        while self._read_some(deadline):
            pass
        ended = time.perf_counter()
        if ended >= deadline:
            raise self.failure(f"not ended within {bound:g} s")
        return ended

    def drop_to_end(self, bound: float) -> float:
        """`read_to_end`, for output that is too large to be kept."""
        deadline = time.perf_counter() + bound
        while self._readable.select(max(0.0, deadline - time.perf_counter())):
            if not os.read(self._stdout.fileno(), READ_BYTES):
                return time.perf_counter()
        raise self.failure(f"not ended within {bound:g} s")

    def idle(self, seconds: float) -> None:
        """Leave the process alone for this long, keeping what it writes."""
        deadline = time.perf_counter() + seconds
        while self._read_some(deadline):
            pass

    def memory(self) -> Memory:
        """What the process and its descendants hold now."""
        held = []
        for process in self._tree():
            # What has ended meanwhile holds nothing.
            with contextlib.suppress(psutil.NoSuchProcess):
                held.append(_held(process))
        shares = [pss for _, pss in held if pss is not None]
        return Memory(sum(rss for rss, _ in held), sum(shares) if len(shares) == len(held) else None)

    @property
    def pid(self) -> int:
        """Of the process itself."""
        return self._process.pid

    def below(self) -> list[psutil.Process]:
        """Everything that it has started, directly or not."""
        return self._tree()[1:]

    def own(self) -> tuple[float, int]:
        """What the process alone has used and holds: seconds of processor time, and bytes of RSS."""
        process = psutil.Process(self._process.pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss

    def failure(self, what: str) -> MeasureError:
        """An error about this process, with the last lines of its stderr."""
        return MeasureError(self._described(what))

    def _described(self, what: str) -> str:
        # pread: the position is shared with the process, whose next line would overwrite an earlier one after a seek.
        size = os.fstat(self._stderr.fileno()).st_size
        tail = os.pread(self._stderr.fileno(), STDERR_BYTES, max(0, size - STDERR_BYTES))
        lines = tail.decode(errors="replace").splitlines()[-STDERR_LINES:]
        return "\n    | ".join([f"{self.name}: {what}", *lines])

    def close(self, *, at_once: bool = False) -> None:
        """End the process and all below it: by the end of its input, or with `at_once` by SIGKILL. Safe to repeat."""
        if self._stderr.closed:
            return
        tree = self._tree()
        try:
            self._stdin.close()
            if not at_once:
                self._wait_for_end(time.perf_counter() + END_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._end_descendants(tree[1:], at_once=at_once)
            self._readable.close()
            self._stdout.close()
            self._stderr.close()

    def _tree(self) -> list[psutil.Process]:
        """This process first, then its descendants; only itself missing once it has been reaped."""
        try:
            process = psutil.Process(self._process.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _end_descendants(self, descendants: list[psutil.Process], *, at_once: bool) -> None:
        """Kill what outlived its server; psutil refuses a pid that has meanwhile become someone else's."""
        left = descendants if at_once else psutil.wait_procs(descendants, timeout=ORPHAN_SECONDS)[1]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process.kill()
        psutil.wait_procs(left, timeout=ORPHAN_SECONDS)
        if not at_once:
            self.left_behind = len(left)

    def _wait_for_end(self, deadline: float) -> None:
        """Wait for the exit, reading what is still written: a process with much to say could not end otherwise."""
        while self._read_some(deadline):
            pass
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.perf_counter()))

    def _wait_writable(self, deadline: float) -> None:
        with selectors.DefaultSelector() as writable:
            writable.register(self._stdin, selectors.EVENT_WRITE)
            if not writable.select(max(0.0, deadline - time.perf_counter())):
                raise self.failure("does not read its stdin")

    def _read_some(self, deadline: float) -> bool:
        """Read once and keep the lines; False at the end of the output, or when nothing came before the deadline."""
        if not self._readable.select(max(0.0, deadline - time.perf_counter())):
            return False
        piece = os.read(self._stdout.fileno(), READ_BYTES)
        arrived = time.perf_counter()
        if b"\n" not in piece:
            self._partial += piece
            return bool(piece)
        *whole, rest = piece.split(b"\n")
        whole[0] = bytes(self._partial) + whole[0]
        self._partial = bytearray(rest)
        self._lines.extend(Line(content, arrived) for content in whole)
        return True


def _held(process: psutil.Process) -> tuple[int, int | None]:
    """RSS and PSS of one process in bytes."""
    try:
        full = process.memory_full_info()
    except psutil.AccessDenied:
        return process.memory_info().rss, None
    return full.rss, getattr(full, "pss", None)
