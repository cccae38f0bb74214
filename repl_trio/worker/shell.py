"""What `sh` and `ash` do: run a command in a group of its own, show its output as it comes, keep a bounded copy.

The call ends when the shell has ended, whoever still holds its pipes: a background child, inside the group or not,
writing or silent, must not keep a cell waiting for an EOF that never comes. What the pipes hold at that moment is
taken, then the rest of the group is killed. Here are the command and the way `sh` follows it; `ash` has its own. Loaded
on the first call (`isolation.isolated_import`).
"""

from __future__ import annotations

import array
import codecs
import errno
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
from .preview import name_of
from .sh import ShError, ShResult, ShTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CHUNK = 65_536
#: Characters of stderr, and of the command, that an error message repeats.
SHOWN = 2_000
#: Seconds between looks at the shell where the kernel has no pidfd.
LOOK = 0.02
#: Seconds that a killed command may take to be gone: one that belongs to root (`sudo`) cannot be killed at all.
ENDING = 2.0
#: Seconds of the longest single wait: `poll` takes milliseconds in a C int.
DAY = 86_400.0
#: The status of a command whose own somebody else in this process took; asyncio says the same.
UNKNOWN = 255
_LOST = "exit status unknown, something else in this process took it (SIGCHLD ignored, or a watcher of all children?)"


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
        # The cut may fall inside a character. What it left of one at either side is not what the command wrote.
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(self._head)
        start = 0
        while start < min(3, len(self._tail)) and self._tail[start] & 0xC0 == 0x80:
            start += 1
        return head + marker + self._tail[start:].decode("utf-8", "replace")


