"""Imports of the worker's own that a project's files cannot break.

Nothing that others import by is swapped: a first finder answers the threads that are in isolation from the standard
library, and all others from nothing. Only a project's module that already carries a standard module's name has to be
out of sight meanwhile, for everybody.
"""

from __future__ import annotations

import _frozen_importlib
import _frozen_importlib_external
import _signal
import _thread
import os
import sys

from . import gate, reserve
from .border import SIGNALS
from .gate import shielded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

#: The recursion limit that imports get at least: they nest deeply, and a cell may have lowered it.
RECURSION = 1_000
#: Calls that must be left of it. What is done must find the depth to be undone, and an import ends better unbegun.
DEPTH = 100


class _Standard:
    """What boot found: where the standard library is."""

    path: list[str] = []  # noqa: RUF012 - replaced as a whole by `isolate`
    folders: tuple[str, ...] = ()
    finders: list[Any] = []  # noqa: RUF012 - replaced as a whole by `isolate`
    ours: dict[str, ModuleType] = {}  # noqa: RUF012 - replaced as a whole by `isolate`


class _Isolation:
    """Who is in isolation, and what is put back when the last of them has left: their calls overlap.

    No lock is held during a call: it may wait for a module that another thread is importing, which may come here too.
    """

    threads: set[int] = set()  # noqa: RUF012 - one for the process
    #: The project's modules that are out of sight, and the standard ones that stand in for them meanwhile.
    hidden: dict[str, ModuleType | None] = {}  # noqa: RUF012 - one for the process
    aside: dict[str, ModuleType] = {}  # noqa: RUF012 - one for the process
    #: The user's `sys.meta_path`, what is in its place, and the identities in there.
    finders: tuple[Any, list[Any], list[int]] | None = None
    lock = _thread.RLock()


class _First:
    """First finder of the interpreter: in a thread that is in isolation the only one, in any other none."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module of the worker's or the standard library's; raises where there is no other to ask."""
        if _thread.get_ident() not in _Isolation.threads:
            return None
        for finder in list(_Standard.finders):
            spec: ModuleSpec | None = finder.find_spec(name, path, target)
            if spec is not None:
                keep_bytecode(spec.loader)
                return spec
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class _Folders:
    """What `PathFinder` is, with the standard library's path, and hooks and a cache that no cell can change."""

    def __init__(self) -> None:
        self._hooks = list(sys.path_hooks)
        known = sys.path_importer_cache
        self._finders: dict[str, Any] = {entry: known[entry] for entry in _Standard.path if entry in known}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """The module's spec. The standard library has no namespace packages."""
        for entry in _Standard.path if path is None else path:
            if entry not in self._finders:
                self._finders[entry] = self._finder(entry)
            finder = self._finders[entry]
            spec: ModuleSpec | None = finder.find_spec(name, target) if finder is not None else None
            if spec is not None and spec.loader is not None:
                return spec
        return None

    def _finder(self, entry: str) -> Any:
        for hook in self._hooks:
            try:
                return hook(entry)
            except ImportError:
                continue
        return None


_first = _First()


def isolate(path: list[str], finders: list[Any]) -> None:
    """Take `path` as the standard library's entries, and these finders, for every later `isolated_import`."""
    _Standard.path = path
    _Standard.folders = tuple(entry + "/" for entry in path)
    _Standard.finders = [finder for finder in finders if finder is not _frozen_importlib_external.PathFinder]
    _Standard.finders.append(_Folders())
    _Standard.ours = _loaded_of_ours()
    sys.meta_path.insert(0, _first)
    os.register_at_fork(after_in_child=_forget_other_threads)


def find_first(finder: Any) -> None:
    """Let `finder` be the first that is asked, by the worker's own imports too."""
    sys.meta_path.insert(1, finder)
    _Standard.finders.insert(0, finder)


def finders() -> Iterable[Any]:
    """The finders that this thread's imports ask."""
    return list(_Standard.finders if _thread.get_ident() in _Isolation.threads else sys.meta_path)


def keep_bytecode(loader: Any) -> None:
    """Let `loader` write its module's bytecode file, whatever `sys.dont_write_bytecode` says of the user's modules.

    A lazily loaded module of ours, or of the standard library, deserves it as much as those loaded at the start.
    """
    machinery: Any = _frozen_importlib_external
    if not sys.dont_write_bytecode or not isinstance(loader, machinery.SourceFileLoader):
        return

    def source_to_code(source: bytes, path: str, *rest: Any) -> Any:
        stats = loader.path_stats(path)
        code = type(loader).source_to_code(loader, source, path, *rest)
        content = machinery._code_to_timestamp_pyc(code, stats["mtime"], stats["size"])
        loader._cache_bytecode(path, machinery.cache_from_source(path), content)
        return code

    loader.source_to_code = source_to_code


def _loaded_of_ours() -> dict[str, ModuleType]:
    return {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "_repl_trio"}


