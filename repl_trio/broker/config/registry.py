"""The configured peers of one project: which entry of a name counts, whether it can be used, and why not.

Looking starts nothing and waits for nothing. A faulty entry fails alone; a file that cannot be read fails as a whole,
and with it what it could have hidden or disabled. docs/servers.md is the user's page.
"""

from __future__ import annotations

from ...limits import DEFAULT, Limits
from .dialects import shown
from .entries import CLIENT, NOT_OPENED, RECURSION, UNREADABLE, Entry, Fault, FileFault, Refused, Snapshot
from .files import Files
from .targets import Targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Registry:
    """One project's registry. `scopes` are of user, local and project; with `config`, that file is the project's.

    `project` is a canonical path; `environment` is where variables are taken from, and the user's home.
    """

    def __init__(
        self,
        project: str,
        environment: Mapping[str, str],
        *,
        scopes: tuple[str, ...] = ("project",),
        config: str | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self._project = project
        self._environment = environment
        self._limits = limits
        self._files = Files(project, environment, limits, scopes, config)
        self._snapshot: Snapshot | None = None
        variable, value = RECURSION
        if environment.get(variable) == value:
            reason = f"this server was started by a broker ({variable}={value}), so it reaches no peers itself"
            self._snapshot = Snapshot({}, blocked=reason)

    def look(self) -> Snapshot:
        """The registry as its files are now; a few file lookups while none of them has changed."""
        if self._snapshot is not None and self._snapshot.blocked:
            return self._snapshot
        changed = [source.look() for source in self._files.all()]
        if self._snapshot is None or any(changed):
            self._snapshot = self._assembled(self._snapshot)
        return self._snapshot

    def refresh(self) -> Snapshot:
        """The same, with every file read again."""
        for source in self._files.all():
            source.forget()
        return self.look()

    def _assembled(self, before: Snapshot | None) -> Snapshot:
        targets = Targets(self._project, self._environment, self._limits)
        entries: dict[str, Entry | Fault] = {}
        unread = ""
        for scope, source in self._files.layers:
            found = {} if source.content is None else source.content.entries.get(scope, {})
            for name, raw in found.items():
                # From strong to weak: the first of a name counts, whatever has become of it.
                fault = self._name_fault(name)
                key = shown(name) if fault else name
                if key not in entries:
                    wrong = Fault(key, scope, "", fault) if fault else None
                    entries[key] = wrong or self._judged(targets, scope, name, raw, unread)
            if source.fault and not unread:
                unread = f"{source.path} could say otherwise, and {source.fault}"
        faults = self._faults()
        same = before is not None and (entries, faults) == (before.entries, before.faults)
        version = 0 if before is None else before.version + (not same)
        return Snapshot(entries, faults, None, version, frozenset(targets.secrets))

    def _faults(self) -> tuple[FileFault, ...]:
        scopes = {source.path: scope for scope, source in reversed(self._files.layers)}
        return tuple(
            FileFault(source.path, scopes.get(source.path, "client"), source.fault)
            for source in self._files.all()
            if source.fault is not None
        )

    def _judged(self, targets: Targets, scope: str, name: str, raw: object, unread: str) -> Entry | Fault:
        try:
            if unread:
                raise Refused("", unread, UNREADABLE)
            _check_opened(scope, raw)
            if scope != "config":
                self._check_client(name)
            return targets.entry(name, scope, raw)
        except Refused as refused:
            return Fault(name, scope, refused.field, refused.reason, refused.rule)

    def _name_fault(self, name: str) -> str:
        size, allowed = len(name.encode("utf-8", "surrogatepass")), self._limits.server_name_bytes
        if size > allowed:
            return f"its name is {size} bytes long; the limit `server_name_bytes` allows {allowed}"
        if not name.strip() or not name.isprintable():
            return "its name must hold something, and neither line breaks nor other control characters"
        return ""

    def _check_client(self, name: str) -> None:
        """What the client has been told not to use is not used here either; when it cannot be told, neither."""
        for judge in self._files.judges:
            if judge.fault is not None:
                raise Refused("", f"{judge.path} could disable it, and {judge.fault}", UNREADABLE)
            if judge.content is not None and name in judge.content.disabled:
                raise Refused("", f"is disabled in {judge.path}", CLIENT)


def _check_opened(scope: str, raw: object) -> None:
    """Entries that were not written for this project are used only where they say so."""
    said = raw.get("brokerAllowed") if isinstance(raw, dict) else None
    if said is False:
        raise Refused("brokerAllowed", "is false", NOT_OPENED)
    if said is None and scope in ("user", "local"):
        raise Refused(
            "brokerAllowed", f'an entry of the {scope} scope is used only with "brokerAllowed": true', NOT_OPENED
        )
