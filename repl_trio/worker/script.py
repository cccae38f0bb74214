"""A file that runs as `__main__`, with the surroundings that it would have as a script."""

from __future__ import annotations

import os
import sys

from . import origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FILE = "__file__"


class AsScript:
    """Inside: `sys.argv`, `sys.path[0]` and `__file__` are those of a script. Afterwards: what they were before.

    `sys.path[0]` is the file's folder. What else the file does to `sys.path` stays, as it does with an import.
    """

    def __init__(self, path: str, argv: list[str], namespace: dict[str, Any]) -> None:
        self._path = path
        self._argv = argv
        self._namespace = namespace
        self._folder = os.path.dirname(os.path.abspath(path))
        self._before: dict[str, Any] = {}

    def __enter__(self) -> None:
        origin.executed_files.add(self._path)
        self._arguments, sys.argv = sys.argv, [self._path, *self._argv]
        self._before = {key: self._namespace[key] for key in (_FILE,) if key in self._namespace}
        self._namespace[_FILE] = self._path
        if sys.path[:1] == [""]:
            sys.path[0] = self._folder
        else:
            sys.path.insert(0, self._folder)

    def __exit__(self, *_failure: object) -> None:
        sys.argv = self._arguments
        self._namespace.pop(_FILE, None)
        self._namespace.update(self._before)
        # The file may have put entries of its own before its folder, or taken that away.
        if self._folder in sys.path:
            sys.path[sys.path.index(self._folder)] = ""
        elif "" not in sys.path:
            sys.path.insert(0, "")
