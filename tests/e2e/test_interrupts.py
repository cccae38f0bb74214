"""A cell that does not end by itself is ended, by its deadline and by either kind of cancel, and the namespace stays.

Also from a server that was started the way shells and launchers do it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.client import Client, Message
from tests.e2e.watch import SURROUNDINGS, active_run, begin, finished, idle, said, session_of

TIMEOUT = 0.4
"""seconds. Of a cell that is to time out."""
RELEASE_MS = 1_500
"""milliseconds. From the deadline or the cancel to the end of the run; 1,000 are promised."""
KILL_MS = 5_000
"""milliseconds. The same for a cell that never lets go; 2,250 are promised."""

BLOCKED = {
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(60)",
    "await": "import asyncio; await asyncio.sleep(60)",
    "socket": "import socket; a, b = socket.socketpair(); a.recv(1)",
    "subprocess": "import subprocess; subprocess.run(['sleep', '60'])",
    "system": "import os; os.system('sleep 60')",
    "lock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
}
SPINNING_C = "print('begun', flush=True)\nx = 1\nsum(range(10**13))"


def by_timeout(client: Client, code: str) -> tuple[Message, float]:
    result = client.execute(code, timeout=TIMEOUT)
    return result, result["elapsed_ms"] - TIMEOUT * 1000


def by_cancel(client: Client, code: str) -> tuple[Message, float]:
    run = begin(client, code)
    assert client.structured("python_cancel", run_id=run["run_id"])["cancel_requested"] is True
    result = finished(client, run["run_id"])
    return result, result["elapsed_ms"] - run["elapsed_ms"]


def by_notification(client: Client, code: str) -> tuple[Message, float]:
    request = client.start_call("execute_python", code="print('begun', flush=True)\n" + code)
    run = said(client, active_run(client), "begun")
    client.cancel(request)
    idle(client)
    result = finished(client, run["run_id"])
    assert not client.answered(request)
    return result, result["elapsed_ms"] - run["elapsed_ms"]


WAYS: dict[str, tuple[Callable[[Client, str], tuple[Message, float]], str]] = {
    "timeout": (by_timeout, "TIMEOUT"),
    "python_cancel": (by_cancel, "CANCELLED"),
    "notification": (by_notification, "CANCELLED"),
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_whatever_blocks_is_freed_and_the_namespace_stays(surroundings: str) -> None:
    with Client(wrap=SURROUNDINGS[surroundings]) as client:
        client.execute("kept = 41")
        for name, code in BLOCKED.items():
            for way, (stop, error_code) in WAYS.items():
                result, release = stop(client, code)
                case = f"{name} by {way}: {result}"
                assert (result["success"], result.get("error_code"), result["state"]) == (
                    False,
                    error_code,
                    "preserved",
                ), case
                assert "preserved" in result["error"], case
                assert release < RELEASE_MS, case
                assert [result["steps"][0]["step"], result["steps"][-1]["step"]] == ["interrupt", "clear"], case
                after = client.execute("kept + 1")
                assert (after["value"], after["generation"], after["state_reset"]) == (42, 1, False), case


@pytest.mark.parametrize(
    ("surroundings", "way"),
    [("plain", "timeout"), ("plain", "python_cancel"), ("plain", "notification"), ("SIGINT ignored", "timeout")],
)
def test_what_never_lets_go_is_killed_at_the_end_of_the_grace(surroundings: str, way: str) -> None:
    stop, error_code = WAYS[way]
    with Client(wrap=SURROUNDINGS[surroundings]) as client:
        client.execute("kept = 41")
        result, release = stop(client, SPINNING_C)
        assert (result["success"], result["error_code"], result["state"]) == (False, error_code, "cleared")
        assert f'"<repl:{result["run_id"]}>", line {4 if way != "timeout" else 3}' in result["error"]
        assert "begun" in result["stdout"]
        assert 1_500 < release < KILL_MS
        steps = [step["step"] for step in result["steps"]]
        assert (steps[0], steps[-2:]) == ("interrupt", ["dump", "terminate"])
        assert 2_000 <= result["steps"][-1]["after_ms"] < KILL_MS
        after = client.execute("'kept' in globals()")
        assert (after["value"], after["state_reset"], after["generation"]) == (False, True, 2)
        text = client.call("execute_python", code="1")["content"][0]["text"]
        assert text == "1"


def test_a_cell_does_not_go_on_behind_the_command_that_it_was_stopped_in() -> None:
    with Client() as client:
        client.execute("import os; kept = 3")
        result = client.execute("while True:\n    os.system('sleep 60')\n    print('went on')", timeout=TIMEOUT)
        assert (result["error_code"], result["state"], result["stdout"]) == ("TIMEOUT", "preserved", "")
        assert "KeyboardInterrupt: interrupted" in result["error"]
        assert client.execute("kept")["value"] == 3


def test_what_a_stopped_cells_processes_wrote_is_that_cells_output() -> None:
    with Client() as client:
        client.execute("import subprocess, time; kept = 5")
        command = "trap '' INT; while :; do echo late; done"
        for way in (by_cancel, by_timeout, by_notification) * 3:
            code = f"for _ in range(3): subprocess.Popen(['sh', '-c', {command!r}])\ntime.sleep(60)"
            result, _release = way(client, code)
            assert (result["state"], "late\n" in result["stdout"]) == ("preserved", True)
            after = client.execute("kept")
            assert (after["value"], after["stdout"]) == (5, ""), way


def test_the_text_of_the_next_cell_says_that_the_namespace_was_lost() -> None:
    with Client() as client:
        client.execute(SPINNING_C, timeout=TIMEOUT)
        text = client.call("execute_python", code="1 + 1")["content"][0]["text"]
        assert "lost" in text
        assert text.endswith("2")


def test_an_interrupted_cell_tells_where_it_was_and_runs_its_finally() -> None:
    with Client() as client:
        code = "import time\nprint('before')\ntry:\n    time.sleep(60)\nfinally:\n    print('finally')"
        result = client.execute(code, timeout=TIMEOUT)
        assert result["stdout"] == "before\nfinally\n"
        assert "KeyboardInterrupt" in result["error"]
        assert "time.sleep(60)" in result["error"]


def test_code_that_catches_the_interrupt_and_ends_is_reported_as_interrupted() -> None:
    with Client() as client:
        code = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('caught')\n7"
        result = client.execute(code, timeout=TIMEOUT)
        assert (result["success"], result["error_code"], result["state"]) == (False, "TIMEOUT", "preserved")
        assert result["stdout"] == "caught\n"


def test_code_that_swallows_every_interrupt_is_killed() -> None:
    with Client() as client:
        code = "import time\nwhile True:\n    try:\n        time.sleep(0.02)\n    except BaseException:\n        pass"
        result = client.execute(code, timeout=TIMEOUT)
        assert (result["error_code"], result["state"]) == ("TIMEOUT", "cleared")
        assert result["elapsed_ms"] < TIMEOUT * 1000 + KILL_MS


def test_a_repr_that_never_ends_is_interrupted() -> None:
    with Client() as client:
        client.execute("class Endless:\n    def __repr__(self):\n        while True: pass\nkept = 5")
        result = client.execute("Endless()", timeout=TIMEOUT)
        assert (result["success"], result["error_code"], result["state"]) == (False, "TIMEOUT", "preserved")
        assert client.execute("kept")["value"] == 5


def test_an_import_that_blocks_is_interrupted_and_can_be_imported_afterwards(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text("import time\nif not FAST:\n    time.sleep(60)\nready = True\n")
    with Client(cwd=tmp_path) as client:
        client.execute("import builtins; builtins.FAST = False; kept = 3")
        result = client.execute("import slow_module", timeout=TIMEOUT)
        assert (result["error_code"], result["state"]) == ("TIMEOUT", "preserved")
        assert client.execute("builtins.FAST = True\nimport slow_module\n[slow_module.ready, kept]")["value"] == [
            True,
            3,
        ]


def test_a_late_interrupt_never_reaches_the_next_cell() -> None:
    """Cells that end about when their deadline does, many times: each answer is that cell's own, nothing is lost."""
    with Client() as client:
        client.execute("import time; kept = 1")
        outcomes = set()
        for number in range(40):
            until = 0.05 + number % 8 * 0.004
            code = f"end = time.perf_counter() + {until}\nwhile time.perf_counter() < end: pass\n{number}"
            result = client.execute(code, timeout=0.05)
            assert result["state"] == "preserved"
            outcomes.add(result["success"])
            if result["success"]:
                assert result["value"] == number
            after = client.execute(f"sum(range({number}, {number} + 2000)) * kept")
            assert after["value"] == sum(range(number, number + 2000)), result
        assert False in outcomes
        assert session_of(client)["generation"] == 1


