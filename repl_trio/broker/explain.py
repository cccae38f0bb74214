"""What the broker says about itself: which servers there are, what is known of each, and how to use one. No network."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..machines import peer as table
from .config.entries import Entry, Fault, Remote, Snapshot
from .grants import decide
from .peer.connection import Json
from .peer.peer import Peer
from .peer.peers import unreachable
from .tools.catalogue import Catalogue, Tool
from .tools.signatures import brief, parameters, returns, signature

REFUSED = "refused"
"""The state of an entry that cannot be used."""
UNREACHABLE = "not reachable"
"""The state of an entry whose kind of server cannot be reached."""
_HOW = """\
No other MCP servers are configured. Put them into {project}/.mcp.json:
{{"mcpServers": {{"name": {{"command": "program", "args": ["..."]}}}}}}
It is read again with the next use."""
_USE = """\
mcp.help(server) lists its tools, mcp.help(server, tool) tells all about one.
mcp.call(server, tool, **arguments) calls it, await mcp.acall(...) does so concurrently."""
_NAMED = 10
"""names of tools that a sentence lists."""
_NAME = 100
"""characters of each."""
_STATES = {
    table.IDLE: "not started yet",
    table.CONNECTING: "connecting",
    table.READY: "ready",
    table.FAILED: "failed",
    table.CLOSING: "stopping",
    table.CLOSED: "stopped",
}

Known = Mapping[str, Peer | None]
"""The peer of each usable entry by the entry's name; None: it was never used."""


def listed(snapshot: Snapshot, known: Known) -> list[Json]:
    """Every entry with what was last really observed: `name`, `state`, `tools`, `reason`."""
    found: list[Json] = []
    for name, entry in sorted(snapshot.entries.items()):
        if isinstance(entry, Fault):
            found.append({"name": name, "state": REFUSED, "tools": None, "reason": str(entry)})
            continue
        if isinstance(entry.target, Remote):
            reason = unreachable(entry.target)
            found.append({"name": name, "state": UNREACHABLE, "tools": None, "reason": reason})
            continue
        peer = known.get(name)
        catalogue = peer.known if peer is not None else None
        tools = len(granted_tools(snapshot, name, catalogue)) if catalogue is not None else None
        state = _STATES[peer.machine.state] if peer is not None else _STATES[table.IDLE]
        found.append({"name": name, "state": state, "tools": tools, "reason": _reason(peer)})
    return found


def note(snapshot: Snapshot, project: str) -> str | None:
    """What has to be said about the servers as a whole; None for nothing."""
    if snapshot.blocked is not None:
        return snapshot.blocked
    words = [str(fault) for fault in snapshot.faults]
    if not snapshot.entries and not words:
        words = [_HOW.format(project=project)]
    return "\n".join(words) or None


def overview(snapshot: Snapshot, known: Known, project: str) -> str:
    """`mcp.help()`: the names, without connecting to anything."""
    lines = []
    for server in listed(snapshot, known):
        count = f", {_counted(server['tools'])}" if isinstance(server["tools"], int) else ""
        why = f": {server['reason']}" if server["reason"] and server["state"] != "ready" else ""
        lines.append(f"{server['name']} ({server['state']}{count}){why}")
    said = note(snapshot, project)
    if said:
        lines.append(said)
    if any(isinstance(entry, Entry) for entry in snapshot.entries.values()):
        lines.append(_USE)
    return "\n".join(lines)


def unsearched(snapshot: Snapshot, searched: Mapping[str, Catalogue]) -> str | None:
    """What a search has not seen: the usable servers whose tools are not known yet; None when there are none."""
    names = [
        name
        for name, entry in sorted(snapshot.entries.items())
        if isinstance(entry, Entry) and not isinstance(entry.target, Remote) and name not in searched
    ]
    if not names:
        return None
    more = ", ..." if len(names) > _NAMED else ""
    return f"not searched, as not used yet: {', '.join(names[:_NAMED])}{more}; mcp.help(server) reads the tools of one"


