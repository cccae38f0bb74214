"""What `sh` does: run one command in a process group of its own, show its output as it comes, and keep a bounded copy.

The call ends when the shell has ended, whoever still holds its pipes: a background child, inside the group or not,
writing or silent, must not keep a cell waiting for an EOF that never comes. What the pipes hold at that moment is
taken, then the rest of the group is killed. Loaded on the first call (`isolation.isolated_import`).
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress

from ..limits import DEFAULT
from .gate import interruptible, shielded
from .sh import ShError, ShResult, ShTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .sh import Command

CHUNK = 65_536
#: Characters of stderr, and of the command, that an error message repeats.
SHOWN = 2_000
#: Seconds between looks at the shell where the kernel has no pidfd.
LOOK = 0.02


class _Capture:
    """Beginning and end of a stream, half of the bound each."""

    def __init__(self, size: int) -> None:
        self._half = size // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            over = len(self._tail) - self._half
            if over > 0:
                self._dropped += over
                del self._tail[:over]

    @property
    def truncated(self) -> bool:
        return self._dropped > 0

    def text(self) -> str:
        if not self._dropped:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        marker = f"\n[... {self._dropped:,} bytes left out ...]\n"
        # The halves may begin and end inside a character; "ignore" at the cut, not at what the command wrote.
        return self._head.decode("utf-8", "replace") + marker + self._tail.decode("utf-8", "replace")


class _Running:
    """One command while it runs: the process, its two pipes and what came out of them."""

    def __init__(self, command: Command, cwd: Any, env: Any) -> None:
        options: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
        # Popen takes the string itself to /bin/sh -c.
        self.process = subprocess.Popen(
            command,
            shell=isinstance(command, str),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=cwd,
            env=env,
            **options,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.pipes = {self.process.stdout.fileno(): 1, self.process.stderr.fileno(): 2}
        self.captured = {1: _Capture(DEFAULT.sh_bytes), 2: _Capture(DEFAULT.sh_bytes)}
        try:
            self.exit: int | None = os.pidfd_open(self.process.pid)
        except (AttributeError, OSError):
            self.exit = None

    @interruptible
    def follow(self, deadline: float) -> bool:
        """Show and keep output until the command has ended (True) or the deadline has come (False)."""
        poll = select.poll()
        for descriptor in self.pipes:
            poll.register(descriptor, select.POLLIN)
        if self.exit is not None:
            poll.register(self.exit, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            wait = left if self.exit is not None else min(left, LOOK)
            ended = False
            for descriptor, _event in poll.poll(min(wait, 86_400.0) * 1000):
                if descriptor == self.exit:
                    ended = True
                elif not self._take(descriptor, CHUNK):
                    poll.unregister(descriptor)
            if ended or (self.exit is None and self.process.poll() is not None):
                return True

    def drain(self) -> None:
        """Take what the pipes hold now, and no more: someone may be writing for ever."""
        for descriptor in self.pipes:
            size = array.array("i", [0])
            fcntl.ioctl(descriptor, termios.FIONREAD, size)
            left = size[0]
            while left > 0:
                taken = self._take(descriptor, min(left, CHUNK))
                if not taken:
                    break
                left -= taken

    def _take(self, descriptor: int, size: int) -> int:
        data = os.read(descriptor, size)
        number = self.pipes[descriptor]
        self.captured[number].add(data)
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(number, rest) :]
            except OSError:
                # The cell closed its own output. The copy is what the caller gets.
                break
        return len(data)

    def end(self) -> None:
        """Kill the group, reap the command, close the pipes."""
        # Before reaping: until then the number of the group cannot be another's.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        if self.exit is not None:
            os.close(self.exit)
            self.exit = None

    def result(self) -> ShResult:
        """What has come so far."""
        result = ShResult(self.captured[1].text())
        result.stderr = self.captured[2].text()
        result.returncode = self.process.returncode
        result.truncated = self.captured[1].truncated or self.captured[2].truncated
        return result


def run(command: Command, timeout: float | None, cwd: Any, env: Any, *, check: bool) -> ShResult:
    """Run a command; see `sh.sh`."""
    for stream in (sys.stdout, sys.stderr):
        # What was printed before comes before what the command writes. A cell may have set its stream to None.
        if stream is not None:
            stream.flush()
    running, ended = _run(command, time.monotonic() + timeout if timeout is not None else float("inf"), cwd, env)
    result = running.result()
    if not ended:
        raise ShTimeout(f"killed after {timeout:g} s: {_shown(command)}{_tail(result)}", result)
    if check and result.returncode != 0:
        raise ShError(f"{_ending(result.returncode)}: {_shown(command)}{_tail(result)}", result)
    return result


@shielded
def _run(command: Command, deadline: float, cwd: Any, env: Any) -> tuple[_Running, bool]:
    """(the command, reaped with its group; whether it ended before the deadline). Interrupts land in `follow`."""
    running = _Running(command, cwd, env)
    try:
        ended = running.follow(deadline)
        running.drain()
    finally:
        running.end()
    return running, ended


def _shown(command: Command) -> str:
    text = command if isinstance(command, str) else " ".join(map(str, command))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _tail(result: ShResult) -> str:
    text = result.stderr.strip()
    return f"\n{text[-SHOWN:]}" if text else ""


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"
