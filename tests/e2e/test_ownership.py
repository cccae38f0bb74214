"""Who owns what when something goes wrong in the middle: nothing is left, no claim is false, no session is lost."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.client import Client
from tests.e2e.watch import eventually, said

DEAF = "import time\nwhile True:\n    try: time.sleep(600)\n    except KeyboardInterrupt: pass"


def outcome(client: Client, request_id: int | str) -> Any:
    """The structuredContent that answers a call."""
    return client.result(request_id)["structuredContent"]


def together(client: Client, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """Several calls in one write; their ids."""
    ids = [f"{time.monotonic_ns()} {tool}" for tool, _arguments in calls]
    messages = [
        {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        for id_, (tool, arguments) in zip(ids, calls, strict=True)
    ]
    for message in messages:
        client.oracle.sent(message)
    client.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
    return ids


def guardian_of(client: Client) -> psutil.Process:
    """The guardian of the default session's worker."""
    return psutil.Process(client.execute("import os; os.getppid()")["value"])


def test_a_guardian_that_stops_answering_costs_its_session_a_generation_and_no_other_anything() -> None:
    with Client("--limit", "guardian_ack=1") as client:
        other = client.structured("python_session_open", name="other")["session_id"]
        client.execute("kept = 1", session_id=other)
        guardian = guardian_of(client)
        os.kill(guardian.pid, signal.SIGSTOP)
        result = client.execute(DEAF, timeout=0.2)
        assert (result["success"], result["state"]) == (False, "cleared")
        assert "guardian" in result["error"]
        assert client.execute("1 + 1")["value"] == 2
        assert client.execute("kept", session_id=other)["value"] == 1
        eventually(lambda: not guardian.is_running(), "the guardian is gone")


def test_a_cell_that_stops_its_guardian_and_ends_in_the_grace_is_no_bug() -> None:
    with Client("--limit", "guardian_ack=1") as client:
        code = (
            "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\nend = time.time() + 1.5\n"
            "while time.time() < end:\n    try: time.sleep(0.1)\n    except KeyboardInterrupt: pass"
        )
        result = client.execute(code, timeout=0.3)
        assert result["state"] == "cleared"
        assert client.execute("2 + 2")["value"] == 4


def test_a_worker_that_is_left_in_the_middle_of_a_reset_ends_all_the_same(tmp_path: Path) -> None:
    with Client() as client:
        first = client.execute("import atexit, os, time\natexit.register(lambda: time.sleep(600))\nos.getpid()")[
            "value"
        ]
        worker = psutil.Process(first)
        request = client.start_call("execute_python", code="1", reset=True)
        eventually(
            lambda: client.structured("python_health")["sessions"][0]["worker"] == "stopping", "the stop has begun"
        )
        client.cancel(request)
        assert client.execute("6 * 7")["value"] == 42
        eventually(lambda: not worker.is_running(), "the worker of the first generation is gone")


def test_a_run_is_cancelled_by_its_id_in_whichever_session_it_is() -> None:
    with Client() as client:
        other = client.structured("python_session_open")["session_id"]
        run_id = client.structured("python_start", code="while True: pass", session_id=other)["run_id"]
        assert client.structured("python_cancel", run_id=run_id) == {
            "cancel_requested": True,
            "run_id": run_id,
            "session_id": other,
            "status": "cancelling",
        }
        assert client.structured("python_run", run_id=run_id, wait=20)["error_code"] == "CANCELLED"


def test_a_cell_behind_a_python_cancel_in_one_write_waits_for_it() -> None:
    with Client() as client:
        for _again in range(5):
            client.structured("python_start", code="while True: pass")
            requests = together(client, ("python_cancel", {}), ("execute_python", {"code": "3"}))
            assert outcome(client, requests[0])["cancel_requested"]
            assert outcome(client, requests[1])["value"] == 3


def test_a_cell_behind_a_close_in_one_write_is_not_the_closed_sessions() -> None:
    with Client() as client:
        client.execute("old = 1")
        default = client.structured("python_health")["sessions"][0]["session_id"]
        requests = together(
            client,
            ("python_session_close", {"session_id": default}),
            ("execute_python", {"code": "'old' in globals()"}),
        )
        assert outcome(client, requests[0])["closed"]
        result = outcome(client, requests[1])
        assert (result["value"], result["session_id"] == default) == (False, False)


def test_inspections_at_the_same_time_all_get_their_answer() -> None:
    with Client("--limit", "guardian_ack=20") as client:
        client.execute("here = 1")
        requests = [client.start_call("python_session_inspect", include_namespace=True) for _one in range(6)]
        assert [outcome(client, request)["namespace_total"] for request in requests] == [1] * 6


def test_the_stack_of_an_earlier_run_is_in_no_later_report() -> None:
    with Client() as client:
        client.execute("import os, signal\nmarker = 1\nos.kill(os.getpid(), signal.SIGUSR1)")
        error = client.execute("import os\nos._exit(3)")["error"]
        assert "code 3" in error
        assert "It was here" not in error


def test_what_was_written_before_a_reset_comes_with_the_next_result() -> None:
    with Client() as client:
        client.execute("import atexit\natexit.register(print, 'said at the end')")
        assert "said at the end" in client.execute("1", reset=True)["stdout"]


def test_a_signal_handler_that_raises_between_cells_keeps_the_namespace() -> None:
    code = (
        "import signal\ndef late(*_): raise TimeoutError('too late')\n"
        "signal.signal(signal.SIGALRM, late)\nsignal.setitimer(signal.ITIMER_REAL, 0.3)\nkept = 1"
    )
    with Client() as client:
        client.execute(code)

        def look() -> bool:
            result = client.execute("kept")
            assert result["value"] == 1
            return "too late" in result["stderr"]

        eventually(look, "a cell tells of the alarm before it")


def test_an_inspection_that_gets_no_answer_claims_nothing() -> None:
    with Client("--limit", "guardian_ack=0.5") as client:
        client.execute("a = 1")
        run = client.structured("python_start", code="print('begun')\nsum(range(10 ** 12))")
        said(client, run["run_id"], "begun")
        inspected = client.structured("python_session_inspect", include_namespace=True)
        assert "namespace" not in inspected
        assert "namespace_total" not in inspected


def test_an_exit_code_of_any_size_keeps_the_namespace() -> None:
    with Client() as client:
        result = client.execute("kept = 1\nimport sys; sys.exit(10 ** 5000)")
        assert (result["state"], result["error_code"]) == ("preserved", "SYSTEM_EXIT")
        assert client.execute("kept")["value"] == 1
