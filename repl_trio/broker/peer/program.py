"""Finding the program of a stdio entry, just before it is started: `spawn ENOENT` tells nobody what to do."""

from __future__ import annotations

import os
import stat

from ...errors import BrokerError
from ..config.entries import Stdio

_SHOWN = 1_000  # characters of PATH in a message


def find_program(server: str, target: Stdio, path: str) -> str:
    """The absolute path of the entry's program. `path` is the PATH that its process inherits, if `env` has none.

    Raises `BrokerError` (CONNECT_FAILED, not sent), which says what was looked for and where. It shows no more than the
    first word of `command`, because the rest may hold a credential.
    """
    if not os.path.isdir(target.cwd):
        fault = "is no directory" if os.path.lexists(target.cwd) else "does not exist"
        raise _failed(server, f"its working directory {target.cwd} {fault}; `cwd` of the entry names it")
    command = target.command
    if "/" in command:
        return _at(server, os.path.join(target.cwd, command), target)
    own = dict(target.env).get("PATH")
    searched = path if own is None else own
    blocked = ""
    for folder in searched.split(":"):
        program = os.path.join(target.cwd, folder, command)
        if _is_file(program):
            if os.access(program, os.X_OK):
                return program
            blocked = blocked or program
    if blocked:
        raise _failed(server, f"{blocked} is not executable; chmod +x makes it so")
    where = "the PATH in `env` of the entry" if own is not None else f"PATH ({_cut(searched)})"
    fix = "name the program by its full path, or give the entry a PATH in `env`"
    raise _failed(server, _several_words(command) or f"there is no program {command!r} in {where}; {fix}")


def _at(server: str, program: str, target: Stdio) -> str:
    if _is_file(program):
        if os.access(program, os.X_OK):
            return program
        raise _failed(server, f"{program} is not executable; chmod +x makes it so")
    if os.path.isdir(program):
        raise _failed(server, f"`command` names a folder, {program}, not a program")
    looked = f"there is no program {target.command!r}, looked for in {target.cwd}"
    raise _failed(server, _several_words(target.command) or looked)


def _several_words(command: str) -> str:
    """The advice for a whole command line in `command`, "" for a single word."""
    first, *rest = command.split()
    if not rest:
        return ""
    example = f'{{"command": {_quoted(first)}, "args": ["...", "..."]}}'
    return (
        f"`command` holds a whole command line that begins with {_quoted(first)}; it must be the program alone, with"
        f" each further word in `args`, because no shell takes it apart: {example}"
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _failed(server: str, reason: str) -> BrokerError:
    return BrokerError("CONNECT_FAILED", f"{server}: {reason}", server=server)
