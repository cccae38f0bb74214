"""Which files a registry reads, and what each of them says: peers by scope, and names that the client shall not use."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from .sources import Source, Unusable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...limits import Limits

_EXAMPLE = '{"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}'
#: What the client calls its lists of names not to be used: those of the project's file, and those of any scope.
_DISABLED = ("disabledMcpjsonServers", "disabledMcpServers")

RawEntries = dict[str, object]


@dataclass(frozen=True, slots=True, repr=False)
class Content:
    """What one file says: entries by scope, as they are written, and names that are disabled."""

    entries: dict[str, RawEntries] = field(default_factory=dict)
    disabled: frozenset[str] = frozenset()


class Files:
    """The files of one registry. `layers` are (scope, file) from the strongest scope to the weakest; `judges` the files
    in which the client may disable an entry.

    `scopes` are of user, local and project; the file `config` takes the project's place. What the user has named on the
    command line is no business of the client's settings, so then these are read for the other scopes alone.
    """

    def __init__(
        self, project: str, environment: Mapping[str, str], limits: Limits, scopes: tuple[str, ...], config: str | None
    ) -> None:
        size = ("config_bytes", limits.config_bytes)
        self._project = project
        self._entries = limits.config_entries
        self._values = limits.config_values
        self.layers: list[tuple[str, Source[Content]]] = []
        self.judges: list[Source[Content]] = []
        if "project" in scopes:
            path = config or os.path.join(project, ".mcp.json")
            own = Source(path, size, self._own, exact=True, needed=config is not None)
            self.layers.append(("config" if config else "project", own))
        if set(scopes) - {"project"} if config else scopes:
            self.judges = [Source(path, size, self._settings) for path in _settings_files(project, environment)]
            if home := _client_home(environment)[1]:
                allowed = ("client_state_bytes", limits.client_state_bytes)
                state = Source(os.path.join(home, ".claude.json"), allowed, self._state)
                self.judges.append(state)
                self.layers += [(scope, state) for scope in ("local", "user") if scope in scopes]

    def all(self) -> list[Source[Content]]:
        """Every file once."""
        return [*(source for _, source in self.layers if source not in self.judges), *self.judges]

    def _own(self, parsed: object) -> Content:
        whole = _object(parsed, "", example=True)
        given = [name for name in ("mcpServers", "servers") if name in whole]
        if len(given) > 1:
            raise Unusable("has both `mcpServers` and `servers`; keep one of them")
        if whole and not given:
            raise Unusable(f"has no `mcpServers`; it looks like {_EXAMPLE}")
        return Content(
            {"project": self._servers(whole, given[0]), "config": self._servers(whole, given[0])} if given else {}
        )

    def _settings(self, parsed: object) -> Content:
        return Content(disabled=_disabled(_object(parsed, "")))

    def _state(self, parsed: object) -> Content:
        whole = _object(parsed, "")
        here = _object(_object(whole.get("projects"), "projects").get(self._project), "the project's part")
        entries = {"user": self._servers(whole, "mcpServers"), "local": self._servers(here, "mcpServers")}
        return Content(entries, _disabled(here))

    def _servers(self, whole: RawEntries, name: str) -> RawEntries:
        entries = _object(whole.get(name), f"`{name}`", example=True)
        if len(entries) > self._entries:
            raise Unusable(f"has {len(entries)} entries; the limit `config_entries` allows {self._entries}")
        size = _values(entries)
        if size > self._values:
            raise Unusable(f"has entries with {size} values and lines; the limit `config_values` allows {self._values}")
        return entries


def _object(value: object, what: str, *, example: bool = False) -> RawEntries:
    """The object, empty where there is none."""
    if value is None and what:
        return {}
    if not isinstance(value, dict):
        raise Unusable(f"{what or 'the whole'} must be an object{f': {_EXAMPLE}' if example else ''}")
    return value


def _values(entries: RawEntries) -> int:
    """How many values, and lines of values, are in all of them."""
    size = 0
    level: list[object] = [entries]
    while level:
        below: list[object] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
            elif isinstance(one, list):
                below += one
            elif isinstance(one, str):
                size += one.count("\n")
        size += len(below)
        level = below
    return size


def _disabled(settings: RawEntries) -> frozenset[str]:
    names: list[str] = []
    for field_name in _DISABLED:
        found = settings.get(field_name) or []
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise Unusable(f"`{field_name}` must be a list of names")
        names += found
    return frozenset(names)


def _client_home(environment: Mapping[str, str]) -> tuple[str, str]:
    """The folder of the client's settings and that of its state file; "" where the environment tells neither."""
    home = environment.get("HOME", "")
    own = environment.get("CLAUDE_CONFIG_DIR", "")
    return own or (os.path.join(home, ".claude") if home else ""), own or home


def _settings_files(project: str, environment: Mapping[str, str]) -> list[str]:
    of_project = [os.path.join(project, ".claude", name) for name in ("settings.json", "settings.local.json")]
    folder = _client_home(environment)[0]
    of_user = os.path.join(folder, "settings.json")
    return [*of_project, *([of_user] if folder and of_user not in of_project else [])]
