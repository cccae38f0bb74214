"""The control socket of a guardian: newline JSON frames both ways, descriptors with the first one.

Reading trusts nothing: a malformed frame raises ValueError. Writing never blocks: what the server does not read is kept
up to a bound, then whole frames are dropped, because a stopped server must not stop its guardian.
"""

import _socket
import select
import sys

from guardian_kernel import now

FRAME_LIMIT = 1 << 20
"""Bytes of one frame, newline included, in either direction."""

KEPT_LIMIT = 1 << 20
"""Bytes kept for a server that does not read; a frame that would pass it is dropped whole."""

DESCRIPTOR_LIMIT = 250
"""Descriptors in one message; the kernel allows 253."""

SIGNAL_LIMIT = 64
WAIT_LIMIT = 60_000
"""Milliseconds one step before a kill may wait."""

TARGETS = ("child", "run", "group", "tree")
Frame = dict[str, object]
Steps = list[tuple[int, int]]


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


class _Grammar:
    """The settings a scanner of the json package reads from its decoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    array_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_refuse_constant)


try:
    import _json

    quote = _json.encode_basestring_ascii
    scan = _json.make_scanner(_Grammar)  # type: ignore[arg-type]  # the stub asks for a scanner, any such object will do
except (ImportError, AttributeError):
    # Only the second choice: the json package costs more than the start of the interpreter.
    from json import decoder, encoder

    quote = encoder.encode_basestring_ascii
    scan = decoder.JSONDecoder(parse_constant=_refuse_constant).scan_once  # type: ignore[attr-defined]  # the stub forgets it


def encode(value: object) -> str:
    """ASCII JSON text of None, booleans, numbers, strings, and lists and dicts of them."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{quote(key)}:{encode(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(encode, value)) + "]"
    return quote(str(value))


def decode(line: bytes) -> Frame:
    """The object in one line. Raises ValueError when the line is anything else."""
    text = str(line, "utf-8").strip(" \t\r\n")
    try:
        value, end = scan(text, 0)
    except (StopIteration, RecursionError, SystemError) as error:
        # SystemError: before 3.13 the C scanner reports a fault with no exception set where json.decoder is not loaded.
        raise ValueError("the frame is not JSON") from error
    if end != len(text) or not isinstance(value, dict):
        raise ValueError("the frame is not one JSON object")
    return value


def integer(frame: Frame, key: str, lowest: int, highest: int) -> int:
    """The integer under `key`, within the bounds. Raises ValueError."""
    value = frame.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ValueError(f"{key} is not an integer of {lowest}..{highest}")
    return value


def strings(value: object, what: str) -> list[bytes]:
    """The bytes of a list of strings, surrogate escapes back to the bytes they stand for. Raises ValueError."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{what} is not a list of strings")
    return [item.encode("utf-8", "surrogateescape") for item in value]


def steps(frame: Frame, key: str) -> Steps:
    """The [signal, milliseconds] pairs under `key`, none when it is absent. Raises ValueError."""
    value = frame.get(key, [])
    found: Steps = []
    for step in value if isinstance(value, list) else [value]:
        if not isinstance(step, list) or len(step) != 2:
            raise ValueError(f"{key} is not a list of [signal, milliseconds]")
        pair: Frame = {"signal": step[0], "milliseconds": step[1]}
        found.append((integer(pair, "signal", 1, SIGNAL_LIMIT), integer(pair, "milliseconds", 0, WAIT_LIMIT)))
    return found


class Order:
    """The first frame, checked: what to start (argv, env and cwd as bytes), with which descriptors, and how to end it.

    Raises ValueError when the frame is not a spawn order of version 1.
    """

    def __init__(self, frame: Frame, descriptors: list[int]) -> None:
        if frame.get("op") != "spawn" or frame.get("v") != 1:
            raise ValueError("the first frame is not a spawn order of version 1")
        self.server = integer(frame, "server", 1, 1 << 31)
        self.argv = strings(frame.get("argv"), "argv")
        env, cwd, targets = frame.get("env"), frame.get("cwd"), frame.get("fds")
        if not isinstance(env, dict) or not self.argv:
            raise ValueError("env is not an object, or argv is empty")
        self.env = dict(zip(strings(list(env), "env"), strings(list(env.values()), "env"), strict=True))
        self.cwd = strings([cwd], "cwd")[0]
        if not isinstance(targets, list) or len(targets) != len(descriptors):
            raise ValueError(f"fds does not name the {len(descriptors)} descriptors that came with the frame")
        self.targets = [integer({"fds": number}, "fds", 0, DESCRIPTOR_LIMIT) for number in targets]
        if len(set(self.targets)) != len(self.targets):
            raise ValueError("fds names a number twice")
        self.descriptors = descriptors
        self.oom = integer({"oom": 0, **frame}, "oom", 0, 1000)
        self.orphan = steps(frame, "orphan")
        self.leftover = steps(frame, "leftover")


class Control:
    """The guardian's end of the socket pair, by descriptor number; owned for the life of the process.

    `ended` becomes true when the server closed its end or can no longer be reached.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        self.descriptors: list[int] = []
        self._socket = _socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._received = bytearray()
        self._kept = bytearray()

    def detach(self) -> None:
        """Let go of the descriptor without closing it: in a fork its number is about to become another socket."""
        self._socket.detach()

    @property
    def pending(self) -> bool:
        """Whether bytes wait for room in the socket."""
        return bool(self._kept)

    def fill(self, *, with_descriptors: bool = False) -> None:
        """Take in what can be read now; `with_descriptors` accepts descriptors, otherwise the kernel drops them."""
        try:
            if with_descriptors:
                part, notes, *_ = self._socket.recvmsg(
                    65536, _socket.CMSG_SPACE(4 * DESCRIPTOR_LIMIT), getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
                )
                for level, kind, numbers in notes:
                    if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                        whole = range(0, len(numbers) - len(numbers) % 4, 4)
                        self.descriptors += [int.from_bytes(numbers[at : at + 4], sys.byteorder) for at in whole]
            else:
                part = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self._received += part
        self.ended = not part

    def next(self) -> Frame | None:
        """The next whole frame, None when there is none yet. Raises ValueError for a malformed or oversized one."""
        end = self._received.find(b"\n", 0, FRAME_LIMIT)
        if end < 0:
            if len(self._received) >= FRAME_LIMIT:
                raise ValueError("the frame is too long")
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return decode(line)

    def send(self, frame: Frame, *, vital: bool = False) -> None:
        """Write a frame, or keep it for later, or drop it when too much is kept already. Never blocks.

        A `vital` frame is never dropped: the few small ones that tell of a start or an end.
        """
        line = encode(frame).encode("ascii") + b"\n"
        if vital or (len(line) <= FRAME_LIMIT and len(self._kept) + len(line) <= KEPT_LIMIT):
            self._kept += line
        self.flush()

    def flush(self) -> None:
        """Write what is kept as far as there is room. A server that cannot be reached loses it."""
        try:
            while self._kept:
                del self._kept[: self._socket.send(self._kept)]
        except BlockingIOError:
            return
        except OSError:
            self._kept.clear()

    def finish(self, seconds: float) -> None:
        """Write what is kept, waiting at most so long for a server that does not read."""
        poller = select.poll()
        poller.register(self.fd, select.POLLOUT)
        deadline = now() + seconds
        while self._kept and (left := deadline - now()) > 0:
            poller.poll(left * 1000)
            self.flush()