class Running:
    """One command while it runs: the process, its two pipes and what came out of them.

    Made in shielded code, which calls `end` whatever happens. Raises what keeps the command from starting.
    """

    def __init__(self, command: Any, cwd: Any, env: Any) -> None:
        self._command = command
        self._captured = {1: _Capture(DEFAULT.sh_bytes), 2: _Capture(DEFAULT.sh_bytes)}
        #: Read end of a pipe -> the descriptor where its bytes are shown, until its EOF.
        self.sources: dict[int, int] = {}
        process, self._pipes = _started(command, cwd, env)
        self._process: subprocess.Popen[bytes] | None = process
        self._pid = process.pid
        self.sources.update(zip(self._pipes, (1, 2)))  # noqa: B905 - two and two
        try:
            #: Readable once the command has ended; None without pidfd, or without a free descriptor.
            self.exit: int | None = os.pidfd_open(self._pid)
        except (AttributeError, OSError):
            self.exit = None
        self._status: int | None = None
        self._poll = select.poll()
        for descriptor in self.watched():
            self._poll.register(descriptor, select.POLLIN)

    def watched(self) -> list[int]:
        """The descriptors that become readable when there is something to do."""
        return [*self.sources, *(() if self.exit is None else (self.exit,))]

    @interruptible
    def follow(self, deadline: float) -> bool:
        """Show and keep output until the command has ended (True) or the deadline has come (False)."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self.step(min(left, DAY if self.exit is not None else LOOK)):
                return True

    def step(self, wait: float) -> bool:
        """Show and keep what comes within `wait` seconds, one chunk of each pipe: whether the command has ended."""
        ended = False
        for descriptor, _event in self._poll.poll(wait * 1000):
            if descriptor == self.exit:
                ended = True
            else:
                self._take(descriptor, CHUNK, _show)
        return ended or (self.exit is None and self._has_ended())

    @shielded
    def _take(self, descriptor: int, size: int, show: Callable[[int, bytes], None]) -> int:
        """Take at most `size` bytes of a pipe: how many. At its EOF it is watched no longer."""
        data = os.read(descriptor, size)
        number = self.sources[descriptor]
        if data:
            self._captured[number].add(data)
            show(number, data)
        else:
            del self.sources[descriptor]
            self._poll.unregister(descriptor)
        return len(data)

    def _has_ended(self) -> bool:
        if not hasattr(os, "waitid"):
            # An old Python on macOS can only look by reaping.
            return self._process is None or self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def drain(self) -> None:
        """Take what the pipes hold now, and nothing after it: someone may be writing for ever."""
        self._drain(_show)

    def end(self) -> None:
        """Kill the group, reap the command, close the pipes. To be called once.

        What an interrupt or the time limit left in the pipes is shown first, as far as there is room for it at once.
        """
        try:
            self._drain(_offer)
        finally:
            # Before reaping: until then the number of the group cannot be another's.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
            self._reap()
            for descriptor in (*self._pipes, *(() if self.exit is None else (self.exit,))):
                # A cell that closes every descriptor has closed these.
                with suppress(OSError):
                    os.close(descriptor)

    def _drain(self, show: Callable[[int, bytes], None]) -> None:
        for descriptor in list(self.sources):
            size = array.array("i", [0])
            fcntl.ioctl(descriptor, termios.FIONREAD, size)
            left = size[0]
            while left > 0:
                taken = self._take(descriptor, min(left, CHUNK), show)
                if not taken:
                    break
                left -= taken
        self.sources.clear()

    def _reap(self) -> None:
        """Take the exit status, by the command's own number: nobody else's is touched."""
        process = self._process
        if process is None:
            return
        self._status = process.returncode
        if self._status is None and self._is_gone():
            with suppress(ChildProcessError):
                _pid, status = os.waitpid(process.pid, 0)
                self._status = os.waitstatus_to_exitcode(status)
            process.returncode = UNKNOWN if self._status is None else self._status
        # Popen has a `__del__`, which reaps in time what could not be killed here. It runs now, under the shield: there
        # an interrupt would be swallowed.
        self._process = process = None

    def _is_gone(self) -> bool:
        """Whether the killed command has ended. Waits a moment for it."""
        if self.exit is None:
            return True
        poll = select.poll()
        poll.register(self.exit, select.POLLIN)
        return bool(poll.poll(ENDING * 1000))

    def result(self, timeout: float | None, *, ended: bool, check: bool) -> ShResult:
        """What the call returns, or raises. `ended`: not killed at its time limit."""
        result = ShResult(self._captured[1].text())
        result.stderr = self._captured[2].text()
        result.returncode = UNKNOWN if self._status is None else self._status
        result.truncated = self._captured[1].truncated or self._captured[2].truncated
        shown = _shown(self._command)
        if not ended:
            raise ShTimeout(f"killed after {timeout:g} s: {shown}{_last_lines(result)}", result)
        if check and result.returncode != 0:
            ending = _LOST if self._status is None else _ending(self._status)
            raise ShError(f"{ending}: {shown}{_last_lines(result)}", result)
        return result


@interruptible
def _show(number: int, data: bytes) -> None:
    """Write to the cell's own output; open to interrupts, because what a cell put there may never take it."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(number, rest) :]
        except BlockingIOError:
            # A process that shares the pipe made it non-blocking.
            select.select((), (number,), ())
        except OSError:
            # The cell closed its own output. The copy is what the caller gets.
            return


def _offer(number: int, data: bytes) -> None:
    """As `_show`, without waiting for anybody: a pipe that is ready takes this much."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    with suppress(OSError):
        for start in range(0, len(data), select.PIPE_BUF):
            if not any(event & select.POLLOUT for _number, event in poll.poll(0)):
                return
            os.write(number, data[start : start + select.PIPE_BUF])


def run(command: Any, timeout: float | None, cwd: Any, env: Any, *, check: bool) -> ShResult:
    """Run a command; see `sh.sh`."""
    accepted = checked(command, timeout)
    flush()
    running, ended = _run(accepted, timeout, cwd, env)
    return running.result(timeout, ended=ended, check=check)


@shielded
def _run(command: Any, timeout: float | None, cwd: Any, env: Any) -> tuple[Running, bool]:
    """(the command, reaped with its group; whether it ended before its time limit). Interrupts land in `follow`."""
    deadline = float("inf") if timeout is None else time.monotonic() + timeout
    running = Running(command, cwd, env)
    try:
        ended = running.follow(deadline)
        running.drain()
    finally:
        running.end()
    return running, ended


def flush() -> None:
    """Let what was printed before come before what the command writes. Not shielded: a cell's own stream may wait."""
    for stream in (sys.stdout, sys.stderr):
        # A cell may have set its stream to None, and one that it closed has nothing left.
        if stream is not None:
            with suppress(ValueError, OSError):
                stream.flush()


