"""The bound on a worker's memory: what is over it is killed and says so; what is not is left alone."""

from __future__ import annotations

from tests.e2e.client import Client
from tests.e2e.watch import session_of

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
