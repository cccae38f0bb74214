"""Imports of the worker's own that a project's files cannot break."""

from __future__ import annotations

import sys

from .gate import shielded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


class _Standard:
    """What boot found: where the standard library is."""

    path: list[str] = []  # noqa: RUF012 - replaced as a whole by `isolate`
    folders: tuple[str, ...] = ()


def isolate(path: list[str]) -> None:
    """Take `path` as the standard library's entries for every later `isolated_import`."""
    _Standard.path = path
    _Standard.folders = tuple(entry + "/" for entry in path)


def _intruders() -> dict[str, ModuleType]:
    """Loaded modules that carry a standard module's name without being it: a project's own `selectors.py`."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__":
            origin = getattr(module, "__file__", None)
            if type(origin) is str and not is_standard(origin):
                found[name] = module
    return found


def is_standard(origin: str | None) -> bool:
    """Whether a module's file is the standard library's own."""
    return origin is not None and origin.startswith(_Standard.folders) and "/site-packages/" not in origin


@shielded
def drop_orphans() -> None:
    """Forget standard modules whose package is gone: what an interrupt leaves of `import asyncio`.

    Python takes the half-imported package out again but keeps its finished submodules, and importing the package once
    more then fails for ever, because submodules that are already there are not bound to the new package.
    """
    while True:
        orphans = [
            name
            for name in list(sys.modules)
            if "." in name
            and name.rpartition(".")[0] not in sys.modules
            and name.partition(".")[0] in sys.stdlib_module_names
        ]
        if not orphans:
            return
        for name in orphans:
            del sys.modules[name]


@shielded
def with_standard_path(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call with nothing but the standard library on `sys.path` and in sight in `sys.modules`.

    Modules of the user's that shadow a standard one are hidden meanwhile and back in place afterwards.
    """
    drop_orphans()
    hidden = _intruders()
    for intruder in hidden:
        del sys.modules[intruder]
    users, sys.path = sys.path, list(_Standard.path)
    # A lazily loaded module of ours deserves its bytecode file as much as those loaded at the start.
    switch, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    # Imports nest deeply, and a cell may have lowered the limit.
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(max(depth, 1_000))
    try:
        return call(*arguments)
    finally:
        sys.setrecursionlimit(depth)
        sys.path, sys.dont_write_bytecode = users, switch
        sys.modules.update(hidden)


def isolated_import(name: str) -> Any:
    """The module `name`, loaded where no file of the project can stand in for a standard module."""
    loaded = sys.modules.get(name)
    if loaded is not None and name.startswith("_repl_trio."):
        return loaded
    return with_standard_path(_load, name)


def _load(name: str) -> Any:
    return __import__(name, fromlist=("*",))
