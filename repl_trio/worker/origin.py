"""Whose code is it: the user's, a library's, or the worker's own."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

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
