"""The bound on a worker's memory: what is over it is killed and says so; what is not is left alone."""

from __future__ import annotations

import sys

import pytest

from tests.e2e.client import ROOT, Client
from tests.e2e.watch import session_of

LARGEST = 999_999_999
"""mebibytes. What a session may ask for at most, as the command line."""
GROW = "grown = bytearray(128 << 20)\nfor i in range(0, len(grown), 4096): grown[i] = 1\nimport time; time.sleep(60)"


def test_a_cell_over_the_bound_is_stopped_with_both_numbers() -> None:
    with Client("--max-memory-mib", "48") as client:
        result = client.execute("kept = 1\n" + GROW)
        assert (result["success"], result["state"], result["error_code"]) == (False, "cleared", "MEMORY_LIMIT")
        used = int(result["error"].split(" MiB")[0].rsplit(" ", 1)[1])
        assert used > 48
        assert "its limit is 48 MiB" in result["error"]
        assert result["elapsed_ms"] < 30_000
        following = client.execute("'kept' in globals()")
        assert (following["value"], following["state_reset"]) == (False, True)


def test_a_session_sets_its_own_bound() -> None:
    with Client("--max-memory-mib", "48") as client:
        free = client.structured("python_session_open", max_memory_mib=0)["session_id"]
        tight = client.structured("python_session_open", max_memory_mib=64)["session_id"]
        assert session_of(client)["max_memory_mib"] == 48
        assert session_of(client, free)["max_memory_mib"] == 0
        grown = client.execute(GROW.replace("sleep(60)", "sleep(1)") + "; len(grown)", session_id=free)
        assert grown["value"] == 128 << 20
        assert "limit is 64 MiB" in client.execute(GROW, session_id=tight)["error"]
        assert client.execute("1 + 1")["value"] == 2


def test_growth_after_a_rest_is_seen() -> None:
    with Client("--max-memory-mib", "48", "--limit", "memory_interval=0.01") as client:
        assert client.execute("1")["value"] == 1
        assert client.execute("import time; time.sleep(0.3)")["success"]
        client.structured("python_session_open")
        assert client.execute(GROW)["error_code"] == "MEMORY_LIMIT"


def test_it_holds_beside_a_time_limit() -> None:
    with Client("--max-memory-mib", "48") as client:
        result = client.execute(GROW, timeout=50)
        assert (result["error_code"], "its limit is 48 MiB" in result["error"]) == ("MEMORY_LIMIT", True)


def test_a_cell_that_holds_the_interpreter_in_c_is_stopped() -> None:
    with Client("--max-memory-mib", "48") as client:
        result = client.execute("held = b'x' * (128 << 20)\nsum(range(10**13))", timeout=100)
        assert (result["error_code"], result["state"]) == ("MEMORY_LIMIT", "cleared")
        assert int(result["error"].split(" MiB")[0].rsplit(" ", 1)[1]) > 48


def test_a_session_may_ask_for_so_much_and_no_more() -> None:
    with Client() as client:
        session = client.structured("python_session_open", max_memory_mib=LARGEST)["session_id"]
        assert session_of(client, session)["max_memory_mib"] == LARGEST
        for refused in (LARGEST + 1, -1):
            error = client.error(client.start_call("python_session_open", max_memory_mib=refused))
            assert error["code"] == -32602
            assert "/max_memory_mib" in error["message"]
        assert len(client.structured("python_session_list")["sessions"]) == 2


FAULTS = {
    "missing": ("sys.modules['psutil'] = None", "psutil cannot be loaded: ModuleNotFoundError"),
    "broken": (
        "import types; sys.modules['psutil'] = types.SimpleNamespace(Error=OSError, NoSuchProcess=KeyError)",
        "AttributeError: ",
    ),
    "refused": (
        "import psutil\ndef refuse(self): raise psutil.AccessDenied(1)\npsutil.Process.memory_info = refuse",
        "AccessDenied: ",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bound_that_cannot_be_looked_after_is_told(fault: str) -> None:
    planted, told = FAULTS[fault]
    path = f"import sys; sys.path.insert(0, {str(ROOT)!r})"
    client = Client()
    client.command = [
        sys.executable,
        "-P",
        "-c",
        f"{path}\n{planted}\nfrom repl_trio.__main__ import main; sys.exit(main())",
    ]
    with client:
        result = client.execute("import time; time.sleep(60)")
        assert (result["error_code"], result["state"]) == ("MEMORY_LIMIT", "cleared")
        assert f"memory cannot be watched ({told}" in result["error"]
        assert "--max-memory-mib 0" in result["error"]
        free = client.structured("python_session_open", max_memory_mib=0)["session_id"]
        assert client.execute("import time; time.sleep(0.4); 5", session_id=free)["value"] == 5
        assert "bug" not in client.stderr()