def tools_text(server: str, tools: list[Tool], catalogue: Catalogue, instructions: str | None) -> str:
    """`mcp.help(server)`: a line for each tool that may be called."""
    lines = [f"{server}: {_counted(len(tools))}", *(brief(tool.definition) for tool in tools)]
    lines += [f"not usable: {words}" for words in catalogue.invalid]
    if said := hidden(server, tools, catalogue):
        lines.append(said)
    if instructions:
        lines += ["", instructions[:2_000]]
    return "\n".join(lines)


def tool_text(server: str, tool: Tool) -> str:
    """`mcp.help(server, tool)`: how to call it, and all that the peer says about it."""
    lines = [f"{server}: {signature(tool.name, tool.schema)}", tool.description]
    lines += [f"  {line}" for line in parameters(tool.schema)]
    if shape := returns(tool.definition.get("outputSchema")):
        lines.append(f"Its result has .data: {shape}")
    return "\n".join(line for line in lines if line)


def hidden(server: str, tools: list[Tool], catalogue: Catalogue) -> str | None:
    """What is to be said about the tools of a peer that may not be called; `tools` may. None when all may."""
    shown = {tool.name for tool in tools}
    names = [name for name in catalogue.tools if name not in shown]
    if not names:
        return None
    more = ", ..." if len(names) > _NAMED else ""
    return (
        f"not granted (allowedTools, disabledTools): {', '.join(name[:_NAME] for name in names[:_NAMED])}{more}; "
        f"mcp.explain({server!r}, tool) tells why"
    )


def granted_tools(snapshot: Snapshot, server: str, catalogue: Catalogue) -> list[Tool]:
    """The tools of a peer that may be called."""
    return [tool for tool in catalogue.tools.values() if decide(snapshot, server, tool.name).allowed]


def explained(snapshot: Snapshot, server: str, tool: str | None, peer: Peer | None) -> Json:
    """All that is known about an entry and, if named, a tool of it: whether it may be used, by which rule, and why."""
    decision = decide(snapshot, server, tool)
    told: Json = {"server": server, "allowed": decision.allowed, "rule": decision.rule, "reason": decision.reason}
    entry = snapshot.entries.get(server)
    if entry is None:
        told["known"] = sorted(snapshot.entries)
        return told
    told["scope"] = entry.scope
    if isinstance(entry, Entry):
        told["kind"] = entry.target.kind if isinstance(entry.target, Remote) else "stdio"
        told["allowed_tools"] = sorted(entry.allowed_tools) if entry.allowed_tools is not None else None
        told["denied_tools"] = sorted(entry.denied_tools)
        told["ignored_fields"] = list(entry.ignored)
        told |= _observed(entry, peer)
    if tool is None and peer is not None and (stderr := peer.stderr()):
        told["stderr"] = stderr
    if tool is not None:
        told["tool"] = tool
        known = peer.known if peer is not None else None
        if known is not None:
            told["listed"] = tool in known.tools
            if tool in known.tools:
                told["definition"] = dict(known.tools[tool].definition)
    return told


def _counted(tools: int) -> str:
    return f"{tools} tool{'' if tools == 1 else 's'}"


def _observed(entry: Entry, peer: Peer | None) -> Json:
    if isinstance(entry.target, Remote):
        return {"state": UNREACHABLE, "observed": unreachable(entry.target)}
    if peer is None:
        return {"state": _STATES[table.IDLE], "observed": "never connected"}
    told: Json = {"state": _STATES[peer.machine.state], "observed": _reason(peer)}
    told |= peer.about()
    if peer.known is not None:
        told["tools"] = sorted(peer.known.tools)
        told["invalid_tools"] = list(peer.known.invalid)
    return told


def _reason(peer: Peer | None) -> str | None:
    if peer is None or not peer.seen.reason:
        return None
    if peer.machine.state != table.FAILED:
        return peer.seen.reason if peer.machine.state != table.CONNECTING else None
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(peer.seen.since))}: {peer.seen.reason}"
