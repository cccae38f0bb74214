"""The worker's end of the frame link, and its private descriptors.

Frames travel on descriptors 0 and 3. They are moved, together with the faulthandler's descriptor 4, to high
close-on-exec numbers, out of the way of cells that close or redirect low ones; forked children close them at once, so
that no child can steal a frame, write one, or keep the link open.
"""

from __future__ import annotations

import _queue
import _signal
import _thread
import os
import select
import sys

from ..limits import DEFAULT
from ..wire import frames
from ..wire.framing import LineDecoder, Oversized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..wire.frames import Frame

#: Where the private descriptors go when the limit on open files allows it.
HIGH = 700
#: Without `errno`, which costs an import.
EPIPE = 32
#: Bytes per read: one pipe buffer.
CHUNK = 65_536


def _highest() -> int:
    """The smallest number that a private descriptor may get."""
    import resource

    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > HIGH + 50:
        return HIGH
    return max(5, soft - 16)


def move_up(descriptor: int) -> int:
    """A private close-on-exec duplicate of `descriptor`, with a high number."""
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _highest())


def _poll(descriptor: int) -> select.poll:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll


def _nobody_waits(_frame: Frame) -> None:
    """For answers while nothing was asked."""


def _nothing_yet(number: object) -> Frame:
    return {"frame": "namespace", "id": number, "names": [], "total": 0}


class Link:
    """Frames out, frames in. `send` may be called on any thread; `requests` holds what the server wants, in order."""

    def __init__(self) -> None:
        self.requests: _queue.SimpleQueue[Frame] = _queue.SimpleQueue()
        #: Answers an `inspect` frame; set by whoever owns the namespace, before the first frame can come.
        self.inspect: Callable[[object], Frame] = _nothing_yet
        #: Takes an `rpc_result` frame, on the reader's thread; set by who asked, before the first one can come.
        self.answer: Callable[[Frame], None] = _nobody_waits
        self.pid = os.getpid()
        self._received = 0
        self._reading = False  # the reader is about to take bytes off the pipe, or has not yet counted their frames
        self.begun = 0  # frames whose run has begun; counted by the main thread
        self._lock = _thread.RLock()
        self._input = move_up(0)
        # Two, because one poll object refuses to be asked by two threads at once.
        self._arrival, self._waiting = _poll(self._input), _poll(self._input)
        self._output = move_up(3)
        self._crash = move_up(4)
        #: Duplicates of the output pipes, to restore 1 and 2 from.
        self.stdout = move_up(1)
        self.stderr = move_up(2)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self.null = move_up(null)
        os.dup2(null, 0)
        for descriptor in (null, 3, 4):
            os.close(descriptor)

    def arm_faulthandler(self) -> None:
        """Crashes, and SIGUSR1 on demand, name the stuck line of the main thread on descriptor 4."""
        import faulthandler

        faulthandler.enable(self._crash, all_threads=True)
        # The signal reaches the main thread, whose line it is that the server asks for; the reader thread is noise.
        faulthandler.register(_signal.SIGUSR1, self._crash, all_threads=False)

    def frame_waits(self) -> bool:
        """Whether the server has sent a frame whose run has not begun."""
        # In the order of a frame's way: one that moves on between two questions is met by the next.
        return bool(self._arrival.poll(0)) or self._reading or self._received > self.begun

    def start_reader(self) -> None:
        """Read frames on a thread of the lowest level: it shows in no list of the user's threads."""
        self.reader = _thread.start_new_thread(self._read, ())

    def send(self, frame: Frame) -> None:
        """Write one frame whole. In a forked child: nothing. A link that is gone ends the worker."""
        if os.getpid() == self.pid:
            self.write(frames.encode(frame, DEFAULT.frame_bytes))

    def write(self, line: bytes) -> None:
        """Write one encoded frame whole; not for forked children. A link that is gone ends the worker."""
        rest = memoryview(line)
        try:
            with self._lock:
                while rest:
                    rest = rest[os.write(self._output, rest) :]
        except OSError as error:
            # EPIPE: the server is gone. EBADF: a cell closed what it did not open.
            os._exit(0 if error.errno == EPIPE else frames.EXIT_LINK_CLOSED)

    def is_sending(self) -> bool:
        """Whether the thread that asks is in the midst of a frame: a finalizer may run there and want to send one."""
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]  # typeshed leaves it out

    def close_in_child(self) -> None:
        """Let go of everything private: this is a forked child, and the link belongs to its parent."""
        import faulthandler

        faulthandler.disable()
        faulthandler.unregister(_signal.SIGUSR1)
        for descriptor in (self._input, self._output, self._crash, self.stdout, self.stderr, self.null):
            # A cell may have closed any number; what is gone already needs no closing.
            try:
                os.close(descriptor)
            except OSError:
                continue

    def die(self, reason: str, status: int = frames.EXIT_PROTOCOL) -> None:
        """End the worker because the link broke; say why where the server looks for crash texts."""
        try:
            os.write(self._crash, f"worker: {reason}\n".encode())
        finally:
            os._exit(status)

    def _read(self) -> None:
        # Signals are the main thread's. A blocking call there must be woken, not this one.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        decoder = LineDecoder(DEFAULT.frame_bytes)
        while True:
            # Waiting apart from reading: at every moment a frame is in the pipe, or marked here, or counted.
            self._waiting.poll()
            self._reading = True
            try:
                chunk = os.read(self._input, CHUNK)
            except OSError:
                # A cell closed the descriptor: nothing can be heard any more.
                self.die("the frame descriptor was closed", frames.EXIT_LINK_CLOSED)
            if not chunk:
                os._exit(0)
            try:
                for line in decoder.feed(chunk):
                    if isinstance(line, Oversized):
                        raise frames.FrameError(f"a frame of {line.size} bytes; the limit is {DEFAULT.frame_bytes}")
                    frame = frames.decode(line, frames.TO_WORKER)
                    if frame["frame"] == "inspect":
                        self.send(self.inspect(frame["id"]))
                        continue
                    if frame["frame"] == "rpc_result":
                        self.answer(frame)
                        continue
                    self._received += 1
                    self.requests.put(frame)
                    if frame["frame"] == "shutdown":
                        # The server may close the link right behind it; atexit handlers shall still run.
                        return
            except frames.FrameError as error:
                self.die(str(error))
            self._reading = False


def interpreter() -> Frame:
    """The `ready` frame of this interpreter."""
    return {
        "frame": "ready",
        "version": frames.VERSION,
        "pid": os.getpid(),
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable or "",
        "prefix": sys.prefix,
    }
