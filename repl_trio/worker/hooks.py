"""Things done to standard modules at the moment somebody imports them, so that nobody pays who does not."""

from __future__ import annotations

import sys

from . import isolation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class ImportHooks:
    """First finder of the interpreter: lets the named standard modules be loaded as ever, then acts on them.

    `actions`: module name -> what to do with the loaded module.
    """

    def __init__(self, actions: dict[str, Callable[[Any], None]]) -> None:
        self._actions = actions
        self._loaders: dict[str, Any] = {}

    def install(self) -> None:
        """Take effect. A module that is loaded already is acted on now."""
        sys.meta_path.insert(0, self)
        for name, action in self._actions.items():
            if name in sys.modules:
                action(sys.modules[name])

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """The spec of a named module, with this object as its loader; None for every other.

        A project's own module of such a name is left alone.
        """
        if name not in self._actions:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, None) if finder is not self else None
            if spec is not None and not isolation.is_standard(spec.origin):
                return spec
            if spec is not None:
                self._loaders[name] = spec.loader
                spec.loader = self  # type: ignore[assignment]
                return spec
        return None

    def create_module(self, _spec: ModuleSpec) -> ModuleType | None:
        """None: a plain module will do."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Load the module as its own loader would, give that loader back, then act."""
        loader = self._loaders.pop(module.__name__)
        module.__loader__ = loader
        if module.__spec__ is not None:
            module.__spec__.loader = loader
        isolation.with_standard_path(loader.exec_module, module)
        self._actions[module.__name__](module)
