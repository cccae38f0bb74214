"""One server process under test: started, read, written to, and ended with everything below it.

Nothing here knows the protocol. Every wait has a bound; `end` leaves no process, thread, descriptor or file behind and
returns what was not as it should be.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
BOUND = 30.0
"""seconds. Every wait that has no bound of its own; a first cell on a busy machine takes two or three."""
EXIT_BOUND = 10.0
"""seconds. From the end of stdin to the exit; the server promises 3."""
GONE_BOUND = 5.0
"""seconds. For what the server started, after its exit."""

COOKIE = "REPL_TRIO_TEST_COOKIE"

# -P: the folder that the server is started in must not shadow the standard library; with -c it would stand first.
BOOT = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from repl_trio.__main__ import main; sys.exit(main())"


def server_command(*arguments: str) -> list[str]:
    """The argv of a server from this tree, as installed: nothing of it is in the environment of its children."""
    return [sys.executable, "-P", "-c", BOOT, *arguments]


@dataclass(frozen=True, slots=True)
class Received:
    """One line of the server: its bytes without the newline, and when its last byte was read (`time.monotonic`)."""

    line: bytes
    arrived: float


class ServerProcess:
    """A process with pipes for stdin and stdout and a file for stderr.

    `env`: changes to this process's environment, None removes a name. `cwd`: where it is started, a fresh empty folder
    when None. `take` is called by the reading thread with the complete lines of each read, under `news`.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str | None] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self.command = list(command)
        self.cookie = uuid.uuid4().hex
        self.received: list[Received] = []
        self.news = threading.Condition()
        self._folder = tempfile.TemporaryDirectory(prefix="repl-trio-test-")
        self.cwd = Path(cwd) if cwd is not None else Path(self._folder.name, "project")
        self.cwd.mkdir(exist_ok=True)
        changes = {**(env or {}), COOKIE: self.cookie}
        kept = {name: text for name, text in os.environ.items() if name not in changes}
        self._env = kept | {name: text for name, text in changes.items() if text is not None}
        self._ended = False  # the server's stdout is at its end
        self._reading = True
        self._dropped = False  # the test closed our end of the server's stdout

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process and the thread that reads it."""
        self._stderr = Path(self._folder.name, "stderr")
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, cwd=self.cwd, env=self._env
            )
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        self._wake_read, self._wake_write = os.pipe()
        self._reader = threading.Thread(target=self._read, name="server stdout", daemon=True)
        self._reader.start()

    def close_stdin(self) -> None:
        """Tell the server that its client is gone."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def wait(self, bound: float = EXIT_BOUND) -> int:
        """Wait for the server's exit; its status (negative: the signal that killed it)."""
        return self.process.wait(bound)

    def close(self, bound: float = EXIT_BOUND) -> int:
        """End of stdin, then the exit status."""
        self.close_stdin()
        return self.wait(bound)

    def signal(self, number: int) -> None:
        """Send a signal to the server alone."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to the server alone."""
        self.process.kill()
        self.process.wait(EXIT_BOUND)

    def stderr(self) -> str:
        """What the server wrote to stderr so far."""
        return self._stderr.read_text(encoding="utf-8", errors="replace")

    def end(self) -> list[str]:
        """End the server in whatever state it is, and describe everything that was not in order."""
        faults: list[str] = []
        family = {*self.descendants(), *self.carriers()}
        self.resume_reading()
        try:
            self.close()
        except subprocess.TimeoutExpired:
            faults.append(f"the server did not exit within {EXIT_BOUND} s of the end of stdin")
            self.kill()
        faults += [f"outlived the server: {text}" for text in kill(family | {*self.carriers()}, GONE_BOUND)]
        self._reader.join(GONE_BOUND)
        if self._reader.is_alive():
            faults.append("somebody still holds the server's stdout")
            self.close_stdout()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self.last_words = self.stderr()[-4_000:]
        self._folder.cleanup()
        return faults

    # -- processes ---------------------------------------------------------------------------------------------

    def descendants(self) -> list[psutil.Process]:
        """The live processes below the server: guardians, workers and what they started."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [process for process in found if alive(process)]

    def carriers(self) -> list[psutil.Process]:
        """The live processes anywhere that carry this server's cookie in their environment, without the server itself.

        Independent of who is whose child: a detached descendant is found, unless it was given another environment (as
        guardians are).
        """
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != self.process.pid and process.environ().get(COOKIE) == self.cookie and alive(process):
                    found.append(process)
        return found

    def rss(self) -> int:
        """Resident bytes of the server process alone."""
        resident: int = psutil.Process(self.process.pid).memory_info().rss
        return resident

    # -- bytes -------------------------------------------------------------------------------------------------

    def write(self, chunk: bytes, bound: float = BOUND) -> None:
        """Write these bytes as they are; TimeoutError when the server does not take them in time."""
        assert self.process.stdin is not None
        fd, rest, deadline = self.process.stdin.fileno(), memoryview(chunk), time.monotonic() + bound
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:
                if not select.select([], [fd], [], max(deadline - time.monotonic(), 0))[1]:
                    raise TimeoutError(f"{len(rest)} bytes not taken within {bound} s") from None

    def take(self, lines: list[bytes]) -> None:
        """Lines that have just been recorded. Must not raise."""

    def wait_until(
        self, condition: Callable[[], bool], bound: float = BOUND, failure: str = "did not come true"
    ) -> None:
        """Wait until `condition`, asked again after each line of the server, holds."""
        with self.news:
            self.news.wait_for(lambda: condition() or self._ended, bound)
            if condition():
                return
        if not self._ended:
            raise AssertionError(f"{failure} within {bound} s")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)  # stdout ends a moment before the process does
        raise AssertionError(f"{failure}; stdout ended, exit status {self.process.returncode}")

    def wait_ended(self, bound: float = BOUND) -> None:
        """Wait for the end of the server's stdout."""
        with self.news:
            assert self.news.wait_for(lambda: self._ended, bound), f"stdout did not end within {bound} s"

    def hold_reading(self) -> None:
        """Leave what the server says in the pipe from now on."""
        self._reading = False
        self._wake()

    def resume_reading(self) -> None:
        """Read again."""
        self._reading = True
        self._wake()

    def close_stdout(self) -> None:
        """Close our end of the server's stdout: its next line meets a broken pipe."""
        self._dropped = True
        self._wake()
        self._reader.join(BOUND)

    def _wake(self) -> None:
        os.write(self._wake_write, b".")

    def _read(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        rest = b""
        with stdout:
            while not self._dropped:
                watched = [self._wake_read, *([stdout.fileno()] if self._reading else [])]
                ready = select.select(watched, [], [])[0]
                if self._wake_read in ready:
                    os.read(self._wake_read, 1)
                    continue  # whether to read has just changed
                chunk = os.read(stdout.fileno(), 1 << 16)
                if not chunk:
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                self._record(lines)
        if rest and not self._dropped:
            self._record([rest + b" <- no newline"])
        with self.news:
            self._ended = True
            self.news.notify_all()

    def _record(self, lines: list[bytes]) -> None:
        now = time.monotonic()
        with self.news:
            self.received += [Received(line, now) for line in lines]
            self.take(lines)
            self.news.notify_all()


def alive(process: psutil.Process) -> bool:
    """Whether a process still runs; one that only waits to be reaped does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_gone(processes: Iterable[psutil.Process], bound: float = GONE_BOUND) -> list[psutil.Process]:
    """Wait until these processes have ended; those that have not within `bound` seconds."""
    _, left = psutil.wait_procs(list(processes), bound)
    return [process for process in left if alive(process)]


def kill(processes: Iterable[psutil.Process], bound: float) -> list[str]:
    """Wait for processes to end by themselves, kill the others, and describe those."""
    described = []
    for process in wait_gone(processes, bound):
        with contextlib.suppress(psutil.NoSuchProcess):
            described.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
            process.send_signal(signal.SIGKILL)
    return described
