"""A secret in every field of the configuration: none of them is in anything that the server writes, shows or passes on.

Apart from the program, its folder and the host of a URL: errors name them, and what is listed as a place is none.

Secrets reach the server as a literal, through a variable, or back from a peer that tells what it was given.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.client import Client
from tests.e2e.front_ends import environment, run
from tests.e2e.watch import eventually
from tests.process.peer_stage import PROGRAM, alive


def secret(place: str) -> str:
    """What nobody but the test knows. Not only letters, so that its encodings differ from it."""
    return f'S3cr3t/{place}+"q" x'


def token(place: str) -> str:
    """The same where a URL, a header or a word of a shell must hold it."""
    return f"t0ken0of0{place}0of0twenty"


VARIABLES = {
    **{f"{place.upper()}_VARIABLE": secret(place) for place in ("env", "arg", "oauth")},
    **{f"{place.upper()}_VARIABLE": token(place) for place in ("header", "url", "query")},
}
LITERALS = [secret("literal"), token("literal"), token("user"), token("password"), token("path"), token("fragment")]
PLANTED = [*LITERALS, *VARIABLES.values()]

#: Each tells what it holds in another way: before the handshake, in its refusal, in a call, at its end.
TELLS = 'echo "have $A and $B and $1" >&2; echo "$A"; '
REFUSES = (
    "n=0; while read -r line; do n=$((n+1)); "
    'printf \'{"jsonrpc":"2.0","id":%d,"error":{"code":-1,"message":"bad token %s"}}\\n\' $n "$B"; done'
)

#: A wrong value in every field that can have one, each alone in an entry.
FIELDS = (
    *("type", "transport", "args", "env", "url", "headers", "oauth", "disabled", "enabled", "allowedTools"),
    *("disabledTools", "tools", "connectTimeout", "callTimeout", "timeout", "brokerAllowed", "sandbox", "envFile"),
    *("bearer_token_env_var", "auth", "requestInit", "unheard_of", "description", "startup_timeout_ms"),
)
SHAPES: tuple[Any, ...] = (
    secret("literal"),
    [secret("literal"), 7],
    {"A": [secret("literal")], "B": token("literal")},
    f"${{UNSET_NAME}}{secret('literal')}",
    f"${{{token('literal')}",
    f"${{input:{token('literal')}}}",
    f"http://{token('literal')}:{token('literal')}/{secret('literal')}",
)


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    env = {"A": secret("literal"), "B": "${HEADER_VARIABLE}", "C": "Bearer ${ENV_VARIABLE}"}
    options = [sys.executable, PROGRAM, "--log", str(folder / "peer.log"), "--era", "legacy"]

    def shell(script: str) -> dict[str, Any]:
        return {"command": "sh", "args": ["-c", script, "sh", "${ARG_VARIABLE}", *options], "env": env}

    found = {
        "ends": shell(f"{TELLS} exit 3"),
        "refuses": shell(REFUSES),
        "tells": shell(f'{TELLS} shift; exec "$@"'),
        "http": {
            "url": f"https://{token('user')}:{token('password')}@host.example:1/${{URL_VARIABLE}}/{token('path')}/mcp?"
            f"key=${{QUERY_VARIABLE}}#{token('fragment')}",
            "headers": {"X-Key": token("literal"), "Authorization": "Bearer ${HEADER_VARIABLE}"},
            "oauth": {"clientId": "id", "clientSecret": "${OAUTH_VARIABLE}"},
        },
        "ws": {"type": "ws", "url": f"wss://host.example/?{token('literal')}"},
        "lost": {"command": f"no-such-program --key {secret('literal')}", "env": env},
        "away": {"command": sys.executable, "cwd": "/no/such/folder", "args": ["${ARG_VARIABLE}"], "env": env},
        "shadow": {"command": "no-such-program", "env": {"PATH": f"/{token('literal')}"}},
    }
    for field in FIELDS:
        for number, shape in enumerate(SHAPES):
            base = {"url": "https://host.example/"} if field in ("headers", "oauth", "auth", "requestInit") else {}
            found[f"{field}-{number}"] = {**(base or {"command": "no-such-program"}), field: shape}
    return found


#: Asks each server for everything, and has the peer that works send each secret back: in an error, in the name of a
#: request, as progress, as stray output, at its end. The secrets come in reversed.
CELL = """
import json
forms = [eval(form) for form in {forms!r}]
def say(*words):
    print(*words)
    print(*words, file=told)
