"""Things done to modules at the moment somebody imports them, so that nobody pays who does not."""

from __future__ import annotations

import sys

from . import isolation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Actions = dict[str, Callable[[Any], None]]


class ImportHooks:
    """First finder of the interpreter: lets the named modules be loaded as ever, then acts on them.

    `standard`, `libraries`: module name -> what to do with the loaded module of the standard library, and with one that
    is installed. A library may be of any version: an action that fails on it is given up.
    """

    def __init__(self, standard: Actions, libraries: Actions) -> None:
        self._standard = standard
        self._libraries = {name: _tolerant(action) for name, action in libraries.items()}

    def install(self) -> None:
        """Take effect. A module that is loaded already is acted on now."""
        isolation.find_first(self)
        for name, action in (*self._standard.items(), *self._libraries.items()):
            if name in sys.modules:
                action(sys.modules[name])

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a named module, with a loader that acts; None for every other.

        A project's own module of a standard one's name is left alone.
        """
        standard = name in self._standard
        if not standard and name not in self._libraries:
            return None
        for finder in isolation.finders():
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None and finder is not self else None
            if spec is None:
                continue
            if standard and isolation.is_standard(spec.origin):
                isolation.keep_bytecode(spec.loader)
                spec.loader = _Loader(spec.loader, self._standard[name], isolated=True)  # type: ignore[assignment]
            elif not standard and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self._libraries[name], isolated=False)  # type: ignore[assignment]
            return spec
        return None


class _Loader:
    """A module's own loader, and an action behind it. Whatever else it is asked for is that loader's."""

    def __init__(self, loader: Any, action: Callable[[Any], None], *, isolated: bool) -> None:
        self._loader = loader
        self._action = action
        self._isolated = isolated

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader makes it."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """Load the module as its own loader would, give it that loader back, then act."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        if self._isolated:
            isolation.with_standard_path(self._loader.exec_module, module)
        else:
            self._loader.exec_module(module)
        self._action(module)


def _tolerant(action: Callable[[Any], None]) -> Callable[[Any], None]:
    def act(module: Any) -> None:
        try:
            action(module)
        except Exception:  # noqa: BLE001 - a library of another make than known works as it does without us
            return

    return act
