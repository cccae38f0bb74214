"""The way to the peers, cancelled at every scheduler step: whatever the step, no process and no descriptor is left."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from repl_trio.broker.reach import Reach, open_reach
from repl_trio.errors import BrokerError
from repl_trio.limits import Limits
from repl_trio.process.launch import Root
from repl_trio.process.root import open_root
from repl_trio.settings import Settings
from repl_trio.values import Origin
from tests.faults.sweep import play, sweep
from tests.process.peer_stage import PROGRAM

SAMPLE = 40
LIMITS = {"peer_grace": "0.05", "peer_kill": "0.05", "shutdown_term": "0.05", "shutdown_kill": "0.1"}


async def story(folder: Path, options: tuple[str, ...], scope: trio.CancelScope) -> Callable[[], None]:
    """A peer is started and called, its entry changed, the next one started and called."""
    settings = Settings("serve")
    settings.project, settings.limits = str(folder), Limits.overridden(LIMITS)
    with scope:
        async with open_root(Root(), settings.limits) as watch, open_reach(settings, watch) as reach:
            for env in ("", "changed"):
                write(folder, options, {"CHANGED": env})
                await one_call(reach, str(folder), scope)
    return lambda: None


def write(folder: Path, options: tuple[str, ...], env: dict[str, str]) -> None:
    entry = {"command": sys.executable, "args": [PROGRAM, *options], "env": env}
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"fix": entry}}))


async def one_call(reach: Reach, project: str, scope: trio.CancelScope) -> None:
    origin = Origin("r1", "s1", project, lambda _line: None)
    call: dict[str, object] = {"server": "fix", "tool": "echo", "arguments": {"text": "x"}, "timeout": None}
    try:
        assert await reach.perform("call", call, origin)
    except BrokerError:
        if not scope.cancel_called:  # what ends around a call may end it
            raise


each_peer = pytest.mark.parametrize("options", [(), ("--stubborn", "--children", "1")], ids=["plain", "stubborn"])


@each_peer
def test_some_steps(tmp_path: Path, options: tuple[str, ...]) -> None:
    sweep(partial(story, tmp_path, options), SAMPLE)


@pytest.mark.slow
@each_peer
def test_every_step(tmp_path: Path, options: tuple[str, ...]) -> None:
    sweep(partial(story, tmp_path, options))


def test_the_story_reaches_its_end(tmp_path: Path) -> None:
    assert play(partial(story, tmp_path, ()), 0) > 50
