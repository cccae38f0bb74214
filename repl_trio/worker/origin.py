"""Whose code is it: the user's, a library's, or the worker's own."""

from __future__ import annotations

import _contextvars
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_FUNCTION = type(lambda: None)
_BUILTIN = type(len)
_METHOD = type(type("", (), {"of": lambda self: None})().of)
_MODULE = type(sys)
_mro_of = type.__dict__["__mro__"].__get__
CELL = "<repl:"

#: Files that ran as `__main__` in this generation: their code counts as cell code.
executed_files: set[str] = set()


def cell_file(run_id: str) -> str:
    """The file name under which a cell's source is compiled and shown."""
    return f"{CELL}{run_id}>"


def is_cell(filename: str) -> bool:
    """Whether code of this file name came from a cell or from a file that was run as one."""
    return filename.startswith(CELL) or filename in executed_files


def _library_folders() -> tuple[str, ...]:
    import os

    # The lib folders and not the prefixes themselves: a project may live below a prefix (/usr/src/app), or be one (a
    # virtual environment made in the project's own folder).
    folders = {os.path.dirname(os.__file__) + "/"}
    for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix):
        folders.update((f"{prefix}/lib/", f"{prefix}/lib64/"))
    return tuple(folders)


_folders = _library_folders()


def is_library(filename: str) -> bool:
    """Whether a file belongs to the standard library or an installed package, or is frozen into the interpreter."""
    return (
        filename.startswith((*_folders, "<frozen ")) or "/site-packages/" in filename or "/dist-packages/" in filename
    )


def is_ours(frame: FrameType) -> bool:
    """Whether a frame runs the worker's own code. By module name: a user may be developing these very files."""
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.startswith("_repl_trio.")


def runs_cell_code(frame: FrameType | None) -> bool:
    """Whether a cell's code is on the stack that ends in `frame`."""
    while frame is not None:
        if is_cell(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def is_cells_call(call: Any, arguments: Any = ()) -> bool:
    """Whether calling this with these arguments runs a cell's code, or something that only a cell would put off.

    That is a function of a builtin module: a library that puts off `print` or `time.sleep` does so in a function of its
    own. Runs none of the user's code, whatever the object is.
    """
    for _step in range(10):
        kind: type = type(call)
        if kind is _FUNCTION:
            return is_cell(call.__code__.co_filename)
        if kind is _BUILTIN:
            owner = type(call.__self__)
            if owner is not _contextvars.Context or call.__name__ != "run" or not arguments:
                return owner is _MODULE
            call, arguments = arguments[0], arguments[1:]
        elif kind is getattr(sys.modules.get("functools"), "partial", None):
            call, arguments = call.func, (*call.args, *arguments)
        elif kind is _METHOD:
            call = call.__func__
        else:
            return _calls_cell_code(kind)
    return False


def _calls_cell_code(kind: type) -> bool:
    for base in _mro_of(kind):
        call = type.__dict__["__dict__"].__get__(base).get("__call__")
        if call is not None:
            return type(call) is _FUNCTION and is_cell(call.__code__.co_filename)
    return False
