"""`repl-trio console`: cells from a terminal, or one cell from a stdin that is none."""

from __future__ import annotations

import math
import os

from ..process.stdio import fill_holes
from ..settings import Settings, stdin_is_terminal
from ..values import Cell
from .conclusion import of_cell
from .single import run_single
from .streams import complain


def console(settings: Settings) -> int:
    """Hold a conversation on the terminal until the user leaves or a SIGTERM or SIGHUP comes; returns 0 then.

    Without a terminal on stdin: run what it holds as one cell and return 0 or 1 for its outcome.
    """
    fill_holes()
    if not stdin_is_terminal():
        return _run_stdin(settings)
    from .conversation import converse  # prompt_toolkit costs more than a whole cell from a pipe

    converse(settings)
    return 0


def _run_stdin(settings: Settings) -> int:
    limit = settings.limits.code_bytes
    try:
        source = _read(0, limit + 1)
        code = source.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        complain(f"repl-trio console: stdin holds no cell: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    if len(source) > limit:
        complain(f"repl-trio console: the cell on stdin has more than {limit} bytes, the limit `code_bytes`")
        return 1
    return run_single(settings, Cell(code, math.inf), of_cell)


def _read(fd: int, most: int) -> bytes:
    """Up to `most` bytes, fewer only at EOF."""
    parts = bytearray()
    while len(parts) < most and (part := os.read(fd, most - len(parts))):
        parts += part
    return bytes(parts)
