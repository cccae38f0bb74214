"""Imports of the worker's own that a project's files cannot break."""

from __future__ import annotations

import _thread
import sys

from . import reserve
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
    finders: list[Any] = []  # noqa: RUF012 - replaced as a whole by `isolate`
    path_hooks: list[Any] = []  # noqa: RUF012 - replaced as a whole by `isolate`
    ours: dict[str, ModuleType] = {}  # noqa: RUF012 - replaced as a whole by `isolate`


def isolate(path: list[str], finders: list[Any]) -> None:
    """Take `path` as the standard library's entries, and these finders, for every later `isolated_import`."""
    _Standard.path = path
    _Standard.folders = tuple(entry + "/" for entry in path)
    _Standard.finders = finders
    _Standard.path_hooks = list(sys.path_hooks)
    _Standard.ours = _loaded_of_ours()


def find_first(finder: Any) -> None:
    """Let `finder` be the first that is asked, by the worker's own imports too."""
    sys.meta_path.insert(0, finder)
    _Standard.finders.insert(0, finder)


def _loaded_of_ours() -> dict[str, ModuleType]:
    return {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "_repl_trio"}


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
    with _lock:
        _Isolation.calls += 1
        if _Isolation.calls == 1:
            _enter()
    try:
        return call(*arguments)
    finally:
        with _lock:
            # A finalizer may come here in the midst of it: as long as the call counts, that one puts nothing back.
            if _Isolation.calls == 1:
                _leave()
            _Isolation.calls -= 1


class _Isolation:
    """What is put back when the last of the calls that overlap has ended: they nest, and come from several threads.

    No lock is held during a call: it may wait for a module that another thread is importing, which may come here too.
    """

    calls = 0
    hidden: dict[str, ModuleType] = {}  # noqa: RUF012 - replaced as a whole
    path: list[str] = []  # noqa: RUF012 - replaced as a whole
    finders: list[Any] = []  # noqa: RUF012 - replaced as a whole
    path_hooks: list[Any] = []  # noqa: RUF012 - replaced as a whole
    dont_write_bytecode = False
    recursion = 0


_lock = _thread.RLock()


def _enter() -> None:
    reserve.release()
    drop_orphans()
    _Isolation.hidden = _intruders()
    for intruder in _Isolation.hidden:
        del sys.modules[intruder]
    # A cell may have emptied `sys.modules`, or any of the lists that tell how to import.
    sys.modules.update(_Standard.ours)
    _Isolation.finders, sys.meta_path = sys.meta_path, list(_Standard.finders)
    _Isolation.path_hooks, sys.path_hooks = sys.path_hooks, list(_Standard.path_hooks)
    if type(sys.path_importer_cache) is not dict:
        sys.path_importer_cache = {}
    _Isolation.path, sys.path = sys.path, list(_Standard.path)
    # A lazily loaded module of ours deserves its bytecode file as much as those loaded at the start.
    _Isolation.dont_write_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    # Imports nest deeply, and a cell may have lowered the limit.
    _Isolation.recursion = sys.getrecursionlimit()
    sys.setrecursionlimit(max(_Isolation.recursion, 1_000))


def _leave() -> None:
    sys.setrecursionlimit(_Isolation.recursion)
    sys.path, sys.dont_write_bytecode = _Isolation.path, _Isolation.dont_write_bytecode
    sys.meta_path, sys.path_hooks = _Isolation.finders, _Isolation.path_hooks
    _Standard.ours = _loaded_of_ours()
    sys.modules.update(_Isolation.hidden)
    _Isolation.hidden = {}
    reserve.fill()


def isolated_import(name: str) -> Any:
    """The module `name`, loaded where no file of the project can stand in for a standard module."""
    loaded = sys.modules.get(name)
    # One that another thread is still loading is waited for.
    if loaded is not None and name.startswith("_repl_trio.") and not loaded.__spec__._initializing:  # type: ignore[union-attr]
        return loaded
    return with_standard_path(_load, name)


def _load(name: str) -> Any:
    return __import__(name, fromlist=("*",))
