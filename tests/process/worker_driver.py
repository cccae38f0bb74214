"""Drives one real worker over its five descriptors, without a server."""

from __future__ import annotations

import array
import base64
import contextlib
import fcntl
import os
import select
import shutil
import signal
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

import repl_trio
from repl_trio.limits import DEFAULT
from repl_trio.wire import frames
from repl_trio.wire.framing import LineDecoder

#: Versions that a worker must serve; each is looked for, and a missing one is a visible skip.
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
#: The oldest and the newest of them, for what is tried in many forms.
EXTREMES = ("3.10", "3.13")
#: All of them, as parameters. Those between the extremes are slow tests: tests/e2e runs its cells in each version.
EACH = [pytest.param(name, marks=pytest.mark.slow) if name in ("3.11", "3.12") else name for name in VERSIONS]
BOOT = Path(repl_trio.__file__).parent / "worker" / "boot.py"
#: Seconds that nothing in these tests may take: a hang bound, not an expectation.
BOUND = 20.0


def interpreter(version: str) -> str:
    """A CPython of this version: a pyenv one, one on PATH, or the one that runs the tests. Skips when there is none."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        # Not the test environment's own: the tests are about a Python that has nothing installed.
        return os.path.realpath(sys.executable)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in sorted(root.glob(f"{version}.*/bin/python{version}")):
        return str(found)
    on_path = shutil.which(f"python{version}")
    if on_path is None or "shims" in on_path:
        pytest.skip(f"no Python {version} here")
    return on_path


class Gone(Exception):
    """The worker ended instead of answering. Carries what it wrote and its exit status."""

    def __init__(self, status: int | None, stdout: str, stderr: str, crash: str) -> None:
        super().__init__(f"worker ended with {status}: {stderr!r} {crash!r}")
        self.status = status
        self.stdout = stdout
        self.stderr = stderr
        self.crash = crash


class Item:
    """Something that a run has shown beyond text, put together from its frames."""

    def __init__(self, frame: dict[str, Any]) -> None:
        self.stream, self.name, self.media_type = frame["stream"], frame["name"], frame["media_type"]
        self.content = b""
        self.complete = True
        self.parts = 0

    def __repr__(self) -> str:
        return f"Item({self.stream}, {self.name!r}, {self.media_type}, {len(self.content)} bytes)"


class Items:
    """The items of a run as its frames come. Fails on parts that are mixed, out of order or of another run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.items: list[Item] = []
        self.open = False

    def take(self, frame: dict[str, Any]) -> None:
        """Take the next `output` frame."""
        assert frame["id"] == self._run_id
        if not self.open:
            self.items.append(Item(frame))
        item = self.items[-1]
        assert frame["item"] == len(self.items), "items are numbered from 1, and their parts do not mix"
        assert (frame["stream"], frame["name"], frame["media_type"]) == (item.stream, item.name, item.media_type)
        item.content += base64.b64decode(frame["data"], validate=True)
        item.complete = frame["complete"]
        item.parts += 1
        self.open = not frame["last"]


class Answer:
    """A result frame with the output that belongs to it."""

    def __init__(self, result: dict[str, Any], stdout: str, stderr: str, items: list[Item]) -> None:
        self.result = result
        self.stdout = stdout
        self.stderr = stderr
        self.items = items

    def __getattr__(self, name: str) -> Any:
        try:
            return self.result[name]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self) -> str:
        return f"Answer({self.result!r}, {self.stdout!r}, {self.stderr!r})"


