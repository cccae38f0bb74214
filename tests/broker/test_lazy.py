"""What a server that never reaches a peer does not load, shown in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("mcp", "mcp_types", "anyio", "pydantic", "jsonschema", "referencing", "sqlite3", "json", "httpx2", "asyncio")

IDLE = """
import sys, trio
import repl_trio.server.app
from repl_trio.broker.reach import open_reach
from repl_trio.process.launch import Root
from repl_trio.process.root import open_root
from repl_trio.settings import Settings

async def main():
    settings = Settings("serve")
    async with open_root(Root(), settings.limits) as watch, open_reach(settings, watch) as reach:
        states = [server["state"] for server in reach.health(settings.project)["servers"]]
        await reach.prepare()
        assert states == ["not started yet"] * 10, states
        assert watch.root.lives == []

trio.run(main)
print(*[name for name in sys.argv[1:] if name in sys.modules])
"""


def test_health_of_an_idle_server_loads_and_starts_nothing(tmp_path: Path) -> None:
    servers = {f"peer{number}": {"command": sys.executable, "args": ["-c", "1"]} for number in range(10)}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    done = subprocess.run(
        [sys.executable, "-c", IDLE, *HEAVY],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
