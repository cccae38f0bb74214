"""A project and a home with the files that a registry reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from repl_trio.broker.config.entries import Entry, Fault, Snapshot
from repl_trio.broker.config.registry import Registry


class Place:
    """A project and a home, each with the files that a test writes into them."""

    def __init__(self, root: Path) -> None:
        self.project = root / "project"
        self.home = root / "home"
        self.environment = {"HOME": str(self.home), "PATH": "/usr/bin:/bin"}
        for folder in (self.project / ".claude", self.home / ".claude"):
            folder.mkdir(parents=True)

    def servers(self, **entries: object) -> None:
        write(self.project / ".mcp.json", {"mcpServers": entries})

    def client_state(self, *, user: object = None, local: object = None, **here: object) -> None:
        project = {"mcpServers": local or {}, **here}
        write(self.home / ".claude.json", {"mcpServers": user or {}, "projects": {str(self.project): project}})

    def registry(self, *scopes: str, **options: Any) -> Registry:
        return Registry(str(self.project), self.environment, scopes=scopes or ("project",), **options)

    def look(self, *scopes: str, **options: Any) -> Snapshot:
        return self.registry(*scopes, **options).look()


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def entry(snapshot: Snapshot, name: str) -> Entry:
    found = snapshot.entries[name]
    assert isinstance(found, Entry), found
    return found


def fault(snapshot: Snapshot, name: str) -> Fault:
    found = snapshot.entries[name]
    assert isinstance(found, Fault), found
    return found
