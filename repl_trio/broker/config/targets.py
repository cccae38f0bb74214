"""One entry of a file and the environment -> an `Entry` that can be started, or the reason why not."""

from __future__ import annotations

import os

from .addresses import check_url, origin, url_secrets
from .dialects import Draft, read_entry, shown
from .entries import ITSELF, Entry, OAuth, Refused, Remote, Stdio
from .expansion import Expansion
from .itself import starts_itself

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...limits import Limits

#: What a header name may consist of (RFC 9110, "token").
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Targets:
    """Makes the entries of one look at the registry. `secrets` collects the values that must not be shown."""

    def __init__(self, project: str, environment: Mapping[str, str], limits: Limits) -> None:
        self.secrets: set[str] = set()
        self._project = project
        self._home = environment.get("HOME", "")
        self._limits = limits
        self._expansion = Expansion(environment, project, limits.config_value_bytes)

    def entry(self, name: str, scope: str, raw: object) -> Entry:
        """The entry of this name, as a file has it. Raises `Refused`."""
        draft = read_entry(raw)
        self._expansion.used.clear()
        target = self._stdio(draft) if draft.kind == "stdio" else self._remote(draft)
        # A place is often given as a variable of the environment; it is no secret, and errors name it.
        self.secrets -= {"", self._project, self._home}
        return Entry(
            name=name,
            scope=scope,
            target=target,
            allowed_tools=draft.allowed_tools,
            denied_tools=draft.denied_tools,
            connect_timeout=self._timeout(draft.connect_timeout),
            call_timeout=self._timeout(draft.call_timeout),
            ignored=draft.ignored,
        )

    def _stdio(self, draft: Draft) -> Stdio:
        expand = self._expansion.text
        command = self._from_home(expand("command", draft.command))
        if not command.strip():
            raise Refused("command", "expands to nothing")
        cwd = os.path.join(self._project, self._from_home(expand("cwd", draft.cwd)))
        # Which program was looked for, and where, is told when it is not there: these two hold no secret.
        self._expansion.used.clear()
        args = tuple(expand(f"args[{index}]", value) for index, value in enumerate(draft.args))
        env = tuple((key, self._variable(key, value)) for key, value in draft.env)
        self.secrets.update(self._expansion.used, (value for _, value in env))
        target = Stdio(command, args, env, os.path.normpath(cwd))
        if starts_itself(target):
            raise Refused("command", "is this very server, which does not call itself", ITSELF)
        return target

    def _variable(self, name: str, value: str) -> str:
        field = f"env.{shown(name)}"
        if not name or "=" in name or "\0" in name or not _encodable(name):
            raise Refused(field, "is no name of an environment variable")
        return self._credential(field, value)

    def _remote(self, draft: Draft) -> Remote:
        url = check_url("url", self._expansion.text("url", draft.url), draft.kind)
        place = origin(url)
        # Whoever reads an error may know the host; what else came from a variable may be a key.
        self.secrets.update(text for text in self._expansion.used if text not in place)
        self.secrets |= url_secrets(url)
        self._expansion.used.clear()
        headers = tuple((name, self._header(name, value)) for name, value in draft.headers)
        names = [name.lower() for name, _ in headers]
        for name in names:
            if names.count(name) > 1:
                raise Refused(f"headers.{name}", "is given twice; capitals make no difference")
        oauth = None if draft.oauth is None else self._oauth(draft.oauth)
        self.secrets.update(self._expansion.used, (value for _, value in headers))
        return Remote(draft.kind, url, headers, oauth)

    def _header(self, name: str, value: str) -> str:
        field = f"headers.{shown(name)}"
        if not name or not _TOKEN.issuperset(name):
            raise Refused(field, "is no name of a header")
        expanded = self._credential(field, value)
        if not expanded.isascii() or any(not c.isprintable() and c != "\t" for c in expanded):
            raise Refused(field, "holds a line break or another character that no header may hold")
        return expanded

    def _oauth(self, oauth: OAuth) -> OAuth:
        expanded = {
            name: None if value is None else self._credential(f"oauth.{name}", value)
            for name, value in (("client_id", oauth.client_id), ("client_secret", oauth.client_secret))
        }
        metadata = oauth.metadata_url
        if metadata is not None:
            metadata = check_url("oauth.metadata_url", self._expansion.text("oauth.metadata_url", metadata), "http")
        if expanded["client_secret"] is not None:
            self.secrets.add(expanded["client_secret"])
        return OAuth(**expanded, scopes=oauth.scopes, callback_port=oauth.callback_port, metadata_url=metadata)

    def _credential(self, field: str, value: str) -> str:
        """The expanded value of a field that often holds a credential: there, `$NAME` is a mistake and no value."""
        name = value.removeprefix("Bearer ").removeprefix("$")
        if value.endswith(f"${name}") and name.isidentifier() and name.isascii() and name.isupper():
            raise Refused(field, "looks like the $NAME of another client; a variable is written ${NAME} here")
        return self._expansion.text(field, value)

    def _from_home(self, path: str) -> str:
        return os.path.join(self._home, path[2:]) if path.startswith("~/") and self._home else path

    def _timeout(self, seconds: float | None) -> float | None:
        return None if seconds is None else min(max(seconds, self._limits.timeout_min), self._limits.timeout_max)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
