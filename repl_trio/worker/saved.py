"""What `checkpoint` and `restore` do: exact JSON builtins of the namespace to a file and back.

Everything is copied before it is written and checked before it is set. The copy looks at nothing but exact builtin
types, so no code of the user's runs; it ends at the bound, however large the value; and another thread that goes on
changing the value cannot tear it. Loaded on the first call (`isolation.isolated_import`).
"""

from __future__ import annotations

import errno
import math
import os
import stat
import sys
from contextlib import suppress

from ..limits import DEFAULT
from ..wire import jsontext
from .checkpoint import Checkpoint
from .gate import interruptible, shielded
from .preview import INT_BITS, name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FORMAT = "repl_trio checkpoint"
VERSION = 1
#: Containers inside one another.
DEPTH = 100
#: Digits that the interpreter must be willing to convert for an int of `INT_BITS`.
DIGITS = 4_300
_MODULE = type(sys)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Unfit(Exception):
    """A value that cannot be saved: (why, where in it)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = ""

    def text(self, name: str) -> str:
        """The reason in words, for the value of this name."""
        return f"{name}{self.where}: {self.reason}" if self.where else self.reason


class _Copy:
    """One exact copy being made of a value whose JSON may have `size` bytes."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._open: set[int] = set()

    def of(self, value: Any) -> Any:
        """The copy. Raises `_Unfit`."""
        kind = type(value)
        if kind is list or kind is dict:
            return self._container(value, kind)
        size = 1
        if kind is str:
            size = len(value) + 2
        elif kind is int:
            bits = value.bit_length()
            size = bits // 4
            if bits > INT_BITS:
                raise _Unfit(f"too large, an int of {bits:,} bits ({INT_BITS:,} are allowed)")
        elif kind is float:
            if value - value != 0.0:
                raise _Unfit(f"{'NaN' if value != value else 'infinity'} is not in JSON")
        elif kind is not bool and value is not None:
            raise _Unfit(f"{name_of(value)} is no JSON builtin")
        self._take(size)
        return value

    def _container(self, value: Any, kind: type) -> Any:
        if id(value) in self._open:
            raise _Unfit("contains itself")
        if len(self._open) >= DEPTH:
            raise _Unfit(f"nested deeper than {DEPTH}")
        # Each item takes at least a digit and a comma: a longer container cannot fit and is not worth beginning.
        self._take(2 * len(value))
        self._left += len(value)
        self._open.add(id(value))
        copy = self._items(value) if kind is list else self._pairs(value)
        self._open.discard(id(value))
        return copy

    def _items(self, value: list[Any]) -> list[Any]:
        whole = list(value)
        if self._is_plain(whole):
            return whole
        copy = []
        try:
            for item in whole:
                copy.append(self.of(item))
        except _Unfit as unfit:
            unfit.where = f"[{len(copy)}]{unfit.where}"
            raise
        return copy

    def _is_plain(self, items: list[Any]) -> bool:
        """Whether the items are all of one scalar type and fit: a million numbers are not looked at one by one."""
        kinds = set(map(type, items))
        if len(kinds) != 1:
            return False
        kind = kinds.pop()
        if kind is str:
            self._take(sum(map(len, items)) + 2 * len(items))
            return True
        if (
            (kind is float and all(map(math.isfinite, items)))
            or (kind is int and max(items).bit_length() <= INT_BITS and min(items).bit_length() <= INT_BITS)
            or kind is bool
        ):
            self._take(len(items))
            return True
        return False

    def _pairs(self, value: dict[Any, Any]) -> dict[str, Any]:
        copy = {}
        key: Any = ""
        try:
            for key, item in value.items():
                if type(key) is not str:
                    raise _BadKey(f"a dict key of type {name_of(key)} is no JSON builtin")
                self._take(len(key) + 3)
                copy[key] = self.of(item)
        except _BadKey:
            raise
        except _Unfit as unfit:
            unfit.where = f"[{key[:50]!r}]{unfit.where}"
            raise
        except RuntimeError:
            raise _Unfit("changed while it was being saved") from None
        return copy

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _Unfit(_too_large())


class _BadKey(_Unfit):
    """A key that cannot be saved: its place is the dict, not an item of it."""


def _too_large() -> str:
    return f"too large: the limit checkpoint_bytes allows {DEFAULT.checkpoint_bytes:,} bytes in all"


def save(namespace: dict[str, object], given: frozenset[str], path: Any, names: Any) -> Checkpoint:
    """See `checkpoint.fronts`."""
    place = os.fsdecode(path)
    chosen = _all_names(namespace, given) if names is None else _named(names, namespace, given)
    head = f'{{"format":"{FORMAT}","version":{VERSION},"names":{{'
    parts: list[str] = []
    saved, skipped = [], {}
    left = DEFAULT.checkpoint_bytes - len(head) - len("}}\n")
    for name in chosen:
        try:
            part = _part(name, namespace[name], left - bool(parts))
        except _Unfit as unfit:
            if names is not None:
                raise ValueError(f"{name!r} cannot be saved, nothing is: {unfit.text(name)}") from None
            skipped[name] = unfit.text(name)
            continue
        # Behind the first, each has a comma before it.
        left -= len(part) + bool(parts)
        parts.append(part)
        saved.append(name)
    text = head + ",".join(parts) + "}}\n"
    _replace(place, text.encode("ascii"))
    return Checkpoint(place, saved, skipped, len(text))