def checked(command: Any, timeout: Any) -> Any:
    """The command as Popen takes it: a str for the shell, or a list. Raises TypeError and ValueError in words."""
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout={timeout!r}: give seconds above 0, or None for no limit")
    if isinstance(command, str):
        words = [command]
    elif hasattr(command, "__fspath__"):
        command = words = [os.fspath(command)]
    elif isinstance(command, (bytes, bytearray)) or not hasattr(command, "__iter__"):
        raise TypeError(f"the command is of type {name_of(command)}: give a str for the shell, or a list of arguments")
    else:
        command = words = [_word(place, word) for place, word in enumerate(command)]
    if not words:
        raise ValueError("the command is an empty list")
    if any("\0" in os.fsdecode(word) for word in words):
        raise ValueError("the command has a NUL character, which no program can be given: pass such data in a file")
    return command


def _word(place: int, word: Any) -> str:
    if not isinstance(word, (str, bytes)) and not hasattr(word, "__fspath__"):
        raise TypeError(f"argument {place} of the command is of type {name_of(word)}: give str(...) of it")
    return os.fsdecode(word)


def _started(command: Any, cwd: Any, env: Any) -> tuple[subprocess.Popen[bytes], tuple[int, int]]:
    """(the process, the read ends of its stdout and stderr). Pipes of our own: Popen of 3.10 may leak one of its."""
    ends: list[int] = []
    try:
        ends += os.pipe()
        ends += os.pipe()
        process = _spawned(command, ends, cwd, env)
    except BaseException:
        # Whatever it was, no descriptor stays behind.
        for descriptor in ends:
            os.close(descriptor)
        raise
    os.close(ends[1])
    os.close(ends[3])
    return process, (ends[0], ends[2])


def _spawned(command: Any, ends: list[int], cwd: Any, env: Any) -> subprocess.Popen[bytes]:
    own_group: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
    try:
        return subprocess.Popen(
            command,
            # Popen takes the string itself to /bin/sh -c.
            shell=isinstance(command, str),
            stdin=subprocess.DEVNULL,
            stdout=ends[1],
            stderr=ends[3],
            cwd=cwd,
            env=env,
            **own_group,
        )
    except OSError as error:
        # An OSError of an errno is of that errno's class again.
        raise OSError(error.errno, _in_words(error, command, cwd), error.filename) from None


def _in_words(error: OSError, command: Any, cwd: Any) -> str:
    """What kept a command from starting. Popen names the folder or the program."""
    if cwd is not None and error.filename == cwd and not os.path.isdir(cwd):
        return "no such working directory"
    if error.errno == errno.ENOENT and error.filename is not None:
        hint = "" if len(command) > 1 else "; a str goes to the shell, a list is a program and its arguments"
        return f"no such command (or its #! interpreter is missing){hint}"
    if error.errno == errno.E2BIG:
        size = sum(len(os.fsencode(word)) for word in ([command] if isinstance(command, str) else command))
        return f"the command has {size:,} bytes, more than the system takes (often 131,072 an argument): use a file"
    return error.strerror or str(error)


def _shown(command: Any) -> str:
    text = command if isinstance(command, str) else " ".join(command)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _last_lines(result: ShResult) -> str:
    text = result.stderr.strip()
    return f"\n{text[-SHOWN:]}" if text else ""


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"
