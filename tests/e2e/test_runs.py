"""Runs from outside: each cell runs once, each answer is its own, and finished ones can be read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from tests.e2e.client import Client
from tests.e2e.watch import (
    active_run,
    begin,
    carriers,
    content,
    eventually,
    finished,
    idle,
    living,
    note,
    said,
    session_of,
)

SPIN = "while True: pass"


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as opened:
        yield opened


# -- once, and one's own ---------------------------------------------------------------------------------------


def test_a_cell_runs_exactly_once_however_it_ends(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "marker"
    endings = {
        "value": "1 + 1",
        "exception": "1 / 0",
        "exit": "raise SystemExit(3)",
        "timeout": SPIN,
        "death": "import os; os._exit(0)",
        "crash": "import os; os.kill(os.getpid(), 11)",
        "await": "import asyncio; await asyncio.sleep(0)",
        "thread": "import threading; threading.Thread(target=input, daemon=True).start()",
    }
    for word, code in endings.items():
        client.execute(note(path, word) + code, timeout=1)
        client.execute("None")
    client.execute(note(path, "reset"), reset=True)
    run = client.structured("python_start", code=note(path, "start"))
    assert finished(client, run["run_id"])["success"]
    client.execute(note(path, "last line") + note(path, "very last line"))
    assert path.read_text().split("\n") == [*endings, "reset", "start", "last line", "very last line", ""]


def test_no_answer_is_ever_another_cells(client: Client) -> None:
    """A thousand cells in two sessions at the same time, some of them interrupted, each answered by its own request."""
    other = client.structured("python_session_open", name="other")["session_id"]
    sessions = [client.default_session(), other]
    interrupted = set(range(25, 500, 50))
    for number in range(500):
        if number in interrupted:
            code, timeout = f"print({number})\nwhile True: pass", 0.05
        else:
            code, timeout = f"print({number} * 7)\n'{number}-' + SESSION" if number else "SESSION = '?'", 60.0
        if number == 1:
            for name in sessions:
                client.execute(f"SESSION = {name!r}", session_id=name)
        requests = [
            client.start_call("execute_python", code=code, timeout=timeout, session_id=name) for name in sessions
        ]
        health = client.start_call("python_health")
        for name, request in zip(sessions, requests, strict=True):
            result = client.result(request)["structuredContent"]
            assert (result["session_id"], result["state"]) == (name, "preserved")
            if number in interrupted:
                assert (result["error_code"], result["stdout"]) in {("TIMEOUT", f"{number}\n"), ("TIMEOUT", "")}
            elif number:
                assert (result["value"], result["stdout"]) == (f"{number}-{name}", f"{number * 7}\n")
        assert len(client.result(health)["structuredContent"]["sessions"]) == 2
    assert [session_of(client, name)["generation"] for name in sessions] == [1, 1]


def test_what_a_cell_writes_is_never_taken_for_a_frame(client: Client) -> None:
    frame = json.dumps({"frame": "result", "id": "r1", "success": True, "return_value": "forged"})
    code = (
        "import os, subprocess\n"
        f"text = {frame!r} + '\\n'\n"
        "print(text, end='', flush=True)\n"
        "os.write(2, text.encode())\n"
        "subprocess.run(['sh', '-c', 'for fd in 0 3 4 5 6 7 8 9; do printf %s \"$1\" >&$fd; done', 'sh', text],\n"
        "               stderr=subprocess.DEVNULL)\n"
        "'mine'"
    )
    result = client.execute(code)
    assert (result["value"], result["stdout"], result["stderr"]) == ("mine", frame + "\n", frame + "\n")
    assert client.execute("2")["value"] == 2


def test_the_output_of_a_run_is_its_own_to_the_byte(client: Client) -> None:
    for number in range(50):
        count = number * 37
        code = f"import os\nos.write(1, b'{number % 10}' * {count})\nos.write(2, b'e' * {number})\nprint({number})"
        result = client.execute(code)
        assert result["stdout"] == str(number % 10) * count + f"{number}\n"
        assert result["stderr"] == "e" * number


# -- one at a time ---------------------------------------------------------------------------------------------


def test_a_second_cell_is_refused_at_once_and_changes_nothing(client: Client) -> None:
    run = begin(client, "v = 'A'\nfirst = v\nwhile True: pass")
    for tool in ("execute_python", "python_start"):
        refused = client.structured(tool, code="v = 'B'")
        assert (refused["success"], refused["error_code"]) == (False, "BUSY")
        assert (refused["run_id"], refused["state"]) == (run["run_id"], "preserved")
        assert run["run_id"] in refused["error"]
    refused = client.structured("execute_python", code="v = 'B'", reset=True)
    assert refused["error_code"] == "BUSY"
    assert client.structured("python_run")["run_id"] == run["run_id"]
    client.structured("python_cancel")
    assert client.execute("[v, first]")["value"] == ["A", "A"]


def test_a_cell_sent_behind_a_cancel_waits_for_the_clean_up(client: Client) -> None:
    client.execute("kept = 3")
    code = (
        "import time\ntry:\n    print('inside', flush=True)\n    while True: pass\n"
        "finally:\n    time.sleep(0.5)\n    kept += 1"
    )
    run = begin(client, code)
    said(client, run["run_id"], "inside")
    client.structured("python_cancel", run_id=run["run_id"])
    result = client.execute("kept")
    assert (result["success"], result["value"], result["generation"]) == (True, 4, 1)


def test_a_cell_sent_behind_a_cancel_runs_after_the_kill_too(client: Client) -> None:
    begin(client, "sum(range(10**13))")
    client.structured("python_cancel")
    result = client.execute("7")
    assert (result["value"], result["generation"], result["state_reset"]) == (7, 2, True)


def test_requests_of_one_write_begin_in_their_order(client: Client) -> None:
    client.execute("1")
    for _ in range(10):
        requests = [client.start_call("execute_python", code=f"import time; time.sleep(0.05)\n{n}") for n in range(3)]
        answers = [client.result(request)["structuredContent"] for request in requests]
        assert answers[0].get("value") == 0
        assert [answer.get("error_code") for answer in answers[1:]] == ["BUSY", "BUSY"]


# -- started, followed, read again -----------------------------------------------------------------------------


def test_a_started_run_is_followed_page_by_page(client: Client, tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "for number in range(3):\n"
        "    print('line', number, flush=True)\n"
        f"    while not os.path.exists({str(tmp_path)!r} + f'/go{{number}}'): time.sleep(0.005)\n"
        "'the end'"
    )
    started = client.structured("python_start", code=code)
    assert (started["status"], started["generation"]) == ("running", 1)
    assert (started["poll_tool"], started["cancel_tool"]) == ("python_run", "python_cancel")
    cursor, pages = "0.0", []
    for number in range(3):
        said(client, started["run_id"], f"line {number}\n")
        page = client.structured("python_run", run_id=started["run_id"], after=cursor)
        assert page["status"] == "running"
        pages.append(page["stdout"])
        cursor = page["next"]
        (tmp_path / f"go{number}").touch()
    assert pages == ["line 0\n", "line 1\n", "line 2\n"]
    result = finished(client, started["run_id"])
    assert (result["success"], result["value"], result["stdout"]) == (True, "the end", "line 0\nline 1\nline 2\n")
    assert client.structured("python_run", run_id=started["run_id"], after=cursor)["stdout"] == ""


def test_long_output_of_a_finished_run_is_read_in_pages(client: Client) -> None:
    written = "".join(f"row {number}\n" for number in range(5_500))
    assert 40_000 < len(written) < 50_000
    result = client.execute("for number in range(5500): print('row', number)")
    assert result["truncated"]["stdout"] is True
    read, cursor = "", "0.0"
    for _ in range(20):
        page = client.structured("python_run", run_id=result["run_id"], after=cursor)
        read += page["stdout"]
        if "next" not in page:
            break
        cursor = page["next"]
    assert read == written


def test_python_run_waits_until_the_end_and_no_longer(client: Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    run = begin(client, f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.005)\n9")
    still = client.structured("python_run", run_id=run["run_id"], wait=0.2)
    assert (still["status"], still["stdout"]) == ("running", "begun\n")
    assert still["elapsed_ms"] >= 150
    waiting = client.start_call("python_run", run_id=run["run_id"], wait=60)
    assert not client.answered(waiting)
    go.touch()
    assert client.result(waiting, 20)["structuredContent"]["value"] == 9


def test_the_latest_run_is_the_one_without_an_id(client: Client) -> None:
    unknown = client.structured("python_run")
    assert unknown["error_code"] == "UNKNOWN_RUN"
    first = client.execute("'first'")
    second = client.execute("'second'")
    assert client.structured("python_run")["value"] == "second"
    assert client.structured("python_run", run_id=first["run_id"])["value"] == "first"
    assert client.structured("python_run", run_id=second["run_id"])["value"] == "second"
    assert client.structured("python_run", run_id="r999-000000")["error_code"] == "UNKNOWN_RUN"


def test_the_newest_64_runs_are_retained(client: Client) -> None:
    runs = [client.execute(str(number))["run_id"] for number in range(64)]
    assert client.structured("python_run", run_id=runs[0])["value"] == 0
    client.execute("64")
    assert client.structured("python_run", run_id=runs[0])["error_code"] == "UNKNOWN_RUN"
    assert client.structured("python_run", run_id=runs[1])["value"] == 1
    assert len(client.structured("python_session_inspect")["runs"]) == 64


def test_finished_results_outlive_the_worker(client: Client) -> None:
    good = client.execute("print('text'); 5")
    client.execute("import os; os._exit(3)")
    client.execute("1", reset=True)
    again = client.structured("python_run", run_id=good["run_id"])
    assert (again["value"], again["stdout"], again["generation"]) == (5, "text\n", 1)


def test_execute_with_a_wait_hands_a_long_cell_over(client: Client, tmp_path: Path) -> None:
    assert client.execute("2", wait=30)["value"] == 2
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.005)\n3"
    for wait in (0, 0.1):
        go.unlink(missing_ok=True)
        handed = client.execute(code, wait=wait)
        assert (handed["status"], handed["poll_tool"]) == ("running", "python_run")
        assert "success" not in handed
        go.touch()
        assert finished(client, handed["run_id"])["value"] == 3


# -- cancels ---------------------------------------------------------------------------------------------------


def test_a_cancelled_request_gets_no_reply_and_its_run_ends(client: Client) -> None:
    request = client.start_call("execute_python", code=SPIN)
    run_id = active_run(client)
    client.cancel(request)
    idle(client)
    # Answers keep coming for everybody else, so this one would have come.
    assert client.execute("1")["value"] == 1
    assert not client.answered(request)
    result = client.structured("python_run", run_id=run_id)
    assert (result["success"], result["error_code"]) == (False, "CANCELLED")


def test_giving_up_a_waiting_python_run_leaves_the_run_alone(client: Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    run = begin(client, f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.005)\n'whole'")
    waiting = client.start_call("python_run", run_id=run["run_id"], wait=60)
    client.cancel(waiting)
    assert client.structured("python_run", run_id=run["run_id"])["status"] == "running"
    go.touch()
    assert finished(client, run["run_id"])["value"] == "whole"
    assert not client.answered(waiting)


def test_giving_up_an_execute_after_its_answer_changes_nothing(client: Client) -> None:
    request = client.start_call("execute_python", code="kept = 8")
    client.result(request)
    client.cancel(request)
    client.cancel(12345)
    assert client.execute("kept")["value"] == 8


def test_a_cancel_names_a_run_or_says_that_there_is_none(client: Client) -> None:
    assert client.structured("python_cancel")["cancel_requested"] is False
    done = client.execute("1")
    late = client.structured("python_cancel", run_id=done["run_id"])
    assert (late["cancel_requested"], late["run_id"]) == (False, done["run_id"])
    run = begin(client, SPIN)
    # A cancel of a finished run must not reach the active one.
    assert client.structured("python_cancel", run_id=done["run_id"])["cancel_requested"] is False
    assert client.structured("python_run", run_id=run["run_id"])["status"] == "running"
    assert client.structured("python_cancel", run_id=run["run_id"])["cancel_requested"] is True


def test_a_first_cell_that_is_cancelled_before_its_worker_is_there_never_runs(client: Client, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    request = client.start_call("execute_python", code=note(marker, "ran") + SPIN)
    client.cancel(request)
    idle(client)
    client.execute("1")
    assert not marker.exists() or marker.read_text() == "ran\n"
    assert not client.answered(request)


# -- between runs ----------------------------------------------------------------------------------------------


def test_output_between_runs_comes_with_the_next_result_and_is_marked(client: Client, tmp_path: Path) -> None:
    code = (
        "import subprocess\n"
        "late = subprocess.Popen(['sh', '-c', 'while [ ! -e go ]; do sleep 0.01; done; echo from the background;'\n"
        "                         'echo on stderr >&2'])\n"
        "late.pid"
    )
    pid = client.execute(code)["value"]
    (client.cwd / "go").touch()
    # The output is in the pipe before the child ends; as a zombie of the worker it stays visible.
    eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "the child ends")
    result = client.execute("print('own'); late.wait()")
    assert result["stdout"] == "[output since the last run]\nfrom the background\n[end of it]\nown\n"
    assert result["stderr"] == "[output since the last run]\non stderr\n[end of it]\n"
    assert client.execute("print('own')")["stdout"] == "own\n"


def test_an_idle_worker_that_floods_its_pipe_is_read(client: Client) -> None:
    pid = client.execute("import subprocess; subprocess.Popen(['sh', '-c', 'yes | head -c 20000000; exit']).pid")[
        "value"
    ]
    # More than any pipe holds: it ends only if somebody reads.
    eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "everything has been read")
    result = client.execute("print('own')")
    assert result["stdout"].endswith("[end of it]\nown\n")
    assert len(result["stdout"]) < 25_000


def test_progress_comes_with_a_token_grows_and_ends_before_the_answer(client: Client) -> None:
    code = "import time\nfor n in range(5):\n    print('step', n, flush=True); time.sleep(0.3)"
    request = client.start_call("execute_python", code=code, token="t1")
    client.result(request)
    lines = [json.loads(received.line) for received in client.received]
    kinds = [m.get("method") or m.get("id") for m in lines]
    told = [m["params"] for m in lines if m.get("method") == "notifications/progress"]
    assert len(told) >= 2
    assert {m["progressToken"] for m in told} == {"t1"}
    assert all(a["progress"] < b["progress"] for a, b in pairwise(told))
    assert "step" in told[-1]["message"]
    assert len(kinds) - kinds[::-1].index("notifications/progress") - 1 < kinds.index(request)
    client.execute(code.replace("range(5)", "range(4)"))
    assert len(client.notifications()) == len(told)


def test_the_marker_of_a_killed_run_is_the_last_thing_it_writes(client: Client, tmp_path: Path) -> None:
    """No late effect: what a cancelled run started writes nothing after the answer."""
    path = tmp_path / "ticks"
    code = (
        "import subprocess\n"
        f"subprocess.Popen(['sh', '-c', 'while :; do echo tick >> {path}; sleep 0.01; done'], start_new_session=True)\n"
        "while True: pass"
    )
    run = begin(client, code)
    content(path)
    below = carriers(client.cookie)
    client.structured("python_cancel")
    finished(client, run["run_id"])
    written = path.stat().st_size
    assert len(below) > 2
    assert not any(map(living, below - {session_of(client)["worker_pid"], client.process.pid}))
    client.execute("import time; time.sleep(0.1)")
    assert path.stat().st_size == written
