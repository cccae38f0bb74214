"""Output as a client gets it: floods of every kind, and lines that are drawn again and again."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.client import Client
from tests.e2e.front_ends import BOUND as RUN_BOUND
from tests.e2e.front_ends import environment
from tests.e2e.server_process import server_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="measures processes through /proc")

GROWTH = 5_000_000
"""bytes. What a flood may add to the server's memory."""
LIMIT = 1_000_000
"""bytes. Of an artifact, in these tests: beyond it a flood is only counted."""
ROWS = 1_000_000
"""Rows of 10 bytes in each flood."""
MARKER = re.compile(r"\[\.\.\. ([\d,]+) bytes of output not shown \.\.\.\]\n")

PREPARED = """
import os, subprocess, sys, threading
def rows(first, last): return b''.join(b'%09d\\n' % n for n in range(first, last))
def write(fd, piece):
    while piece:
        piece = piece[os.write(fd, piece):]
open('rows', 'wb').write(rows(0, {rows}))
"""
FLOODS = {
    "print lines": "for n in range(0, {rows}, 10): print(rows(n, n + 10).decode(), end='')",
    "one print": "print(rows(0, {rows}).decode(), end='')",
    "os.write": "for n in range(0, {rows}, 5_000): write(1, rows(n, n + 5_000))",
    "a child": "_ = os.system('cat rows')",
    "a pipe of children": "_ = subprocess.run('cat rows | cat', shell=True)",
}


@pytest.fixture(scope="module")
def flooded() -> Iterator[Client]:
    with Client("--limit", f"artifact_bytes={LIMIT}") as client:
        assert client.execute(PREPARED.format(rows=ROWS))["success"]
        yield client


def rss(client: Client) -> int:
    """Bytes of memory that the server itself holds."""
    return int(psutil.Process(client.process.pid).memory_info().rss)


def total(text: str) -> int:
    """How many bytes the stream had, by its shortened text."""
    found = MARKER.search(text)
    assert found, text[-500:]
    return len(MARKER.sub("", text).encode()) + int(found[1].replace(",", ""))


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_keeps_its_head_its_tail_and_its_count(flooded: Client, kind: str) -> None:
    flooded.execute("1")
    before = rss(flooded)
    result = flooded.execute(FLOODS[kind].format(rows=ROWS))
    assert result["success"], result["error"]
    assert rss(flooded) - before < GROWTH
    text = result["stdout"]
    head, tail = MARKER.sub("|", text).split("|")
    assert head.splitlines() == [f"{number:09}" for number in range(len(head.splitlines()))]
    last = len(tail.splitlines())
    assert tail.splitlines() == [f"{number:09}" for number in range(ROWS - last, ROWS)]
    assert total(text) == 10 * ROWS
    (artifact,) = result["artifacts"]
    assert (artifact["size"], artifact["complete"]) == (LIMIT, False)


def test_every_kept_byte_of_a_flood_can_be_paged(flooded: Client) -> None:
    result = flooded.execute(FLOODS["os.write"].format(rows=ROWS))
    seen, after = "", "0.0"
    while after:
        page = flooded.structured("python_run", run_id=result["run_id"], after=after)
        seen, after = seen + page["stdout"], page.get("next", "")
    tail = "".join(f"{number:09}\n" for number in range(ROWS - 1_000, ROWS))
    assert seen.endswith(tail)
    assert f"{10 * ROWS - 50_000:,} bytes of output not kept" in seen


def test_one_long_line_and_bytes_that_are_no_text(flooded: Client) -> None:
    before = rss(flooded)
    line = flooded.execute("print('x' * 50_000_000)")
    assert total(line["stdout"].replace("x\n[...", "x[...")) == 50_000_001
    binary = flooded.execute("for _ in range(200): write(1, b'\\xff\\xfe\\xe5\\xad' * 25_000)")
    assert binary["success"]
    assert "�" in binary["stdout"]
    assert rss(flooded) - before < GROWTH


def test_both_streams_and_two_sessions_at_once_and_health_meanwhile(flooded: Client) -> None:
    other = flooded.structured("python_session_open", name="other")["session_id"]
    assert flooded.execute(PREPARED.format(rows=ROWS), session_id=other)["success"]
    before = rss(flooded)
    both = (
        f"t = threading.Thread(target=lambda: [write(2, rows(n, n + 5_000)) for n in range(0, {ROWS}, 5_000)])\n"
        f"t.start()\nfor n in range(0, {ROWS}, 5_000): write(1, rows(n, n + 5_000))\nt.join()"
    )
    asked = [
        flooded.start_call("execute_python", code=both, session_id=session)
        for session in (other, flooded.default_session())
    ]
    answers = 0
    while not all(flooded.answered(request_id) for request_id in asked):
        assert flooded.structured("python_health")["server"]["name"] == "repl-trio"
        answers += 1
    assert answers > 10, "health is answered while the floods go on"
    for request_id in asked:
        result = flooded.result(request_id)["structuredContent"]
        assert result["stdout"].endswith(f"{ROWS - 1:09}\n")
        assert result["stderr"].endswith(f"{ROWS - 1:09}\n")
        assert (total(result["stdout"]), total(result["stderr"])) == (10 * ROWS, 10 * ROWS)
    assert rss(flooded) - before < GROWTH
    flooded.structured("python_session_close", session_id=other)


