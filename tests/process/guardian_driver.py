"""Drives a guardian from outside, the way a server does, with blocking sockets and bounds on every wait.

Imported, it starts guardians as children of the test. Run as a program (`python guardian_driver.py ORDER`), it is a
server that can be killed: it starts a guardian by the order and copies the guardian's frames to its own stdout.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "guardian"
BOUND = 20.0
"""Seconds after which a wait is a hang."""

COOKIE = "GUARDIAN_CASE"
"""The variable in a child's environment by which an independent scan finds all that came from it."""

START = "import sys;sys.path.insert(0,sys.argv[1]);{prelude}import guardian;guardian.main()"

KERNELS = {
    "Linux": "",
    "Linux without prctl": "sys.modules['_ctypes'] = None;",
    "macOS": f"sys.path.append({os.path.dirname(os.path.abspath(__file__))!r});import fake_macos;",
}
"""What is done to a guardian so that it finds another kernel than there is; the last two get no orphans back."""


ALONE = {name: prelude for name, prelude in KERNELS.items() if name != "Linux"}
"""The kernels on which orphans do not come back to the guardian."""


def base_python() -> str:
    """The interpreter below any virtual environment; GUARDIAN_PYTHON names another one for guardian and children."""
    named = os.environ.get("GUARDIAN_PYTHON") or getattr(sys, "_base_executable", sys.executable)
    return os.path.realpath(str(named))


def python(source: str, *arguments: str) -> list[str]:
    """The command line of a child that runs `source` and starts quickly."""
    return [base_python(), "-I", "-S", "-c", source, *arguments]


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition holds; fail after BOUND seconds."""
    deadline = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        select.select([], [], [], 0.005)


def survivors(cookie: str) -> set[int]:
    """The processes whose environment carries the cookie. Zombies have no environment and are not among them."""
    wanted = f"{COOKIE}={cookie}".encode()
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    found.add(int(entry))
    return found


def state(pid: int) -> str:
    """The state letter of a process; Z when it is a zombie or gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def gone(pid: int) -> bool:
    return state(pid) == "Z"


def order(argv: list[str], **fields: Any) -> dict[str, Any]:
    """A spawn order with short defaults; the fields replace them."""
    usual = {"env": {}, "cwd": "/", "fds": [0, 1, 2], "oom": 500, "orphan": [[15, 250]], "leftover": [[9, 0]]}
    return {"op": "spawn", "v": 1, "server": os.getpid(), "argv": argv, **usual, **fields}


def spawn_guardian(control: socket.socket, prelude: str = "", default_signals: tuple[int, ...] = ()) -> int:
    """Start a guardian with `control` as its end of the socket pair; returns its pid."""
    program = base_python()
    with open(os.devnull, "r+b", buffering=0) as null:
        return os.posix_spawn(
            program,
            [program, "-I", "-S", "-c", START.format(prelude=prelude), str(FOLDER)],
            {},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, control.fileno(), 0),
                (os.POSIX_SPAWN_DUP2, null.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, null.fileno(), 2),
            ],
            setpgroup=0,
            setsigmask=[],
            setsigdef=default_signals,
        )


