"""An entry that would start this very server is seen, whatever stands in front of it; a peer that is no such is not."""

from __future__ import annotations

from pathlib import Path

import pytest

import repl_trio
from repl_trio.broker.config.entries import Stdio
from repl_trio.broker.config.itself import starts_itself

ROOT = str(Path(repl_trio.__file__).resolve().parents[1])

OURS = [
    ["repl-trio"],
    ["repl-trio", "serve"],
    ["/opt/venv/bin/repl-trio", "--python", "x"],
    [f"{ROOT}/scripts/run"],
    ["./scripts/run", "serve"],
    ["bash", f"{ROOT}/scripts/run"],
    ["python", "-m", "repl_trio"],
    ["/usr/bin/python3.12", "-I", "-m", "repl_trio", "serve"],
    ["python3", "-X", "dev", "-Wignore", "-W", "error", "-Imrepl_trio"],
    ["python3", "-m", "repl_trio.__main__"],
    ["python3", "-c", "from repl_trio.__main__ import main; main()"],
    ["python3", "/opt/venv/bin/repl-trio"],
    ["python3", "-I", f"{ROOT}/repl_trio/__main__.py"],
    ["python3", f"{ROOT}/repl_trio"],
    ["python3", "--check-hash-based-pycs", "-m", "repl_trio"],
    ["uvx", "repl-trio"],
    ["uvx", "repl-trio@latest", "serve"],
    ["uvx", "repl_trio==0.1"],
    ["uvx", "repl-trio[test]>=0.1"],
    ["uvx", "--python", "3.12", "--from", "git+https://example.com/repl_trio", "repl-trio"],
    ["uv", "run", "repl-trio"],
    ["uv", "run", "--directory", ROOT, "--no-sync", "--", "repl-trio"],
    ["uv", "run", "python", "-m", "repl_trio"],
    ["uv", "tool", "run", "repl-trio"],
    ["pipx", "run", "repl-trio"],
    ["poetry", "run", "repl-trio"],
    ["env", "A=1", "B=2", "repl-trio"],
    ["env", "-u", "A", "repl-trio"],
    ["timeout", "-k", "5", "3600", "repl-trio"],
    ["nice", "-n", "10", "nohup", "repl-trio"],
    ["sh", "-c", "cd x && A=1 exec repl-trio serve"],
    ["bash", "-lc", "repl-trio 2>/tmp/log"],
    ["bash", "-l", "-o", "pipefail", "-c", "tee log | repl-trio"],
    ["sh", "-c", "set -e\n# it's a comment\nuvx repl-trio"],
    ["sh", "-c", 'bash -c "env repl-trio"'],
]

PEERS = [
    ["uvx", "mcp-server-time"],
    ["uvx", "--from", "repl-trio", "other-program"],
    ["mcp-server-filesystem", "/home/u/repl-trio"],
    ["npx", "-y", "@modelcontextprotocol/server-filesystem", "repl-trio"],
    ["python3", "-m", "mcp_server_git", "--repository", "repl_trio"],
    ["python3", "-m", "repl_trio_peer"],
    ["python3", "server.py", "-m", "repl_trio"],
    ["python3", "-", "-m", "repl_trio"],
    ["python3"],
    ["python3", "-X", "dev"],
    ["sh", "-c", "echo repl-trio"],
    ["sh", "-c", "open 'quote"],
    ["sh", "-c"],
    ["bash", "-l"],
    ["uv", "sync"],
    ["uv"],
    ["env", "A=1"],
    ["timeout", "repl-trio"],
    ["scripts/other"],
    ["./no/scripts/run"],
    ["env"] * 40 + ["python3", "server.py"],
]


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_this_server_is_seen(words: list[str]) -> None:
    assert starts_itself(Stdio(words[0], tuple(words[1:]), cwd=ROOT))


@pytest.mark.parametrize("words", PEERS, ids=lambda words: " ".join(words)[:60])
def test_a_peer_is_left_alone(words: list[str]) -> None:
    assert not starts_itself(Stdio(words[0], tuple(words[1:]), cwd=ROOT))


def test_a_link_to_this_server_is_seen(tmp_path: Path) -> None:
    (tmp_path / "tool").symlink_to(f"{ROOT}/scripts/run")
    assert starts_itself(Stdio("./tool", cwd=str(tmp_path)))


def test_a_folder_of_its_name_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "repl-trio").mkdir()
    assert not starts_itself(Stdio("./repl-trio", cwd=str(tmp_path)))
