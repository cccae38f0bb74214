"""What the registry knows about configured peers: frozen values.

Values from a configuration may be credentials, so none of these shows one in its `repr`: what a log or a traceback
prints of an entry is its name, scope and kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Set in the environment of every stdio peer. A server that finds it in its own was started by a broker: its registry
#: refuses everything, so that two files that name each other cannot start servers without end.
RECURSION = ("REPL_TRIO_BROKER", "off")

#: From weak to strong: an entry hides a same-named one of a weaker scope. `config` is the file of `--config`.
SCOPES = ("user", "local", "project", "config")

#: Why an entry cannot be used; `Fault.rule`.
FAULT = "fault"  # the entry cannot be understood
DISABLED = "disabled"  # the entry says so itself
NOT_OPENED = "not-opened"  # of the user or local scope, without `brokerAllowed`
CLIENT = "client"  # the client's own settings disable it
ITSELF = "itself"  # it would start this very server
UNREADABLE = "unreadable"  # a file that could say otherwise cannot be read


@dataclass(frozen=True, slots=True)
class Stdio:
    """A process that speaks MCP on its stdin and stdout. `cwd` is absolute; `env` is what the entry adds."""

    command: str = field(repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    cwd: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class OAuth:
    """What an entry says about authorization; the tokens are elsewhere. `metadata_url` replaces discovery."""

    client_id: str | None = field(default=None, repr=False)
    client_secret: str | None = field(default=None, repr=False)
    scopes: tuple[str, ...] = ()
    callback_port: int | None = None
    metadata_url: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Remote:
    """A peer behind a URL. `kind` is `http` (streamable HTTP) or `ws`; `oauth` None: the entry says nothing of it."""

    kind: str
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    oauth: OAuth | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """A peer that can be used. Timeouts in seconds, None for the limit's number.

    `allowed_tools` None allows every tool that is not in `denied_tools`; `ignored` names harmless foreign fields.
    """

    name: str
    scope: str
    target: Stdio | Remote
    allowed_tools: frozenset[str] | None = None
    denied_tools: frozenset[str] = frozenset()
    connect_timeout: float | None = None
    call_timeout: float | None = None
    ignored: tuple[str, ...] = ()

    @property
    def identity(self) -> Stdio | Remote:
        """Entries with equal ones share a peer, and keep their own grants."""
        return self.target


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry that cannot be used, and hides a same-named one of a weaker scope all the same.

    `field` is the place in the entry (`headers.Authorization`), "" for the entry as a whole; `reason` a sentence
    without any value of the configuration.
    """

    name: str
    scope: str
    field: str
    reason: str
    rule: str = FAULT

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" if self.field else self.reason


class Refused(Exception):
    """Why an entry cannot be used, on its way to a `Fault`: the place in it and a sentence without a value of it."""

    def __init__(self, field: str, reason: str, rule: str = FAULT) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason
        self.rule = rule


@dataclass(frozen=True, slots=True)
class FileFault:
    """A file that could not be used as a whole."""

    path: str
    scope: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The registry at one moment. `version` grows whenever something in it has changed.

    `blocked` is the reason why nothing may be used at all (see `RECURSION`), None otherwise. `secrets` are the values
    that must not be shown; it is left out of comparisons because it follows from the entries.
    """

    entries: dict[str, Entry | Fault]
    faults: tuple[FileFault, ...] = ()
    blocked: str | None = None
    version: int = 0
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
