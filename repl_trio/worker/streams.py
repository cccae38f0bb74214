"""The standard streams of a generation.

`sys.stdout` and `sys.stderr` are real text streams over descriptors 1 and 2, so that prints, C code and child processes
keep their order within a stream. They stay the same objects for the whole generation, because `logging` and others keep
the object they were given; after each cell, whatever it closed, replaced or redirected is put back.
"""

from __future__ import annotations

import builtins
import io
import os
import sys

from .gate import outcome_of
from .isolation import isolated_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from io import TextIOWrapper
    from typing import Any, NoReturn

    from .link import Link

_NO_TERMINAL = (
    "there is no terminal and standard input is empty: put the value into the code, "
    "or read it from a file or an environment variable"
)
_NO_DEBUGGER = (
    "there is no terminal for a debugger: print values or use repl_source(), and look at the state in the next cell"
)


def _input(prompt: object = "", /) -> NoReturn:
    """There is no terminal to ask at: raises EOFError at once."""
    raise EOFError(f"input(): {_NO_TERMINAL}")


def _breakpoint(*arguments: object, **named: object) -> object:
    if os.environ.get("PYTHONBREAKPOINT"):
        # Somebody chose what it is to do: nothing at all ("0"), or a function of his own.
        return sys.__breakpointhook__(*arguments, **named)
    raise EOFError(f"breakpoint(): {_NO_DEBUGGER}")


def _getpass(prompt: str = "Password: ", stream: object = None) -> NoReturn:
    raise EOFError(f"getpass(): {_NO_TERMINAL}")


def refuse_passwords(getpass: Any) -> None:
    """Let the freshly imported `getpass` say at once that nobody can be asked."""
    getpass.getpass = getpass.unix_getpass = _getpass


def refuse_debugger(pdb: Any) -> None:
    """Let the freshly imported `pdb` say at once that nobody can be asked. One that is given its commands works."""
    interact = pdb.Pdb.interaction

    def interaction(self: Any, *arguments: Any, **named: Any) -> Any:
        if not self.use_rawinput:
            return interact(self, *arguments, **named)
        # Else the rest of the cell would be traced, and the next one.
        sys.settrace(None)
        raise EOFError(f"pdb: {_NO_DEBUGGER}")

    pdb.Pdb.interaction = interaction


class _Buffer(io.BufferedWriter):
    """A buffer that stays open: a second text stream over it, once collected, would close it under the first."""

    def close(self) -> None:
        """Write out what is held."""
        self.flush()

    def detach(self) -> Any:
        """The stream below, which stays in use here as well."""
        self.flush()
        return self.raw


class _Text(io.TextIOWrapper):
    """A text stream that stays open, because `logging` and others keep the object they were given."""

    #: A cell has changed how it writes.
    changed = False

    def reconfigure(self, **form: Any) -> None:
        """As ever, until the end of the cell."""
        self.changed = True
        super().reconfigure(**form)

    def close(self) -> None:
        """Write out what is held."""
        self.flush()

    def detach(self) -> Any:
        """The buffer below, which stays in use here as well."""
        self.flush()
        return self.buffer


_FORM: dict[str, Any] = {
    "encoding": "utf-8",
    "errors": "backslashreplace",
    "newline": "\n",
    "line_buffering": True,
    "write_through": False,
}


def _text_stream(descriptor: int, name: str) -> _Text:
    raw = io.FileIO(descriptor, "w", closefd=False)
    raw.name = name
    return _Text(_Buffer(raw), **_FORM)


def _null_stream() -> TextIOWrapper:
    return io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), encoding="utf-8")


def _usable(stream: TextIOWrapper) -> bool:
    try:
        return not stream.closed
    except ValueError:
        # detach() leaves an object that answers nothing any more.
        return False


def _flush_foreign(stream: Any) -> None:
    stream.flush()


def _c_flush() -> Callable[[], object]:
    """A call that flushes C's own output buffers, or one that does nothing where `_ctypes` is missing."""
    try:
        _ctypes = isolated_import("_ctypes")
        process = _ctypes.dlopen(None, 0)
        address = _ctypes.dlsym(process, "fflush")
        call = _ctypes.call_function
    except (ImportError, AttributeError, OSError):
        return lambda: None
    return lambda: call(address, (None,))


class Streams:
    """Owner of `sys.stdin`, `sys.stdout`, `sys.stderr` and of what descriptors 0, 1 and 2 are."""

    def __init__(self, link: Link) -> None:
        self._private = ((0, link.null), (1, link.stdout), (2, link.stderr))
        self._identity = [_identity(private) for _number, private in self._private]
        self._flush_c: Callable[[], object] | None = None
        self.stdin = _null_stream()
        self.stdout = _text_stream(1, "<stdout>")
        self.stderr = _text_stream(2, "<stderr>")
        self._put_back()
        builtins.input = _input
        sys.breakpointhook = _breakpoint

    def prepare(self) -> None:
        """Find C's flush ahead of the first cell's end."""
        if self._flush_c is None:
            self._flush_c = _c_flush()

    def flush(self) -> None:
        """Write out what Python and C still hold. A stream that cannot be flushed is no fault of the cell."""
        for stream in (self.stdout, self.stderr):
            # Past the object: a cell may have given it a `flush` of its own.
            try:
                io.TextIOWrapper.flush(stream)
            except Exception:  # noqa: BLE001 - closed, or not writable, or its buffer has methods of the cell's
                continue
        if self._flush_c is not None:
            self._flush_c()

    def unblock(self) -> None:
        """Undo what a child may have done to the pipes it shares: prints fail on a full non-blocking one."""
        for number in (1, 2):
            if not os.get_blocking(number):
                os.set_blocking(number, True)

    def restore(self) -> None:
        """Flush, then put back what the cell closed, replaced or redirected."""
        for name, stream in (("stdout", self.stdout), ("stderr", self.stderr)):
            now = getattr(sys, name, None)
            if now is not stream and now is not None:
                # An object of the user's; what it still holds belongs where it points now.
                outcome_of(_flush_foreign, now)
        self.flush()
        self._restore_descriptors()
        if not _usable(self.stdout):
            self.stdout = _text_stream(1, "<stdout>")
        if not _usable(self.stderr):
            self.stderr = _text_stream(2, "<stderr>")
        if not _usable(self.stdin):
            self.stdin = _null_stream()
        for stream in (self.stdout, self.stderr):
            # The server reads UTF-8.
            if stream.changed is True:
                # `reconfigure` calls it.
                stream.__dict__.pop("flush", None)
                try:
                    io.TextIOWrapper.reconfigure(stream, **_FORM)
                except Exception:  # noqa: BLE001 - as above
                    continue
                stream.changed = False
        self._put_back()

    def _restore_descriptors(self) -> None:
        moved = False
        for index, (number, private) in enumerate(self._private):
            if _identity(number) != self._identity[index]:
                os.dup2(private, number)
                moved = True
        self.unblock()
        if moved:
            # What was printed to a closed descriptor is still held, and would come with the next cell.
            self.flush()

    def _put_back(self) -> None:
        sys.stdin = sys.__stdin__ = self.stdin  # type: ignore[misc]
        sys.stdout = sys.__stdout__ = self.stdout  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self.stderr  # type: ignore[misc]


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino
