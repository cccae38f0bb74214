"""Which Python a session's worker is. Looks at the file system only; whether it works, the worker tells."""

from __future__ import annotations

import os
import sys

from ..errors import InterpreterBroken
from ..values import Interpreter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def choose(explicit: str | None, project: str, environment: Mapping[str, str]) -> Interpreter:
    """The interpreter for `project`: the explicit one, else the project's `.venv`, else `VIRTUAL_ENV`, else the
    interpreter that the server's own environment was made from.

    Never the server's environment, so that a cell's `pip install` cannot break the server. What a rule names and what
    cannot be executed is an error, never a reason to take the next one: a session must not end up in another Python
    than its user believes. Raises `InterpreterBroken`.
    """
    if explicit is not None:
        return _explicit(explicit, environment)
    own = os.path.join(project, ".venv")
    if os.path.lexists(own) and not _is_ours(own):
        return _of_environment(own, "the project's .venv")
    active = environment.get("VIRTUAL_ENV")
    if active and not _is_ours(active):
        return _of_environment(active, "VIRTUAL_ENV")
    return Interpreter(_base(), "the server's base interpreter")


def _explicit(explicit: str, environment: Mapping[str, str]) -> Interpreter:
    import shutil  # 3 ms that only an explicit interpreter costs

    explicit = os.path.expanduser(explicit)
    if os.path.isdir(explicit):
        raise InterpreterBroken(
            f"{explicit} is a directory. Nothing was started. Name the interpreter in it, such as bin/python."
        )
    found = shutil.which(explicit, path=environment.get("PATH"))
    if found is None:
        raise InterpreterBroken(
            f"the interpreter {explicit} does not exist or is not executable. Nothing was started. "
            "Name an executable Python 3.10 or newer."
        )
    return Interpreter(os.path.abspath(found), "explicit")


def _of_environment(folder: str, source: str) -> Interpreter:
    python = os.path.join(folder, "bin", "python")
    if not os.access(python, os.X_OK) or os.path.isdir(python):
        raise InterpreterBroken(
            f"{source} ({folder}) has no working bin/python. Nothing was started. Repair it "
            f"(python3 -m venv --clear {folder}), remove it, or choose an interpreter with --python or `python`."
        )
    return Interpreter(python, source)


def _is_ours(folder: str) -> bool:
    return sys.prefix != sys.base_prefix and os.path.realpath(folder) == os.path.realpath(sys.prefix)


def _base() -> str:
    return getattr(sys, "_base_executable", None) or sys.executable