class Guarded:
    """A guardian that is a child of this process, with the server's end of its socket."""

    def __init__(
        self, *, kernel: str = "Linux", prelude: str = "", default_signals: tuple[int, ...] = (signal.SIGINT,)
    ) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(BOUND)
        with theirs:
            self.pid = spawn_guardian(theirs, KERNELS[kernel] + prelude, default_signals)
        self.received = b""
        self.code: int | None = None
        self.numbers = iter(range(1, 1 << 30))

    def send(self, frame: dict[str, Any], fds: list[int] | None = None) -> None:
        self.send_raw(json.dumps(frame).encode() + b"\n", fds or [])

    def send_raw(self, line: bytes, fds: list[int] | None = None) -> None:
        sent = socket.send_fds(self.socket, [line], fds) if fds else 0
        self.socket.sendall(line[sent:])

    def frame(self) -> dict[str, Any] | None:
        """The next frame, None at the end."""
        while b"\n" not in self.received:
            part = self.socket.recv(65536)
            if not part:
                assert not self.received, f"a torn frame: {self.received!r}"
                return None
            self.received += part
        line, _, self.received = self.received.partition(b"\n")
        value = json.loads(line)
        assert isinstance(value, dict)
        return value

    def order(self, frame: dict[str, Any], handed: list[int] | None = None) -> None:
        """Send a spawn order with these descriptors, or with the null device three times."""
        with open(os.devnull, "r+b", buffering=0) as null:
            self.send(frame, handed or [null.fileno()] * 3)

    def spawn(self, argv: list[str], handed: list[int] | None = None, **fields: Any) -> int:
        """Order a child that can be started; returns its pid."""
        self.order(order(argv, **fields), handed)
        answer = self.frame()
        assert answer is not None
        assert answer["ev"] == "spawned"
        assert answer["error"] is None
        return int(answer["pid"])

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send an operation and return its acknowledgement; nothing else may come before it."""
        number = next(self.numbers)
        self.send({"op": op, "id": number, **fields})
        answer = self.frame()
        assert answer is not None
        assert answer["id"] == number
        return answer

    def rest(self) -> list[dict[str, Any]]:
        """All frames up to the end; the guardian must then leave with status 0."""
        frames = []
        while (frame := self.frame()) is not None:
            frames.append(frame)
        assert self.wait() == 0
        return frames

    def ending(self) -> tuple[int, dict[str, Any]]:
        """The exit code of the child and the clean record, which must be the last two frames."""
        last = self.rest()
        assert [frame["ev"] for frame in last] == ["exit", "clean"]
        return last[0]["code"], last[1]

    def wait(self) -> int:
        """Reap the guardian; returns its exit code."""
        if self.code is None:
            fd = os.pidfd_open(self.pid)
            try:
                ready, _, _ = select.select([fd], [], [], BOUND)
            finally:
                os.close(fd)
            if not ready:
                os.kill(self.pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            assert ready, "the guardian did not leave"
        return self.code

    def close(self) -> None:
        self.socket.close()
        self.wait()


@contextlib.contextmanager
def guarded(**options: Any) -> Iterator[Guarded]:
    """A guardian for a test; whatever happens, it is told to leave and reaped."""
    guardian = Guarded(**options)
    try:
        yield guardian
    finally:
        guardian.close()


@contextlib.contextmanager
def pipes(count: int) -> Iterator[tuple[list[int], list[int]]]:
    """`count` pipes as (read ends, write ends)."""
    made = [os.pipe() for _ in range(count)]
    readers, writers = [pair[0] for pair in made], [pair[1] for pair in made]
    try:
        yield readers, writers
    finally:
        for fd in readers + writers:
            os.close(fd)


class Lines:
    """Lines of text from a descriptor, with a bound on each wait."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.received = b""

    def next(self) -> str:
        """The next line; "" at the end of the file."""
        while b"\n" not in self.received:
            ready, _, _ = select.select([self.fd], [], [], BOUND)
            assert ready, f"no line came after {self.received!r}"
            part = os.read(self.fd, 65536)
            if not part:
                return ""
            self.received += part
        line, _, self.received = self.received.partition(b"\n")
        return line.decode()


def serve(spawn: dict[str, Any], prelude: str, *, leak: bool) -> None:
    """Be the server: the child's stderr is our stdout, its stdout a pipe that nobody reads.

    With `leak` another process holds a copy of the socket and copies the frames, so the lifeline never reaches its end.
    """
    ours, theirs = socket.socketpair()
    spawn_guardian(theirs, prelude)
    theirs.close()
    _unread, output = os.pipe()
    fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, 4096)
    null = os.open(os.devnull, os.O_RDWR)
    socket.send_fds(ours, [json.dumps({**spawn, "server": os.getpid()}).encode() + b"\n"], [null, output, 1])
    os.close(output)
    if leak and os.fork() != 0:
        signal.pause()
    while part := ours.recv(65536):
        os.write(1, part)


if __name__ == "__main__":
    changed = KERNELS[sys.argv[2].removesuffix(" without queues")]
    if sys.argv[2].endswith(" without queues"):
        changed += "import select; del select.kqueue; fake_macos.posix.waitid = fake_macos._waitid;"
    serve(json.loads(sys.argv[1]), changed, leak="leak" in sys.argv[3:])
