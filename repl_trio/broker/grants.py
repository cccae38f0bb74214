"""What may be called: one pure decision, made before anything is started.

Being listed in the project's file is the grant. An entry can narrow it to some tools; nothing widens it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BrokerError
from .config.entries import FAULT, UNREADABLE, Entry, Fault, Snapshot

#: Rules beside those of a `Fault`; `Decision.rule`.
LISTED = "listed"
RECURSION_BLOCK = "recursion"
UNKNOWN = "unknown"
NOT_ON_ALLOWLIST = "allowedTools"
ON_DENYLIST = "disabledTools"

_LISTED_IN = {
    "project": "listed in the project's .mcp.json",
    "config": "listed in the file of --config",
    "local": "opened by brokerAllowed in the client's local scope",
    "user": "opened by brokerAllowed in the client's user scope",
}
_ENTRY_IN = {
    "project": "the project's .mcp.json",
    "config": "the file of --config",
    "local": "the client's local scope",
    "user": "the client's user scope",
}
_CODES = {UNKNOWN: "UNKNOWN_SERVER", FAULT: "CONFIG_FAULT", UNREADABLE: "CONFIG_FAULT"}
_NAMED = 20  # names in one message


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a server, or one tool of it, may be used. `rule` is stable; `reason` is for the user."""

    allowed: bool
    rule: str
    reason: str

    @property
    def code(self) -> str:
        """The code of the `BrokerError` for a refusal."""
        return _CODES.get(self.rule, "NOT_GRANTED")


def decide(snapshot: Snapshot, server: str, tool: str | None = None) -> Decision:
    """Whether `tool` of `server` may be called; with None, whether the server may be connected to and asked."""
    if snapshot.blocked is not None:
        return Decision(False, RECURSION_BLOCK, snapshot.blocked)
    entry = snapshot.entries.get(server)
    if entry is None:
        return _unknown(snapshot, server)
    if isinstance(entry, Fault):
        return Decision(False, entry.rule, str(entry))
    if tool is not None and entry.allowed_tools is not None and tool not in entry.allowed_tools:
        where = _ENTRY_IN[entry.scope]
        reason = f"the tool is not on the allowlist (`allowedTools`) of the server's entry in {where}; {_tools(entry)}"
        return Decision(False, NOT_ON_ALLOWLIST, reason)
    if tool is not None and tool in entry.denied_tools:
        reason = f"the tool is disabled (`disabledTools`) in the server's entry in {_ENTRY_IN[entry.scope]}"
        return Decision(False, ON_DENYLIST, reason)
    return Decision(True, LISTED, _LISTED_IN[entry.scope])


def granted(snapshot: Snapshot, server: str, tool: str | None = None) -> Entry:
    """The entry, where `decide` allows it. Raises `BrokerError` otherwise: nothing was started, nothing was sent."""
    decision = decide(snapshot, server, tool)
    entry = snapshot.entries.get(server)
    if decision.allowed and isinstance(entry, Entry):
        return entry
    what = f"{server[:100]}.{tool[:100]}" if tool is not None else server[:100]
    raise BrokerError(decision.code, f"{what}: {decision.reason}", server=server, tool=tool)


def _unknown(snapshot: Snapshot, server: str) -> Decision:
    """A name that no file knows; a file that could not be read may know it."""
    if snapshot.faults:
        return Decision(False, UNREADABLE, "; ".join(str(fault) for fault in snapshot.faults))
    if not snapshot.entries:
        reason = 'no server is configured; list one in .mcp.json of the project: {"mcpServers": {NAME: ENTRY}}'
        return Decision(False, UNKNOWN, reason)
    names = sorted(snapshot.entries)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return Decision(False, UNKNOWN, f"no server of this name; configured: {', '.join(names[:_NAMED])}{more}")


def _tools(entry: Entry) -> str:
    names = sorted(entry.allowed_tools or ())
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"allowed: {', '.join(names[:_NAMED])}{more}" if names else "it allows none"
