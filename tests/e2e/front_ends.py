"""Starting the product as a user does, and a terminal for it."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.e2e.server_process import server_command

BOUND = 30.0
"""seconds. A wide bound for anything that could hang."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[=>78]|\x1b\][^\x07]*\x07")
# The text of a prompt may be drawn more than once; bracketed paste is switched on once for each.
_PROMPT_BEGINS = "\x1b[?2004h"
_PROMPT = "\0prompt\0"


def environment(**more: str) -> dict[str, str]:
    """The environment of a user whose terminal is plain."""
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH", "NO_COLOR")}
    return {**kept, "TERM": "xterm", **more}


def run(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run the product to its end."""
    return subprocess.run(
        server_command(*arguments), cwd=cwd, env=env or environment(), input=stdin, capture_output=True, timeout=BOUND
    )


@contextmanager
def started(*arguments: str, cwd: Path, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """A running product with pipes, killed if the test does not see its end; `before` stands before its command."""
    with subprocess.Popen(
        [*before, *server_command(*arguments)],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def assert_gone(pid: int) -> None:
    """Fail unless the process has ended, or does so within `BOUND`."""
    try:
        psutil.Process(pid).wait(BOUND)
    except psutil.NoSuchProcess:
        return


class Terminal:
    """A process at a terminal of its own. `expect` reads on from where the last `expect` stopped."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, slave: int) -> None:
        self.process = process
        self._master = master
        self._slave = slave
        self._raw = b""
        self._seen = ""

    def type(self, keys: str) -> None:
        """Press keys: `\\r` is Enter, `\\x03` Ctrl-C, `\\x04` Ctrl-D."""
        os.write(self._master, keys.encode())

    def expect(self, text: str) -> str:
        """Read until `text` has appeared; what came before it. Fails after `BOUND`."""
        deadline = time.monotonic() + BOUND
        while text not in self._seen:
            left = deadline - time.monotonic()
            readable = select.select([self._master], [], [], max(left, 0))[0]
            assert readable, f"{text!r} did not appear after {self._seen[-2_000:]!r}"
            try:
                self._raw += os.read(self._master, 65_536)
            except OSError:
                raise AssertionError(f"the terminal closed before {text!r}, after {self._seen[-2_000:]!r}") from None
            self._take()
        before, _, self._seen = self._seen.partition(text)
        return before

    def prompt(self) -> str:
        """Read until the next prompt takes keys; what came before it."""
        return self.expect(_PROMPT)

    def run(self, code: str) -> str:
        """Enter one line of code or a command; everything until the next prompt, the echo of the line included."""
        self.type(f"{code}\r")
        return self.prompt()

    def end(self) -> int:
        """Read to the end; the exit status."""
        deadline = time.monotonic() + BOUND
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still running after {self._seen[-2_000:]!r}"
            if select.select([self._master], [], [], 0.05)[0]:
                self._raw += os.read(self._master, 65_536)
                self._take()
        return self.process.returncode

    def modes(self) -> list[object]:
        """The terminal's modes, as `stty` shows them."""
        return termios.tcgetattr(self._slave)

    def hang_up(self) -> None:
        """Close the terminal, as when its window closes."""
        os.close(self._slave)
        os.close(self._master)
        self._master = self._slave = -1

    def close(self) -> None:
        for fd in (self._master, self._slave):
            if fd >= 0:
                os.close(fd)

    def _take(self) -> None:
        """Move what is complete from the raw bytes to the text, without control sequences."""
        cut = self._raw.rfind(b"\x1b")
        whole = self._raw if cut < 0 or _CONTROL.match(self._raw[cut:].decode("utf-8", "replace")) else self._raw[:cut]
        self._raw = self._raw[len(whole) :]
        text = whole.decode("utf-8", "replace").replace(_PROMPT_BEGINS, _PROMPT)
        self._seen += _CONTROL.sub("", text).replace("\r", "")


@contextmanager
def terminal(*arguments: str, cwd: Path, kind: str = "xterm") -> Iterator[Terminal]:
    """The product on a terminal, its controlling one, killed if the test does not see its end."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (50, 200))

    def control() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        server_command(*arguments),
        cwd=cwd,
        env=environment(TERM=kind),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=control,
    ) as process:
        screen = Terminal(process, master, slave)
        try:
            yield screen
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(BOUND)
            screen.close()