def _intruders() -> dict[str, ModuleType | None]:
    """Loaded modules that carry a standard module's name without being it: a project's own `selectors.py`."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in sys.stdlib_module_names
        and name != "__main__"
        and _is_foreign(module)
        and not _is_loaded_elsewhere(name)
    }


def _is_foreign(module: Any) -> bool:
    if module is None:
        return True
    # Not with `getattr`: a module may have one of its own, which is the user's code.
    origin = _contents(module).get("__file__") if issubclass(type(module), _Module) else None
    return type(origin) is str and not is_standard(origin)


_Module: Any = type(sys)
_contents: Callable[[Any], dict[str, Any]] = _Module.__dict__["__dict__"].__get__


def _is_loaded_elsewhere(name: str) -> bool:
    """Whether another thread is in the midst of importing it: taken out of its hands, that import would fail."""
    reference = _frozen_importlib._module_locks.get(name)  # type: ignore[attr-defined]
    lock = reference() if reference is not None else None
    return lock is not None and lock.owner not in (None, _thread.get_ident())


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
            sys.modules.pop(name, None)


@shielded
def with_standard_path(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call with nothing but the standard library to import from, and in sight in `sys.modules`.

    Modules of the user's that shadow a standard one are hidden meanwhile and back in place afterwards. Raises
    RecursionError, with nothing done, where too little depth is left.
    """
    if _thread.get_ident() in _Isolation.threads:
        return call(*arguments)
    limit = sys.getrecursionlimit()
    try:
        if limit < RECURSION:
            sys.setrecursionlimit(RECURSION)
        _reach(DEPTH)
        return _alone(call, arguments)
    finally:
        if limit < RECURSION:
            _lower(limit)


def _reach(depth: int) -> None:
    if depth:
        _reach(depth - 1)


def _lower(limit: int) -> None:
    try:
        if sys.getrecursionlimit() == RECURSION:
            sys.setrecursionlimit(limit)
    except RecursionError:
        # The call came from deeper than that: a limit too high does no harm.
        return


def _alone(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    thread = _thread.get_ident()
    # Handlers run in the main thread only. They raise as soon as the signals are open again, which is in user code.
    closed: set[int] = set()
    if "signal" in sys.modules and thread == gate.interrupts.thread:
        closed = SIGNALS - _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    try:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, closed)
        _enter(thread)
        return call(*arguments)
    finally:
        # Twice, because the first may be left early: another thread may have taken a signal of those, and Python runs
        # the handler here.
        try:
            _leave(thread, closed)
        finally:
            _leave(thread, closed)


def _enter(thread: int) -> None:
    with _Isolation.lock:
        others = len(_Isolation.threads)
        _Isolation.threads.add(thread)
        if not others:
            reserve.release()
            _come_first()
            # A cell may have emptied `sys.modules`.
            sys.modules.update(_Standard.ours)
            _hide()


def _leave(thread: int, closed: set[int]) -> None:
    """May be called again, and goes on where it was left."""
    with _Isolation.lock:
        # A finalizer may come here in the midst of it: as long as the thread counts, that one puts nothing back.
        if thread in _Isolation.threads:
            if len(_Isolation.threads) == 1:
                _put_back()
            _Isolation.threads.discard(thread)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, closed)


def _put_back() -> None:
    _Standard.ours = _loaded_of_ours()
    for name in list(_Isolation.hidden):
        module: Any = sys.modules.get(name)
        if module is not None and not _is_foreign(module):
            _Isolation.aside[name] = module
        sys.modules[name] = _Isolation.hidden[name]  # type: ignore[assignment]
        _Isolation.hidden.pop(name, None)
    _step_back()
    reserve.fill()


def _hide() -> bool:
    """Take intruders out of sight; whether there were any. Standard modules they had taken the place of return."""
    drop_orphans()
    found = _intruders()
    for name, module in found.items():
        _Isolation.hidden.setdefault(name, module)
        if name in _Isolation.aside:
            sys.modules[name] = _Isolation.aside[name]
        else:
            sys.modules.pop(name, None)
    return bool(found)


def _come_first() -> None:
    """Ask us before a finder that a cell has put in front, or instead of all.

    In a list of its own: taking us out of one that another thread's import goes through would make it skip a finder.
    """
    users: Any = sys.meta_path
    mutable = type(users) is list
    if not (mutable and users and users[0] is _first):
        ours = [_first, *users] if mutable else [_first]
        _Isolation.finders = users, ours, list(map(id, ours))
        sys.meta_path = ours


def _step_back() -> None:
    if _Isolation.finders is not None:
        users, ours, identities = _Isolation.finders
        if sys.meta_path is ours:
            if type(users) is list and list(map(id, ours)) != identities:
                # Another thread has meanwhile put in or taken out one of its own.
                users[:] = [finder for finder in ours if finder is not _first]
            sys.meta_path = users
        _Isolation.finders = None


def _forget_other_threads() -> None:
    """A forked child has this thread only."""
    _Isolation.lock = _thread.RLock()
    thread = _thread.get_ident()
    if _Isolation.threads - {thread}:
        _Isolation.threads.intersection_update((thread,))
        if not _Isolation.threads:
            _put_back()


def isolated_import(name: str) -> Any:
    """The module `name`, loaded where no file of the project can stand in for a standard module."""
    loaded = sys.modules.get(name)
    # One that another thread is still loading is waited for.
    if loaded is not None and name.startswith("_repl_trio.") and not loaded.__spec__._initializing:  # type: ignore[union-attr]
        return loaded
    return with_standard_path(_load, name)


def _load(name: str) -> Any:
    try:
        return __import__(name, fromlist=("*",))
    except Exception:
        # A thread of the user's may have imported an intruder since we looked.
        with _Isolation.lock:
            if not _hide():
                raise
        return __import__(name, fromlist=("*",))
