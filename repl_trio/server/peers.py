"""What `python_health` says about the MCP servers that cells can reach."""

from __future__ import annotations

from ..broker.reach import Reach
from ..limits import Limits
from ..wire.jsonrpc import Params
from .sizes import within

_NOTE = 1_000  # characters
_LINE = 400  # characters of it in the text form
_APPROVAL = "Being listed is the approval: cells call these servers without asking anybody."


def described(reach: Reach, projects: list[str], limits: Limits) -> Params:
    """Every configured server of these projects as it was last seen, as far as a result holds them; starts nothing."""
    servers: list[Params] = []
    notes: list[str] = []
    journal = ""
    for project in projects:
        health = reach.health(project)
        journal = str(health["journal"])
        listed = health["servers"]
        assert isinstance(listed, list)
        # The first project is the server's own, and mostly the only one.
        where = {} if project == projects[0] else {"project": project}
        servers += [{**server, **where} for server in listed]
        if health["note"] is not None:
            notes.append(str(health["note"])[:_NOTE])
    if servers:
        notes.insert(0, _APPROVAL)
    shown = within(servers, limits.result_bytes // 5)
    return {"servers": shown, "more": len(servers) - len(shown), "notes": notes[:5], "journal": journal}


def lines(broker: Params) -> list[str]:
    """The same in words, a line for each server."""
    servers, notes = broker["servers"], broker["notes"]
    assert isinstance(servers, list)
    assert isinstance(notes, list)
    said = []
    for server in servers:
        tools = server["tools"]
        count = f", {tools} tool{'' if tools == 1 else 's'}" if tools is not None else ""
        why = f": {server['reason']}" if server["reason"] else ""
        said.append(f"server {server['name']} ({server['state']}{count}){why}")
    if broker["more"]:
        said.append(f"and {broker['more']} more servers")
    said += [note[:_LINE] for note in notes]
    return said
