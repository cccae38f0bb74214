"""`repl-trio exec FILE [ARG...]`: run a file in a fresh worker and exit with its status."""

from __future__ import annotations

import math
import os
import stat

from ..process.stdio import fill_holes
from ..settings import Settings
from ..values import Cell
from .conclusion import of_file
from .single import run_single
from .streams import complain


def execute(settings: Settings) -> int:
    """Run `settings.arguments` (FILE, then its arguments) without a time limit. Returns the exit status.

    The file's own status; 1 for an exception (its traceback is on stderr) and when no worker came up; 2 when there is
    no such file; 130 after Ctrl-C.
    """
    fill_holes()
    file, *arguments = settings.arguments
    problem = _problem(file)
    if problem is not None:
        complain(f"repl-trio exec: {file}: {problem}")
        return 2
    cell = Cell(None, math.inf, os.path.abspath(file), tuple(arguments))
    return run_single(settings, cell, of_file)


def _problem(file: str) -> str | None:
    """Why `file` cannot be run, None if it can. What it contains, the worker tells."""
    try:
        mode = os.stat(file).st_mode
    except (OSError, ValueError) as error:
        return error.strerror or "cannot be read" if isinstance(error, OSError) else str(error)
    if not stat.S_ISREG(mode):
        # A pipe of a shell's <(...) has a name in this process only, and /dev/stdin is empty in the worker.
        return "is a directory" if stat.S_ISDIR(mode) else "is no regular file"
    return None if os.access(file, os.R_OK) else "cannot be read"