def _part(name: str, value: object, size: int) -> str:
    """The JSON of one name and its value, at most `size` bytes. Raises `_Unfit`."""
    copy = _Copy(size).of(value)
    part: str = _with_digits(jsontext.dumps, {name: copy})[1:-1]
    if len(part) > size:
        raise _Unfit(_too_large())
    return part


def _all_names(namespace: dict[str, object], given: frozenset[str]) -> list[str]:
    return [
        name
        for name, value in list(namespace.items())
        if type(name) is str
        and not name.startswith("_")
        and name not in given
        and type(value) is not _MODULE
        # What `globals()["..."] = ` can put there and no code can read.
        and name.isidentifier()
    ]


def _named(names: Any, present: dict[str, Any], given: frozenset[str]) -> list[str]:
    """The names asked for, each once. Raises in words when one is no name, is ours, or is not present."""
    # One name alone is a common slip, and its letters are never meant.
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        _refuse_name(name, given)
        if name not in present:
            raise LookupError(f"there is no {name!r} to be had")
    return list(dict.fromkeys(chosen))


def _refuse_name(name: Any, given: frozenset[str]) -> None:
    if type(name) is not str or not name.isidentifier():
        raise ValueError(f"{name!r} is no name" if type(name) is str else f"a name is a str, not a {name_of(name)}")
    if name in given or (name.startswith("__") and name.endswith("__")):
        raise ValueError(f"{name!r} is not a name of yours but the REPL's own")


def load(namespace: dict[str, object], given: frozenset[str], path: Any, names: Any) -> list[str]:
    """See `checkpoint.fronts`."""
    place = os.fsdecode(path)
    data = _read(place)
    try:
        values = _checked(data, given)
    except ValueError as error:
        raise ValueError(f"{place!r} is no checkpoint that can be restored: {error}") from None
    if names is not None:
        values = {name: values[name] for name in _named(names, values, given)}
    # One step of the interpreter: all names or, with an interrupt before it, none.
    namespace.update(values)
    return list(values)


def _checked(data: bytes, given: frozenset[str]) -> dict[str, Any]:
    content = _with_digits(jsontext.loads, data.decode("utf-8"))
    if type(content) is not dict or content.get("format") != FORMAT:
        raise ValueError("it was not written by checkpoint()")
    version, values = content.get("version"), content.get("names")
    if version != VERSION:
        raise ValueError(f"its version is {str(version)[:20]}, and this is {VERSION}")
    if type(values) is not dict or len(content) != 3:
        raise ValueError("its parts are not those of this version")
    for name, value in values.items():
        _refuse_name(name, given)
        try:
            _Copy(len(data)).of(value)
        except _Unfit as unfit:
            raise ValueError(f"the value of {name!r} is not one that is saved: {unfit.text(name)}") from None
    return values


def _with_digits(call: Callable[[Any], Any], argument: Any) -> Any:
    """Call where ints of `DIGITS` digits are converted: a cell may have asked the interpreter for less."""
    allowed = getattr(sys, "get_int_max_str_digits", lambda: 0)()
    if not 0 < allowed < DIGITS:
        return call(argument)
    return _digits_raised(call, argument, allowed)


@shielded
def _digits_raised(call: Callable[[Any], Any], argument: Any, allowed: int) -> Any:
    sys.set_int_max_str_digits(DIGITS)
    try:
        return call(argument)
    finally:
        sys.set_int_max_str_digits(allowed)


@shielded
def _read(place: str) -> bytes:
    try:
        descriptor = os.open(place, _READ)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a symbolic link, which is not followed", place) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", place)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(DEFAULT.checkpoint_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > DEFAULT.checkpoint_bytes:
        raise ValueError(f"{place!r} is {_too_large()}")
    return data


@shielded
def _replace(place: str, data: bytes) -> None:
    """Make the file be `data`, or leave it as it is. Interrupts land in `_write`, before anything is replaced."""
    with suppress(FileNotFoundError):
        mode = os.lstat(place).st_mode
        if not stat.S_ISREG(mode):
            kind = "a symbolic link, which is not followed" if stat.S_ISLNK(mode) else "no regular file"
            raise OSError(errno.EINVAL, f"is {kind}", place)
    folder = os.path.dirname(place) or "."
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "no such folder", folder)
    # In the same folder, because a rename is one step only within a file system.
    temporary = os.path.join(folder, f".checkpoint-{os.urandom(8).hex()}.tmp")
    descriptor = os.open(temporary, _MAKE, 0o600)
    try:
        try:
            _write(descriptor, data)
        finally:
            os.close(descriptor)
        os.replace(temporary, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _keep_entry(folder)


@interruptible
def _write(descriptor: int, data: bytes) -> None:
    # The umask may have taken even the owner's rights.
    os.fchmod(descriptor, 0o600)
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def _keep_entry(folder: str) -> None:
    """Have the file's new name survive a power cut as well, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
