"""The pages say what the code says: tables, numbers, commands, links and the map from promises to tests."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repl_trio.limits import DEFAULT, Limits
from repl_trio.server.tools import tools
from repl_trio.settings import COMMANDS
from repl_trio.wire import frames
from tests.e2e.client import BOUND, Client, server_command

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
EVIDENCE = DOCS / "evidence.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]

#: The rows of public reports that this version answers to: kind -> how many there are. More come with what they need.
ROWS = {"REP": 13, "INT": 7, "OUT": 9, "VAL": 7, "LIFE": 13, "SH": 5, "WIRE": 9, "BRK": 6, "SES": 6, "CFG": 5, "JRN": 2}

UNITS = (
    "records",
    "steps",
    "tools",
    "values",
    "levels",
    "pages",
    "bytes",
    "seconds",
    "characters",
    "milliseconds",
    "runs",
    "sessions",
    "frames",
    "requests",
    "points",
    "mebibytes",
    "names",
    "artifacts",
    "images",
    "things",
    "pixels",
    "peers",
    "entries",
)

needs_readme = pytest.mark.skipif(not README.exists(), reason="no README.md yet")
needs_evidence = pytest.mark.skipif(not EVIDENCE.exists(), reason="no docs/evidence.md yet")


def table_after(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its two head rows."""
    rows = []
    for line in page.partition(f"\n## {heading}\n")[2].lstrip("\n").splitlines():
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[2:]


# -- docs/wire.md ----------------------------------------------------------------------------------------------

TYPE_NAMES = {type(None): "null", object: "any"}


def documented(heading: str) -> dict[str, dict[str, str]]:
    page = (DOCS / "wire.md").read_text(encoding="utf-8")
    kinds: dict[str, dict[str, str]] = {}
    for kind, key, types, meaning in table_after(page, heading):
        assert meaning, f"{kind} {key} has no meaning"
        keys = kinds.setdefault(kind, {})
        if key:
            keys[key] = types
    return kinds


@pytest.mark.parametrize(
    ("heading", "kinds"), [("Server -> worker", frames.TO_WORKER), ("Worker -> server", frames.FROM_WORKER)]
)
def test_the_frame_tables_are_the_codes(heading: str, kinds: frames.Kinds) -> None:
    coded = {
        kind: {key: ", ".join(TYPE_NAMES.get(one, one.__name__) for one in types) for key, types in keys.items()}
        for kind, keys in kinds.items()
    }
    assert documented(heading) == coded


def test_the_wire_page_names_its_version_and_bound() -> None:
    page = (DOCS / "wire.md").read_text(encoding="utf-8")
    assert f"Contract v{frames.VERSION}" in page
    assert "1 MiB" in page
    assert DEFAULT.frame_bytes == 1 << 20


# -- limits.py -------------------------------------------------------------------------------------------------


def described_limits() -> Iterator[tuple[str, str]]:
    """Each number of `Limits` with the string under it, empty where there is none."""
    module = ast.parse((ROOT / "repl_trio/limits.py").read_text(encoding="utf-8"))
    body = next(node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Limits")
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            yield node.target.id, str(text.value) if isinstance(text, ast.Constant) else ""


def test_every_limit_begins_with_its_unit_and_has_a_reason() -> None:
    described = dict(described_limits())
    assert list(described) == Limits.names()
    for name, text in described.items():
        unit = re.match(r"(\w+)\b[^.]*\. \S", text)
        assert unit, f"{name}: no unit and reason: {text!r}"
        assert unit[1] in UNITS, f"{name} begins with {unit[1]!r}"
        assert len(text) > 30, name


# -- README.md -------------------------------------------------------------------------------------------------


def fences(page: Path, *languages: str) -> list[str]:
    """The contents of the fenced blocks in these languages."""
    text = page.read_text(encoding="utf-8")
    return [body for language, body in re.findall(r"```(\w+)\n(.*?)```", text, re.S) if language in languages]


def inline(page: Path) -> list[str]:
    """The inline code of a page, outside its fences."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S))


@needs_readme
def test_every_script_of_the_readme_exists() -> None:
    named = set(re.findall(r"\bscripts/\w+", README.read_text(encoding="utf-8")))
    assert {"scripts/run", "scripts/test"} <= named
    for script in named:
        assert os.access(ROOT / script, os.X_OK), script


@needs_readme
def test_every_command_of_the_readme_exists() -> None:
    spans = [*inline(README), *"\n".join(fences(README, "sh", "console")).splitlines()]
    commands = {match[1] for span in spans if (match := re.search(r"\brepl-trio ([a-z]+)\b", span))}
    assert {"serve"} <= commands <= set(COMMANDS)
    options = {option for span in spans for option in re.findall(r"(?<!\S)--[a-z][a-z-]+", span)}
    helped = subprocess.run(server_command("--help"), capture_output=True, text=True, timeout=BOUND, check=True).stdout
    # The options of scripts/bench, which has a help of its own.
    assert options - set(re.findall(r"--[a-z][a-z-]+", helped)) <= {"--broker", "--guardian", "--output", "--server"}
    assert set(COMMANDS) <= set(re.findall(r"[a-z]+", helped))


@needs_readme
def test_every_tool_of_the_readme_exists() -> None:
    names = {str(tool["name"]) for tool in tools(DEFAULT)}
    text = README.read_text(encoding="utf-8")
    assert set(re.findall(r"\b(?:python_[a-z_]+|execute_python)\b", text)) <= names
    for name in names:
        # `python_session_open`, `_list`, `_inspect`, `_close` share their beginning.
        assert name in text or f"`_{name.rpartition('_')[2]}`" in text, name


@needs_readme
def test_every_console_command_of_the_readme_exists() -> None:
    named = set(re.findall(r"(?<![\w:]):([a-z]+)\b", " ".join(inline(README))))
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "repl_trio/console").glob("*.py"))
    assert {"health", "quit"} <= named
    for name in named:
        assert re.search(rf"['\"]:?{name}['\"]", source), name


@needs_readme
def test_the_json_of_the_readme_is_json_and_its_request_is_answered() -> None:
    for body in fences(README, "json"):
        assert "repl-trio" in json.loads(body)["mcpServers"]
    (line,) = re.findall(r"^echo '(.*)' \| scripts/run$", README.read_text(encoding="utf-8"), re.M)
    with Client(version=None) as client:
        client.send_line(line.encode())
        answer: Any = client.result(json.loads(line)["id"])
        assert answer["structuredContent"]["value"] == 2


#: The server that the example of the README talks to: its tools by name, and one that refuses.
GIT = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    name = asked.get("params", {}).get("name")
    about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "git", "version": "1"}}
    names = ("git_log", "git_show", "git_add")
    answers = {
        "initialize": {"protocolVersion": "2025-06-18", **about},
        "tools/list": {"tools": [{"name": tool, "inputSchema": {"type": "object"}} for tool in names]},
        "tools/call": {"content": [{"type": "text", "text": name}], "isError": name == "git_add"},
    }
    found = answers.get(asked["method"])
    told = {"result": found} if found else {"error": {"code": -32601, "message": "no such method"}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told}), flush=True)
"""


@needs_readme
def test_the_example_of_other_servers_runs_as_it_stands(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["-c", GIT]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"git": entry}}), encoding="utf-8")
    (example,) = (body for body in fences(README, "python") if "mcp.stub" in body)
    with Client(cwd=tmp_path) as client:
        answer = client.call("execute_python", code=example)["structuredContent"]
        assert answer["success"], answer["error"]
        assert "'isError': True" in answer["stdout"]
        lines = answer["return_value"].splitlines()
        done = ["git_log completed"] * 2 + ["git_show completed"] * 3 + ["git_add tool_error"]
        assert len(lines) == len(done)
        assert all(f" git.{words} after " in line for words, line in zip(done, lines, strict=True)), lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


