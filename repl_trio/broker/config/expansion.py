"""`${NAME}` and `${NAME:-default}` in the values of an entry, and which values must not be shown.

Every error names the field and the variable, never a value: what stands around a variable may be half a credential.
"""

from __future__ import annotations

from .entries import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_DEPTH = 8  # defaults inside defaults; nobody nests more than one


_HERE = "put the value into an environment variable and write ${NAME}"
_ELSEWHERE = {
    "input": f"asks the user of another client; {_HERE}",
    "command": f"runs a command of another client; {_HERE}",
    "config": f"reads the settings of another client; {_HERE}",
    "file": f"would read a file, which is not done here; {_HERE}",
}


class Expansion:
    """Expands the values of one registry's entries. `used` collects what variables have brought in.

    Beside the environment it knows the names of other clients for places: `workspaceFolder`, `userHome` and their kin.
    """

    def __init__(self, environment: Mapping[str, str], project: str, value_bytes: int) -> None:
        self._environment = environment
        self._value_bytes = value_bytes
        self._places = {
            "workspaceFolder": project,
            "workspaceRoot": project,
            "workspaceFolderBasename": project.rpartition("/")[2],
            "cwd": project,
            "userHome": environment.get("HOME", ""),
            "pathSeparator": "/",
            "/": "/",
        }
        # One client sets it for the servers it starts; this server may have been started by another.
        self._fallbacks = {"CLAUDE_PROJECT_DIR": project}
        self.used: set[str] = set()

    def text(self, field: str, value: str) -> str:
        """The value with every variable replaced, once: what a variable holds is not looked into. Raises `Refused`."""
        expanded, end = self._until(field, value, 0, 0)
        assert end == len(value)
        if "\0" in expanded:
            raise Refused(field, "holds a NUL character")
        try:
            size = len(expanded.encode())
        except UnicodeEncodeError:
            raise Refused(field, "is not valid Unicode text") from None
        if size > self._value_bytes:
            raise self._too_long(field)
        return expanded

    def _until(self, field: str, value: str, start: int, depth: int) -> tuple[str, int]:
        """Expand from `start` to the end, or inside a default to its `}`."""
        parts: list[str] = []
        size = 0
        while start < len(value):
            if depth and value[start] == "}":
                break
            if value.startswith("${", start):
                part, start = self._variable(field, value, start + 2, depth)
            else:
                ends = [at for at in (value.find("${", start), value.find("}", start) if depth else -1) if at >= 0]
                end = min(ends, default=len(value))
                part, start = value[start:end], end
            parts.append(part)
            size += len(part)
            if size > self._value_bytes:
                raise self._too_long(field)
        return "".join(parts), start

    def _variable(self, field: str, value: str, start: int, depth: int) -> tuple[str, int]:
        """The value of the variable whose name begins at `start`, and where the text behind its `}` begins."""
        if depth == _DEPTH:
            raise Refused(field, f"more than {_DEPTH} defaults inside one another")
        end = start
        while end < len(value) and value[end] != "}" and not value.startswith(":-", end):
            end += 1
        name = value[start:end]
        default = None
        if value.startswith(":-", end):
            default, end = self._until(field, value, end + 2, depth + 1)
        if end == len(value):
            raise Refused(field, "`${` without its `}`")
        return self._value(field, name, default), end + 1

    def _value(self, field: str, name: str, default: str | None) -> str:
        kind, colon, rest = name.partition(":")
        if colon and kind in _ELSEWHERE:
            raise Refused(field, f"${{{kind}:...}} {_ELSEWHERE[kind]}")
        if not colon and name in self._places and name not in self._environment:
            return self._places[name]
        if colon and kind == "env":
            name = rest
        if not _is_name(name):
            raise Refused(field, "what stands in `${...}` is not the name of an environment variable")
        found = self._environment.get(name) or self._fallbacks.get(name)
        if found:
            if name not in self._fallbacks:
                self.used.add(found)
            return found
        # As in a shell, `:-` also replaces an empty value: an empty credential only ends in a misleading 401.
        if default is not None:
            return default
        if name in self._environment:
            return ""
        unset = f"the environment variable {name} is not set"
        raise Refused(field, f"{unset}; set it where this server starts, or give a default: ${{{name}:-...}}")

    def _too_long(self, field: str) -> Refused:
        allowed = self._value_bytes
        return Refused(field, f"expands to more than the {allowed} bytes that the limit `config_value_bytes` allows")


def _is_name(text: str) -> bool:
    return text.isascii() and text.isidentifier() and len(text) <= 200