def tried(call, *given, **named):
    try: say(call(*given, **named))
    except Exception as error: say(repr(error), error, vars(error))
def message(**members): return json.dumps({{"jsonrpc": "2.0", **members}})
with open({told!r}, "a") as told:
    for server in mcp.servers():
        tried(mcp.call, server, "no_such_tool", arguments={{"text": "x"}})
        tried(mcp.list_tools, server)
        tried(mcp.explain, server)
        tried(mcp.explain, server, "echo")
        tried(mcp.help, server)
    for word in [word[::-1] for word in {planted!r}]:
        for text in [form(word) for form in forms]:
            error = message(id=12345, error={{"code": 1, "message": "no: " + text}}).replace("12345", "ID")
            tried(mcp.call, "tells", "answer", line=error)
            tried(mcp.call, "tells", "say", line=message(id=1, method="ask/" + text))
            tried(mcp.call, "tells", "say", line="stray " + text)
        tried(mcp.call, "tells", "die", words="it was " + word)
        tried(mcp.explain, "tells")
    tried(mcp.refresh), tried(mcp.help), tried(mcp.search, "echo"), tried(mcp.journal), tried(lambda: mcp)
    tried(mcp.call, "tells", "echo", text="still there")
"""
FORMS = (
    "lambda w: w",
    "lambda w: __import__('urllib.parse').parse.quote(w)",
    "lambda w: __import__('base64').b64encode(('user:' + w).encode()).decode()",
    "lambda w: repr(w)",
)


def forms(word: str) -> list[bytes]:
    """The word as it might be found in something written."""
    encoded = base64.b64encode(b"user:" + word.encode()).decode()
    escaped = json.dumps(word)[1:-1]
    return [form.encode() for form in (word, quote(word), encoded[8:-4], escaped, json.dumps(escaped)[1:-1])]


def leaks(content: bytes) -> list[str]:
    return [word for word in PLANTED if any(form in content for form in forms(word))]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    # In a folder of its own, which the server's own files are not in: they are searched.
    project = tmp_path / "project"
    project.mkdir()
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": entries(project)}))
    yield project
    eventually(lambda: not alive(str(tmp_path)), "no peer is left")


def test_no_secret_leaves_the_configuration(folder: Path) -> None:
    written = folder.parent / "written"
    written.mkdir()
    told = written / "told"
    files = ("--log-level", "debug", "--log-file", str(written / "log"), "--journal", str(written / "journal"))
    code = CELL.format(planted=[word[::-1] for word in PLANTED], forms=FORMS, told=str(told))
    with Client(*files, "--limit", "peer_retry=0.001", cwd=folder, env=VARIABLES) as client:
        client.structured("python_health", detail=True)
        ended = client.result(client.start_call("execute_python", code=code, token="t"), bound=120)["structuredContent"]
        assert ended["success"], ended["error"]
        for artifact in client.structured("artifact_list")["artifacts"]:
            client.structured("artifact_read", artifact_id=artifact["id"])
        client.structured("python_health", detail=True)
        # The shell that was given a secret argument has become a program without it.
        argv = ["\0".join(process.cmdline()).encode() for process in client.descendants()]
        assert any(PROGRAM.encode() in line for line in argv)
        assert leaks(b"\0".join(argv)) == []
        out = b"\n".join(line.line for line in client.received) + client.stderr().encode()
    assert "still there" in told.read_text()
    assert told.read_text().count("[redacted]") > 3 * len(PLANTED) * len(FORMS)
    assert leaks(out) == []
    for path in written.iterdir():
        assert leaks(path.read_bytes()) == [], path


def test_a_file_that_cannot_be_read_is_not_quoted(tmp_path: Path) -> None:
    for content in (
        f'{{"mcpServers": {{"a": {{"command": "{token("literal")}',
        f"{token('literal')} = 1",
        f'["{token("literal")}"]',
    ):
        (tmp_path / ".mcp.json").write_text(content)
        with Client(cwd=tmp_path) as client:
            client.structured("python_health")
            client.execute("print(mcp, mcp.help(), mcp.explain('a'))")
            assert leaks(b"\n".join(line.line for line in client.received)) == []


def test_the_doctor_tells_no_secret(folder: Path) -> None:
    done = run("doctor", cwd=folder, env=environment(**VARIABLES))
    assert leaks(done.stdout + done.stderr) == []
    assert b"tells" in done.stdout
