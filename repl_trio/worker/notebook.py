"""Habits from notebooks and shells, and what to write instead.

Loaded with the first error. Only lines of a cell that failed are looked at, so nothing that is Python is misread.
"""

from __future__ import annotations

import sys

from . import origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_SHELL = 'Hint: this is plain Python; run shell commands with sh("...").\n'
_MAGIC = 'Hint: this is plain Python, without notebook commands; run shell commands with sh("...").\n'
_HELP = "Hint: this is plain Python; use help(...) for what an object is and does.\n"
_PIP = 'Hint: install packages with sh([sys.executable, "-m", "pip", "install", ...]).\n'
#: First words of lines that people type at a shell.
_COMMANDS = frozenset(
    ("cat", "cd", "curl", "echo", "find", "git", "grep", "ls", "mkdir", "npm", "pwd", "rm", "uv", "which")
)


def hint(line: str) -> str:
    """What to say about a line of a cell that is no Python, or nothing. A whole line, ended by a newline."""
    words = line.split()
    if not words:
        return ""
    first = words[0].lstrip("!%")
    right = line.partition("=")[2].strip()
    if first in ("pip", "pip3"):
        return _PIP
    if line.lstrip()[0] == "!" or right[:1] == "!" or first in _COMMANDS:
        return _SHELL
    if line.lstrip()[0] == "%" or right[:1] == "%":
        return _MAGIC
    quoted = "'" in line or '"' in line
    return _HELP if not quoted and (words[0][0] == "?" or words[-1][-1] == "?") else ""


def command_hint(error: NameError, trace: TracebackType | None) -> str:
    """What to say about a command like `ls -la`, which is Python by accident; or nothing."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = getattr(error, "name", None)
    if trace is None or name not in _COMMANDS or not origin.is_cell(trace.tb_frame.f_code.co_filename):
        return ""
    linecache = sys.modules["linecache"]
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return _SHELL if line.split()[:1] == [name] else ""