@pytest.mark.parametrize("code", ["while True: print('flood')", "os.system('yes')"])
def test_a_flood_without_an_end_is_interrupted(flooded: Client, code: str) -> None:
    result = flooded.execute(f"kept = 5\n{code}", timeout=1)
    assert (result["error_code"], result["state"]) == ("TIMEOUT", "preserved")
    following = flooded.execute("print('mine'); kept")
    assert (following["stdout"], following["value"]) == ("mine\n", 5)


def test_a_followed_run_gets_the_whole_flood(tmp_path: Path) -> None:
    (tmp_path / "flood.py").write_text("print(''.join('%09d\\n' % n for n in range(2_000_000)), end='')")
    command = server_command("--limit", f"artifact_bytes={LIMIT}", "exec", "flood.py")
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, timeout=RUN_BOUND)
    expected = hashlib.sha256(b"".join(b"%09d\n" % number for number in range(2_000_000)))
    assert (done.returncode, len(done.stdout)) == (0, 20_000_000)
    assert hashlib.sha256(done.stdout).digest() == expected.digest()


# -- progress bars ---------------------------------------------------------------------------------------------

BAR = """
import sys
def bar(stream, percent):
    stream.write('\\r%3d%%|%-50s|' % (percent, '#' * (percent // 2)))
    stream.flush()
"""


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as client:
        assert client.execute(BAR)["success"]
        yield client


def test_a_progress_bar_is_its_last_state_in_both_forms(client: Client) -> None:
    code = "print('before')\nfor p in range(101): bar(sys.stderr, p); bar(sys.stdout, p)\nprint('\\nafter')"
    reply = client.call("execute_python", code=code)
    structured = reply["structuredContent"]
    done = f"100%|{'#' * 50}|"
    assert structured["stdout"] == f"before\n{done}\nafter\n"
    assert structured["stderr"] == done
    assert "99%" not in reply["content"][0]["text"]
    assert structured["truncated"]["stdout"] is False


def test_a_flood_of_redraws_pushes_no_line_out(client: Client) -> None:
    code = "print('first')\nfor n in range(200_000): bar(sys.stdout, n % 100)\nprint('\\nlast')"
    structured = client.execute(code)
    assert structured["stdout"] == f" first\n 99%|{'#' * 49} |\nlast\n".lstrip()
    assert "artifacts" not in structured


def test_tqdm_as_its_user_has_it(client: Client) -> None:
    # Its own text, without the package: a bar that stays, and one that clears itself.
    code = (
        "for i in range(1, 6): sys.stderr.write('\\r%3d%%|%s| %d/5 [00:00<00:00, 9.99it/s]' % (i * 20, '█' * i, i))\n"
        "sys.stderr.write('\\n')\n"
        "for i in range(1, 4): sys.stderr.write('\\r%d/3' % i)\n"
        "sys.stderr.write('\\r   \\r')\nprint('kept', file=sys.stderr)"
    )
    assert client.execute(code)["stderr"] == "100%|█████| 5/5 [00:00<00:00, 9.99it/s]\nkept\n"


def test_an_active_run_shows_the_bar_as_it_is_now(client: Client) -> None:
    wait = "while not os.path.exists('go%d'): time.sleep(0.01)\n"
    code = "import os, time\nprint('start')\nbar(sys.stdout, 10)\n" + wait % 1
    code += "bar(sys.stdout, 20)\n" + wait % 2 + "bar(sys.stdout, 100)\nprint()"
    request_id = client.start_call("python_start", code=code)
    run_id = client.result(request_id)["structuredContent"]["run_id"]

    def page(after: str, end: str) -> tuple[str, str]:
        for _ in range(400):
            shown = client.structured("python_run", run_id=run_id, after=after, wait=0.05)
            if end in shown["stdout"]:
                return shown["stdout"], shown["next"]
        raise AssertionError(f"{end} is not shown")

    first, after = page("0.0", "10%")
    assert first.startswith("start\n 10%")
    (client.cwd / "go1").touch()
    second, again = page(after, "20%")
    assert second == f" 20%|{'#' * 10}{' ' * 40}|"
    assert again == after
    (client.cwd / "go2").touch()
    last = client.structured("python_run", run_id=run_id, after=after, wait=20)
    assert last["stdout"] == f"100%|{'#' * 50}|\n"


def test_a_bar_between_two_runs_comes_in_its_last_state(client: Client) -> None:
    child = "for p in range(101): print(end='\\r%3d%%' % p, flush=True)"
    code = f"import subprocess\nchild = subprocess.Popen([sys.executable, '-c', {child!r}])"
    client.execute("import os\nopen('wait', 'w').close()")
    client.execute(code + "\nNone")
    client.execute("child.wait(); None")
    text = client.execute("print('mine')")["stdout"]
    assert text == "mine\n" or text.endswith("100%\n[end of it]\nmine\n")
