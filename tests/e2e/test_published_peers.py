"""Servers that others have published, called from cells: what is shown with fixture peers holds for real ones.

Everything is done by a client of the handshake era and by one of 2026-07-28. What a peer speaks is its own matter:
those in Python (git, time) answer `server/discover` and are spoken to in 2026-07-28, those for Node (everything, files,
memory) refuse it and are met by `initialize`.

`scripts/peers` installs them; without that their tests are skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.client import HANDSHAKE, MODERN, ROOT, Client, Message, wait_gone
from tests.e2e.test_broker import Folder, value
from tests.e2e.watch import eventually

ERAS = [HANDSHAKE, MODERN]
each_era = pytest.mark.parametrize("era", ERAS)
BUILT = ROOT / ".venv-peers"
MODULES = BUILT / "node/node_modules"
OFFERS: Message = {"elicitation": {}, "sampling": {}}
PLANTED = "planted-7f3a"
"""In the environment of our server, which is not the peers' to see."""


def missing(lock: str, copy: str, program: str) -> pytest.MarkDecorator:
    """Skips a test whose peers are not installed as their lock says, or lack a program."""
    installed = BUILT / copy
    ready = installed.is_file() and installed.read_bytes() == (ROOT / lock).read_bytes() and shutil.which(program)
    return pytest.mark.skipif(not ready, reason=f"not installed: scripts/peers, which needs {program} on PATH")


of_pypi = missing("requirements-peers.lock", "built/requirements-peers.lock", "git")
of_npm = missing("tests/peers/published/package-lock.json", "node/built-lock.json", "node")


@dataclass(frozen=True)
class Published:
    """A peer: its program, the version that it speaks, how many tools it has at least, and how one of them is found."""

    needs: pytest.MarkDecorator
    program: Path
    version: str
    tools: int
    words: str
    signature: str


PEERS = {
    "git": Published(
        of_pypi,
        BUILT / "bin/mcp-server-git",
        MODERN,
        12,
        "commit logs",
        "git_log(repo_path: str, max_count: int = 10, ",
    ),
    "time": Published(
        of_pypi,
        BUILT / "bin/mcp-server-time",
        MODERN,
        2,
        "current specific timezone",
        "get_current_time(timezone: str)",
    ),
    "everything": Published(
        of_npm,
        MODULES / ".bin/mcp-server-everything",
        HANDSHAKE,
        12,
        "sum two numbers",
        "get-sum(a: float, b: float)",
    ),
    "files": Published(
        of_npm,
        MODULES / ".bin/mcp-server-filesystem",
        HANDSHAKE,
        14,
        "completely overwrite",
        "write_file(path: str, content: str)",
    ),
    "memory": Published(
        of_npm,
        MODULES / ".bin/mcp-server-memory",
        HANDSHAKE,
        9,
        "nodes based on a query",
        "search_nodes(query: str)",
    ),
}


def installed() -> list[str]:
    return [name for name, peer in PEERS.items() if not peer.needs.args[0]]


def entry(name: str, project: Path) -> Message:
    """The entry of a peer, as one would write it."""
    written: dict[str, Message] = {
        "git": {"args": ["--repository", str(project / "repo")]},
        "time": {"args": ["--local-timezone", "Asia/Tokyo"]},
        "files": {"args": [str(project)]},
        "memory": {"env": {"MEMORY_FILE_PATH": str(project / "memory.jsonl")}},
    }
    return {"command": str(PEERS[name].program), **written.get(name, {})}


def make_repository(path: Path) -> None:
    """A repository with one commit."""
    path.mkdir()
    (path / "notes.txt").write_text("one\n")
    settings = {"user.name": "Ada", "user.email": "ada@example.com", "commit.gpgsign": "false"}
    set_up = [["init", "-q"], *(["config", *setting] for setting in settings.items())]
    for command in [*set_up, ["add", "."], ["commit", "-q", "-m", "first words"]]:
        subprocess.run(["git", *command], cwd=path, check=True, timeout=30, capture_output=True)


@contextmanager
def reaching(path: Path, names: list[str], era: str) -> Iterator[Client]:
    """A client of this era whose server has reached these peers; `project` in its cells is their folder, this one."""
    folder = Folder(path.resolve())
    if "git" in names:
        make_repository(folder.path / "repo")
    for name in names:
        folder.put(name, entry(name, folder.path))
    with Client(cwd=folder.path, env={"PLANTED": PLANTED}, version=MODERN if era == MODERN else None) as client:
        if era != MODERN:
            client.initialize(era, OFFERS)
        listing = f"*(asyncio.to_thread(mcp.list_tools, name) for name in {names})"
        value(client, f"import asyncio, json\nproject = {str(folder.path)!r}\nlen(await asyncio.gather({listing}))")
        processes = [psutil.Process(value(client, f"mcp.explain({name!r})['pid']")) for name in names]
        yield client
    assert wait_gone(processes) == []


