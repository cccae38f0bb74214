"""The file of a class that a cell defines.

`inspect` asks the module of a class for its file, and that of the cells has none. The class's own functions know it.
"""

from __future__ import annotations

from . import origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FUNCTION = type(lambda: None)
_members_of = type.__dict__["__dict__"].__get__


def adopt(inspect: Any) -> None:
    """Let the freshly imported `inspect` find the source of a cell's class that has a method."""
    usual = inspect.getfile

    def getfile(object: Any) -> Any:
        try:
            return usual(object)
        except (OSError, TypeError):
            file = _file_of(object) if isinstance(object, type) else None
            if file is None:
                raise
            return file

    getfile.__doc__ = usual.__doc__
    inspect.getfile = getfile


def _file_of(kind: type) -> str | None:
    for member in _members_of(kind).values():
        # What decorators of the language put around a function.
        function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        if type(function) is _FUNCTION and origin.is_cell(function.__code__.co_filename):
            return str(function.__code__.co_filename)
    return None