class WorkerDriver:
    """One worker process. Use as a context manager: the process and everything in its session is killed at the end."""

    def __init__(
        self, python: str, cwd: Path, env: dict[str, str] | None = None, arguments: list[str] | None = None
    ) -> None:
        down_read, self._down = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self._up, up_write = os.pipe()
        self._crash, crash_write = os.pipe()
        os.set_blocking(crash_write, False)
        self._output = {out_read: bytearray(), err_read: bytearray(), self._crash: bytearray()}
        self._out, self._err = out_read, err_read
        self._decoder = LineDecoder(DEFAULT.frame_bytes)
        self._frames: list[dict[str, Any]] = []
        self._runs = 0
        given = (down_read, out_write, err_write, up_write, crash_write)
        self.pid = _spawn([python, *(arguments or [str(BOOT)])], given, cwd, env)
        for descriptor in given:
            os.close(descriptor)
        self._exit = os.pidfd_open(self.pid)
        self._status: int | None = None

    def __enter__(self) -> WorkerDriver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._reap()
        for descriptor in (self._up, self._out, self._err, self._crash, self._exit):
            os.close(descriptor)
        self.close_input()

    def close_input(self) -> None:
        """What the worker sees when the server is gone."""
        if self._down >= 0:
            os.close(self._down)
            self._down = -1

    def ready(self) -> dict[str, Any]:
        """The first frame."""
        return self.frame()

    def send(self, kind: str, **keys: object) -> None:
        """Send one frame."""
        self.send_bytes(frames.encode({"frame": kind, **keys}, DEFAULT.frame_bytes))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that need be no frame."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._down, view) :]

    def start(self, code: str | None, *, path: str | None = None, argv: list[str] | None = None) -> str:
        """Send an `execute` frame; the run's id."""
        self._runs += 1
        run_id = f"r{self._runs}"
        self.send("execute", id=run_id, code=code, path=path, argv=argv)
        return run_id

    def cell(self, code: str) -> Answer:
        """Run a cell to its end."""
        run_id = self.start(code)
        return self.answer(run_id)

    def file(self, path: str, *argv: str) -> Answer:
        """Run a file to its end."""
        run_id = self.start(None, path=path, argv=list(argv))
        return self.answer(run_id)

    def answer(self, run_id: str) -> Answer:
        """The result of a run, with exactly the output the pipes held when its frame came."""
        items = Items(run_id)
        while (result := self.frame())["frame"] == "output":
            items.take(result)
        assert result["frame"] == "result", result
        assert result["id"] == run_id, result
        assert not items.open, "the result came in the midst of an item"
        for descriptor in (self._out, self._err):
            self._drain(descriptor)
        return Answer(result, self._take(self._out), self._take(self._err), items.items)

    def interrupt(self) -> None:
        """SIGINT to the worker alone."""
        os.kill(self.pid, signal.SIGINT)

    def pause(self, seconds: float) -> None:
        """Let the worker run for a moment: how long is the test's random choice, not something it waits for."""
        select.select([], [], [], seconds)

    def interrupt_until_answer(self, run_id: str, between: float = 0.1) -> Answer:
        """Interrupt again and again until the run has ended: one that comes before the run began is dropped."""
        return self.signal_until_answer(run_id, signal.SIGINT, between)

    def signal_until_answer(self, run_id: str, number: int, between: float = 0.1) -> Answer:
        """Send a signal again and again until the run has ended."""
        for _again in range(50):
            os.kill(self.pid, number)
            deadline = time.monotonic() + between
            while not self._frames and (left := deadline - time.monotonic()) > 0:
                if select.select([self._up, self._out, self._exit], [], [], left)[0]:
                    self._wait(BOUND)
            if self._frames:
                return self.answer(run_id)
        raise AssertionError(f"{run_id} went on after 50 signals")

    def frame(self) -> dict[str, Any]:
        """The next frame; raises `Gone` when the worker ended instead."""
        deadline = time.monotonic() + BOUND
        while not self._frames:
            if not self._wait(deadline - time.monotonic()):
                raise Gone(self._reap(), self._take(self._out), self._take(self._err), self._take(self._crash))
        return self._frames.pop(0)

    def wait_output(self, text: str) -> None:
        """Return when `text` has come on stdout."""
        deadline = time.monotonic() + BOUND
        while text.encode() not in self._output[self._out]:
            if not self._wait(deadline - time.monotonic()):
                raise Gone(self._reap(), self._take(self._out), self._take(self._err), self._take(self._crash))

    def crash_text(self, text: str) -> str:
        """What came on the faulthandler's descriptor, once it contains `text`."""
        deadline = time.monotonic() + BOUND
        while text.encode() not in self._output[self._crash]:
            assert self._wait(deadline - time.monotonic())
        return self._take(self._crash)

    def exit_status(self) -> int:
        """Wait for the worker's end."""
        deadline = time.monotonic() + BOUND
        while self._wait(deadline - time.monotonic()):
            continue
        return self._reap()

    def output_after_exit(self) -> tuple[str, str, str]:
        """(stdout, stderr, crash text) that is left once the worker has ended."""
        return self._take(self._out), self._take(self._err), self._take(self._crash)

    def _reap(self) -> int:
        if self._status is None:
            assert select.select([self._exit], [], [], BOUND)[0], "the worker did not end"
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def _wait(self, seconds: float) -> bool:
        """Take in what has come; False when the worker has ended and nothing is left to read."""
        poll = select.poll()
        for descriptor in (self._up, self._out, self._err, self._crash, self._exit):
            poll.register(descriptor, select.POLLIN)
        events = poll.poll(max(0.0, seconds) * 1000)
        if not events:
            raise TimeoutError(f"nothing came for {BOUND} s")
        readable = [number for number, event in events if event & select.POLLIN and number != self._exit]
        for number in readable:
            self._take_in(number)
        if not readable and any(number == self._exit for number, _event in events):
            return False
        if not readable:
            # Only hang-ups: nobody can write any more, so wait for the exit alone.
            select.select([self._exit], [], [], BOUND)
        return True

    def _take_in(self, number: int) -> None:
        data = os.read(number, 1 << 16)
        if number != self._up:
            self._output[number] += data
            return
        for line in self._decoder.feed(data):
            assert isinstance(line, bytes)
            self._frames.append(frames.decode(line, frames.FROM_WORKER))

    def _drain(self, descriptor: int) -> None:
        size = array.array("i", [0])
        fcntl.ioctl(descriptor, termios.FIONREAD, size)
        left = size[0]
        while left:
            data = os.read(descriptor, left)
            self._output[descriptor] += data
            left -= len(data)

    def _take(self, descriptor: int) -> str:
        text = self._output[descriptor].decode("utf-8", "replace")
        self._output[descriptor].clear()
        return text


def _spawn(command: list[str], given: tuple[int, ...], cwd: Path, env: dict[str, str] | None) -> int:
    # posix_spawn places all five descriptors; the shell is there for the working directory alone.
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 20 + index) for index, descriptor in enumerate(given)]
    try:
        return os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", 'cd "$0" && exec "$@"', str(cwd), *command],
            {**os.environ, **(env or {})},
            file_actions=[(os.POSIX_SPAWN_DUP2, number, place) for place, number in enumerate(high)],
            setsid=True,
        )
    finally:
        for number in high:
            os.close(number)
