"""Files with peers and client settings: read without ever blocking, and only when they have changed.

A project's file is not ours: it may be a FIFO, a device, a loop of links or huge, and it may change while it is read.
It is never written.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import Generic, TypeVar

from ...wire import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

Kept = TypeVar("Kept")

_RACY = 2_000_000_000
"""nanoseconds. A file written so shortly before it was read may change again without its times changing."""
_LARGE = 65_536
"""bytes. Reading less costs less than a tenth of a millisecond."""

_UTF16 = "is UTF-16 text; save it as UTF-8"
_BOMS = {b"\xff\xfe": _UTF16, b"\xfe\xff": _UTF16}


class Unusable(Exception):
    """A file that cannot be used; the message is a sentence about the file, without anything of its content."""


class _Duplicate(jsontext.NotJSON):
    """Two values for one key: which of them was meant?"""


class Source(Generic[Kept]):
    """One JSON file. `content` is what `keep` made of it, None when there is no file; `fault` says why it is unusable.

    `limit` is the name of the limit on its size, and the bytes that it allows. With `exact`, a key that is there twice
    is a fault; a file that another program reads as well is taken as that reads it. `needed`: so is a missing file.
    """

    def __init__(
        self,
        path: str,
        limit: tuple[str, int],
        keep: Callable[[object], Kept],
        *,
        exact: bool = False,
        needed: bool = False,
    ) -> None:
        self.path = path
        self.content: Kept | None = None
        self.fault: str | None = None
        self._limit = limit
        self._keep = keep
        self._exact = exact
        self._needed = needed
        self._signature: tuple[int, ...] | None = None
        self._read_at = 0
        self._hash: int | None = None

    def forget(self) -> None:
        """Read the file at the next look, changed or not."""
        self._signature = None
        self._hash = None

    def look(self) -> bool:
        """Read the file if it has changed since the last look. Returns whether `content` or `fault` may be others."""
        signature, now = _signature(self.path), time.time_ns()
        if signature == self._signature and not self._due(signature, now):
            return False
        self._signature, self._read_at = signature, now
        try:
            raw = _read(self.path, *self._limit)
        except Unusable as error:
            return self._become(None, str(error), None)
        except OSError as error:
            missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
            return self._become(None, _words(error) if self._needed or not missing else None, None)
        if self._hash == (seen := hash(raw)):
            return False
        try:
            return self._become(self._keep(_parse(_text(raw), exact=self._exact)), None, seen)
        except Unusable as error:
            return self._become(None, str(error), seen)

    def _due(self, signature: tuple[int, ...], now: int) -> bool:
        """Whether a file whose signature is the same is read again: one that was fresh when it was read, because two
        writes may leave the same times. A large one only once, when it is no longer fresh: a call looks each time."""
        settles = max(signature[:2]) + _RACY
        return settles >= self._read_at and (signature[2] <= _LARGE or settles < now)

    def _become(self, content: Kept | None, fault: str | None, seen: int | None) -> bool:
        changed = seen is not None or (content, fault) != (self.content, self.fault)
        self.content, self.fault, self._hash = content, fault, seen
        return changed


def _signature(path: str) -> tuple[int, ...]:
    """What changes when a file does; its times come first. One of them also sees edits that put the other back."""
    try:
        status = os.stat(path)
    except OSError as error:
        return (0, 0, error.errno or -1)
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev, status.st_mode)


def _read(path: str, limit: str, allowed: int) -> bytes:
    # Looked at before it is opened: opening a device may already do something, and a FIFO would wait for a writer.
    _require_file(os.stat(path))
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _require_file(os.fstat(fd))
        content = bytearray()
        while len(content) <= allowed and (chunk := os.read(fd, min(allowed + 1 - len(content), 1 << 20))):
            content += chunk
    finally:
        os.close(fd)
    if len(content) > allowed:
        raise Unusable(f"is larger than the {allowed} bytes that the limit `{limit}` allows")
    return bytes(content)


def _require_file(status: os.stat_result) -> None:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    if not stat.S_ISREG(status.st_mode):
        raise Unusable(f"is {kinds.get(stat.S_IFMT(status.st_mode), 'something')}, not a file")


def _words(error: OSError) -> str:
    words = {errno.ENOENT: "does not exist", errno.ELOOP: "symbolic links lead in a circle"}
    return words.get(error.errno or 0) or f"cannot be read ({error.strerror})"


def _text(raw: bytes) -> str:
    if raw[:2] in _BOMS or b"\0" in raw[:4]:
        raise Unusable(_UTF16)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unusable(f"is not UTF-8 text (byte {error.start})") from None


def _parse(text: str, *, exact: bool) -> object:
    if not text.strip():
        raise Unusable('is empty; a file without peers is {"mcpServers": {}}')
    try:
        return jsontext.loads(text, pairs=_unique if exact else None)
    except _Duplicate as error:
        raise Unusable(str(error)) from None
    except jsontext.NotJSON as error:
        raise Unusable(_fault(text, str(error))) from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made: dict[str, object] = {}
    for name, value in pairs:
        if name in made:
            raise _Duplicate(f"the key {name[:100]!a} is there twice in one object")
        made[name] = value
    return made


def _fault(text: str, reason: str) -> str:
    """What is wrong, and where. The scanner does not tell, so `json` is asked, which only a broken file costs."""
    import json

    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        comments = "; comments are not JSON" if text.startswith(("//", "/*"), error.pos) else ""
        return f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}{comments}"
    except (ValueError, RecursionError):
        pass  # a number with thousands of digits, nesting without end: `reason` names it
    return f"is not JSON: {reason}"