@pytest.fixture(scope="module", params=ERAS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """For the tests that start no process: all peers that are installed run already."""
    with reaching(tmp_path_factory.mktemp("published"), installed(), request.param) as client:
        yield client


def failure(client: Client, code: str) -> str:
    """How a call fails: class, code, whether it was sent, and the message."""
    return str(
        value(
            client,
            f"try:\n    {code}\n    told = 'it did not fail'\nexcept mcp.Error as error:\n"
            "    told = f'{type(error).__name__} {error.code} {error.sent}: {error}'\ntold",
        )
    )


@pytest.mark.parametrize("name", [pytest.param(name, marks=peer.needs) for name, peer in PEERS.items()])
def test_it_is_listed_found_and_described(client: Client, name: str) -> None:
    peer = PEERS[name]
    tool = peer.signature.partition("(")[0]
    state, tools = value(client, f"s = mcp.servers()[{name!r}]; [s['state'], s['tools']]")
    assert state == "ready"
    listed = value(client, f"[tool['name'] for tool in mcp.list_tools({name!r})]")
    assert len(listed) == len(set(listed)) == tools >= peer.tools
    assert tool in listed
    assert value(client, f"mcp.explain({name!r})['version']") == peer.version
    assert [name, tool] in value(client, f"[[m['server'], m['tool']] for m in mcp.search({peer.words!r})]")
    assert peer.signature in value(client, f"str(mcp.help({name!r}))")
    assert value(client, f"str(mcp.help({name!r}, {tool!r}))").startswith(f"{name}: {peer.signature}")
    python = peer.signature.replace("-", "_").partition("(")[0]
    assert value(client, f"callable(getattr(mcp.stub({name!r}), {python!r}))") is True


@of_pypi
@each_era
def test_git_commits_and_tells_of_it(tmp_path: Path, era: str) -> None:
    # On a server of its own: this peer keeps children for the repositories that it has read.
    with reaching(tmp_path, ["git"], era) as client:
        value(client, "repo = project + '/repo'; git = mcp.stub('git'); 1")
        assert "first words" in value(client, "mcp.call('git', 'git_log', repo_path=repo).text")
        value(client, "open(repo + '/notes.txt', 'a').write('two\\n')")
        assert "+two" in value(client, "git.git_diff_unstaged(repo).text")
        value(client, "git.git_add(repo, ['notes.txt']); git.git_commit(repo_path=repo, message='second'); 1")
        counted = subprocess.run(
            ["git", "rev-list", "--count", "HEAD"], cwd=tmp_path / "repo", capture_output=True, text=True, timeout=30
        )
        assert counted.stdout.strip() == "2"
        assert value(client, "one = mcp.journal()[-1]; [one['tool'], one['status']]") == ["git_commit", "completed"]
        assert failure(client, "git.git_show(repo, 'nowhere')").startswith("ToolError TOOL_ERROR done: git.git_show: ")
        told = failure(client, "git.git_log(repo, max_count='many')")
        assert told.startswith("Error BAD_ARGUMENTS no: ")
        assert "/max_count" in told


@of_pypi
def test_time_is_converted(client: Client) -> None:
    asked = "source_timezone='Asia/Tokyo', time='12:00', target_timezone='Asia/Kolkata'"
    value(client, f"r = mcp.call('time', 'convert_time', {asked}); 1")
    assert value(client, "r['structuredContent']['target']['datetime']").endswith("T08:30:00+05:30")
    assert value(client, "[r.data == r.json(), r['isError'], '_meta' in r]") == [True, False, True]
    assert value(client, "mcp.time.get_current_time('UTC').data['datetime']").endswith("+00:00")
    assert "Mars" in failure(client, "mcp.time.get_current_time(timezone='Mars/Phobos')")
    assert failure(client, "mcp.call('time', 'convert_time')").startswith("Error BAD_ARGUMENTS no: ")
    assert failure(client, "mcp.call('time', 'now')").startswith("Error UNKNOWN_TOOL no: ")


@of_npm
def test_files_are_written_where_the_project_is_and_nowhere_else(client: Client) -> None:
    value(client, "files = mcp.stub('files'); path = project + '/written.txt'; 1")
    value(client, "mcp.call('files', 'write_file', {'path': path, 'content': 'ä\\n' * 3}); 1")
    assert Path(value(client, "path")).read_text(encoding="utf-8") == "ä\n" * 3
    assert value(client, "files.read_text_file(path, head=1).data") == {"content": "ä"}
    assert value(client, "files.list_allowed_directories().text.splitlines()[1:] == [project]") is True
    told = failure(client, "files.read_text_file('/etc/hostname')")
    assert told.startswith("ToolError TOOL_ERROR done: files.read_text_file: Access denied")
    told = failure(client, "files.edit_file(path, [{'oldText': 'ä'}])")
    assert told.startswith("Error BAD_ARGUMENTS no: ")
    assert "/edits/0 lacks 'newText'" in told
    assert value(client, "[list(mcp.list_resources('files')), list(mcp.list_prompts('files'))]") == [[], []]


@of_npm
def test_memory_keeps_what_it_is_given(client: Client) -> None:
    entities = "[{'name': 'Ada', 'entityType': 'person', 'observations': ['counts']}]"
    value(client, f"memory = mcp.stub('memory'); r = mcp.call('memory', 'create_entities', entities={entities}); 1")
    assert value(client, "r.data['entities'][0]['name']") == "Ada"
    assert value(client, "memory.search_nodes('counts').data['entities'][0]['name']") == "Ada"
    kept = Path(value(client, "project + '/memory.jsonl'")).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["name"] for line in kept] == ["Ada"]
    graph = "mcp.read_resource('memory', 'memory://knowledge-graph')"
    assert value(client, f"json.loads({graph}.text)['entities'][0]['observations']") == ["counts"]
    lost = "[{'entityName': 'nobody', 'contents': ['x']}]"
    told = failure(client, f"memory.add_observations({lost})")
    assert told == "ToolError TOOL_ERROR done: memory.add_observations: Entity with name nobody not found"
    assert "/entities" in failure(client, "memory.create_entities(entities='Ada')")