# -- docs/evidence.md ------------------------------------------------------------------------------------------


def cited(page: str) -> dict[str, str]:
    """Case id -> the table row that answers to it. `REP-A01..04` stands for four."""
    rows = {}
    for line in page.splitlines():
        if not line.startswith("|"):
            continue
        for kind, first, last in re.findall(r"\b([A-Z]+)-A(\d\d)(?:\.\.(\d\d))?", line):
            for number in range(int(first), int(last or first) + 1):
                rows[f"{kind}-A{number:02}"] = line
    return rows


def promised() -> list[str]:
    cases = json.loads((ROOT / "tests/e2e/cells.json").read_text(encoding="utf-8"))
    rows = {f"{kind}-A{number:02}" for kind, total in ROWS.items() for number in range(1, total + 1)}
    return sorted(rows | {case["id"] for case in cases})


def test_a_range_of_ids_is_understood() -> None:
    page = "REP-A09 in prose\n| REP-A01..03, INT-A07 | tests/x.py |\n"
    assert set(cited(page)) == {"REP-A01", "REP-A02", "REP-A03", "INT-A07"}


@needs_evidence
def test_every_case_has_a_test_or_a_stated_limit() -> None:
    rows = cited(EVIDENCE.read_text(encoding="utf-8"))
    missing = [case for case in promised() if case not in rows]
    assert not missing, textwrap.fill(", ".join(missing))
    vague = [case for case in promised() if not re.search(r"\btests/\S+\.py|limits\.md", rows[case])]
    assert not vague, textwrap.fill(", ".join(vague))


def cited_tests(page: str) -> Iterator[tuple[str, str | None]]:
    """Every test file of the evidence and every `file::test`; a bare `::other` behind one is of the same file."""
    for line in page.splitlines():
        file = None
        for path, name in re.findall(r"\b(tests/[\w/]+\.py)|::(\w+)", line):
            file = path or file
            assert file, f"whose test is ::{name}?"
            yield file, name or None


def test_a_list_of_tests_is_understood() -> None:
    line = "| promise | tests/a.py::one, ::two and tests/b/c.py |"
    files_and_names = [("tests/a.py", None), ("tests/a.py", "one"), ("tests/a.py", "two"), ("tests/b/c.py", None)]
    assert list(cited_tests(line)) == files_and_names


@needs_evidence
def test_every_test_of_the_evidence_exists() -> None:
    cited_ones = sorted(set(cited_tests(EVIDENCE.read_text(encoding="utf-8"))), key=str)
    assert len(cited_ones) > 10
    assert [f"{file}::{name}" for file, name in cited_ones if not is_there(file, name)] == []


def is_there(file: str, name: str | None) -> bool:
    if not (ROOT / file).exists():
        return False
    source = (ROOT / file).read_text(encoding="utf-8")
    return name is None or re.search(rf"^\s*(?:async )?def {name}\b", source, re.M) is not None