@pytest.mark.parametrize("timeout", [0.01, 0.02])
def test_the_smallest_deadlines_keep_the_namespace(timeout: float) -> None:
    with Client() as client:
        client.execute("kept = 1")
        for _ in range(20):
            result = client.execute("while True: pass", timeout=timeout)
            assert (result["error_code"], result["state"]) == ("TIMEOUT", "preserved")
        assert client.execute("kept")["value"] == 1


def test_a_cell_that_takes_sigint_for_itself_does_not_keep_it_from_the_next_cell() -> None:
    with Client() as client:
        client.execute("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); kept = 2")
        result = client.execute("while True: pass", timeout=TIMEOUT)
        assert (result["error_code"], result["state"]) == ("TIMEOUT", "preserved")
        assert client.execute("kept")["value"] == 2


def test_health_answers_while_a_cell_is_being_interrupted() -> None:
    with Client() as client:
        run = begin(client, "sum(range(10**13))")
        client.structured("python_cancel")
        assert client.structured("python_run", run_id=run["run_id"])["status"] == "cancelling"
        for _ in range(20):
            assert session_of(client)["active_run"] == run["run_id"]
        assert finished(client, run["run_id"])["state"] == "cleared"


def test_every_stage_of_an_ending_is_in_the_debug_log() -> None:
    with Client("--log-level", "debug") as client:
        run = client.execute(SPINNING_C, timeout=TIMEOUT)["run_id"]
        client.execute("1", reset=True)
        client.close_stdin()
        client.wait()
        log = client.stderr()
    for step in ("interrupt after 0.0", "insist after 0.", "dump after 1.9", "terminate after 2."):
        assert f"run {run}: {step}" in log, log
    ends = [line.partition(" repl_trio.session.lifetime: ")[2] for line in log.splitlines()]
    stages = [stage.split(": ", 1)[1] for stage in ends if stage]
    assert sum(stage.startswith("nothing is left") for stage in stages) == 2
    assert "asked to end" in stages