@of_npm
def test_everything_sends_every_kind_of_content(client: Client) -> None:
    value(client, "everything = mcp.stub('everything'); 1")
    assert value(client, "mcp.call('everything', 'echo', message='hi').text") == "Echo: hi"
    assert value(client, "everything.get_sum(2, 0.5).text") == "The sum of 2 and 0.5 is 2.5."
    assert value(client, "everything.get_structured_content('Chicago').data['temperature']") == 36
    kind, head = value(client, "k, b = everything.get_tiny_image().blobs[0]; [k, list(b[1:4])]")
    assert (kind, bytes(head)) == ("image/png", b"PNG")
    annotated = "everything.get_annotated_message('error', includeImage=True)['content']"
    shown = value(client, f"[[b['type'], b['annotations']['priority']] for b in {annotated}]")
    assert shown == [["text", 1], ["image", 0.5]]
    links = value(client, "[b['type'] for b in everything.get_resource_links(count=2)['content']]")
    assert links == ["text", "resource_link", "resource_link"]
    zipped = "everything.gzip_file_as_resource(name='x.gz', data='data:text/plain,hello', outputType='resource')"
    told = value(client, f"import gzip\nkind, blob = {zipped}.blobs[0]; [kind, gzip.decompress(blob).decode()]")
    assert told == ["application/gzip", "hello"]
    assert "/location must be" in failure(client, "everything.get_structured_content('Oslo')")
    # Tasks of the draft that this tool needs are not ours: its server says so, and nothing hangs.
    told = failure(client, "everything.simulate_research_query('x')")
    assert told.startswith("ToolError TOOL_ERROR done: everything.simulate-research-query: ")


@of_npm
def test_everything_sees_the_project_and_not_our_environment(client: Client) -> None:
    assert f"file://{value(client, 'project')}" in value(client, "mcp.call('everything', 'get-roots-list').text")
    seen = json.loads(value(client, "mcp.call('everything', 'get-env').text"))
    assert seen["REPL_TRIO_BROKER"] == "off"
    assert "PATH" in seen
    assert PLANTED not in seen.values()


@of_npm
def test_everything_has_resources_and_prompts(client: Client) -> None:
    value(client, "r = mcp.list_resources('everything'); 1")
    document = value(client, "next(one['uri'] for one in r if one['uri'].endswith('/features.md'))")
    assert (
        value(client, f"'trigger-long-running-operation' in mcp.read_resource('everything', {document!r}).text") is True
    )
    assert len(value(client, "[one['uriTemplate'] for one in r.templates]")) == 2
    (kind, said) = value(
        client, "k, b = mcp.read_resource('everything', 'demo://resource/dynamic/blob/7').blobs[0]; [k, b.decode()]"
    )
    assert (kind, said[:11]) == ("text/plain", "Resource 7:")
    assert "not found" in failure(client, "mcp.read_resource('everything', 'demo://resource/none')")
    assert "args-prompt(city, state=...)" in value(client, "str(mcp.list_prompts('everything'))")
    asked = value(client, "mcp.get_prompt('everything', 'args-prompt', city='Oslo').text")
    assert asked == "What's weather in Oslo?"
    value(client, "p = mcp.get_prompt('everything', 'resource-prompt', resourceType='Blob', resourceId='2'); 1")
    assert value(client, "p.blobs[0][1].decode()[:11]") == "Resource 2:"
    assert "-32602" in failure(client, "mcp.get_prompt('everything', 'args-prompt')")


def started(client: Client, code: str) -> int:
    """A cell whose progress is asked for."""
    session: dict[str, Any] = {"session_id": client.default_session()} if client.version == MODERN else {}
    return client.start_call("execute_python", code=code, token="t", **session)


@of_npm
def test_everything_tells_how_far_it_is(client: Client) -> None:
    code = "mcp.call('everything', 'trigger-long-running-operation', duration=2.4, steps=4).text"
    said = client.result(started(client, code))["structuredContent"]["value"]
    assert said == "Long running operation completed. Duration: 2.4 seconds, Steps: 4."
    told = [note["message"] for note in client.notifications()]
    assert any("everything.trigger-long-running-operation: 1/4" in words for words in told), told


@of_npm
def test_a_call_of_everything_is_given_up_and_the_peer_stays(client: Client) -> None:
    slow = "mcp.call('everything', 'trigger-long-running-operation', duration=60, steps=1, timeout=0.3)"
    pid = "mcp.explain('everything')['pid']"
    before = value(client, pid)
    assert failure(client, slow).startswith("Error CALL_TIMEOUT unknown: ")
    assert value(client, "mcp.call('everything', 'echo', message='still').text") == "Echo: still"
    assert value(client, pid) == before


@of_npm
def test_everything_asks_the_client_where_it_offers_that(client: Client) -> None:
    """A client of 2026-07-28 can not be asked outside of an answer: there the peer does not even list these tools."""
    if client.version == MODERN:
        for tool in ("trigger-elicitation-request", "trigger-sampling-request"):
            assert failure(client, f"mcp.call('everything', {tool!r})").startswith("Error UNKNOWN_TOOL no: ")
        return
    answers: dict[str, Message] = {
        "trigger-elicitation-request": {"action": "accept", "content": {"name": "Ada", "check": True}},
        "trigger-sampling-request": {
            "role": "assistant",
            "content": {"type": "text", "text": "Ada"},
            "model": "m",
        },
    }
    for tool, answer in answers.items():
        given = "" if "elicitation" in tool else ", prompt='who?'"
        call = started(client, f"mcp.call('everything', {tool!r}{given}).text")
        asked = client.asked()
        assert asked["params"]["_meta"]["repl-trio/peer"] == "everything"
        client.send_message({"jsonrpc": "2.0", "id": asked["id"], "result": answer})
        assert "Ada" in client.result(call)["structuredContent"]["value"]


@pytest.mark.skipif(len(installed()) < len(PEERS), reason="not installed: scripts/peers")
def test_all_of_them_at_once(client: Client) -> None:
    calls = (
        "[mcp.acall('git', 'git_status', repo_path=project + '/repo'), mcp.acall('memory', 'read_graph'),"
        " mcp.acall('time', 'get_current_time', timezone='UTC'), mcp.acall('everything', 'echo', message=str(n)),"
        " mcp.acall('files', 'list_directory', path=project)]"
    )
    code = f"rs = await asyncio.gather(*(call for n in range(20) for call in {calls}))\n[r.text for r in rs[3::5]]"
    assert value(client, code) == [f"Echo: {number}" for number in range(20)]


@pytest.mark.parametrize("name", [pytest.param(name, marks=peer.needs) for name, peer in PEERS.items()])
def test_after_a_refresh_it_is_the_same_process_with_the_same_tools(client: Client, name: str) -> None:
    facts = f"one = mcp.explain({name!r}); [one['pid'], sorted(one['tools'])]"
    before = value(client, facts)
    assert value(client, f"mcp.refresh({name!r})[{name!r}]['state']") == "ready"
    assert value(client, f"len(mcp.list_tools({name!r}))") == len(before[1])
    assert value(client, facts) == before


@of_pypi
@each_era
def test_a_changed_entry_is_another_process(tmp_path: Path, era: str) -> None:
    with reaching(tmp_path, ["time"], era) as client:
        assert "Asia/Tokyo" in value(client, "str(mcp.help('time', 'get_current_time'))")
        before = psutil.Process(value(client, "mcp.explain('time')['pid']"))
        Folder(tmp_path).put("time", {**entry("time", tmp_path), "args": ["--local-timezone", "Africa/Cairo"]})
        value(client, "len(mcp.refresh())")
        assert "Africa/Cairo" in value(client, "str(mcp.help('time', 'get_current_time'))")
        assert value(client, "mcp.explain('time')['pid']") != before.pid
        eventually(lambda: not before.is_running(), "the process of the former entry is gone")
