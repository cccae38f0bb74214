"""What cells leave running is listed by python_health, with the run that started it."""

from __future__ import annotations

from typing import Any

from tests.e2e.client import Client
from tests.e2e.watch import eventually, session_of

NAP = "import subprocess, sys\nleft = subprocess.Popen(['sleep', '600'], start_new_session={own})\nleft.pid"


def listed(client: Client) -> dict[int, dict[str, Any]]:
    return {process["pid"]: process for process in session_of(client).get("processes", [])}


def test_what_completed_cells_left_is_listed_with_its_run() -> None:
    with Client() as client:
        assert listed(client) == {}
        first = client.execute(NAP.format(own=False))
        second = client.execute(NAP.format(own=True))
        assert session_of(client)["processes_total"] == 2
        found = listed(client)
        assert {pid: process["run_id"] for pid, process in found.items()} == {
            first["value"]: first["run_id"],
            second["value"]: second["run_id"],
        }
        # `Popen` returns within `exec`, a moment before the kernel shows the new arguments.
        eventually(
            lambda: {process["command"] for process in listed(client).values()} == {"sleep 600"}, "the arguments"
        )
        for process in found.values():
            assert 0 <= process["age_s"] < 600
        client.execute("left.kill(); left.wait()")
        eventually(lambda: set(listed(client)) == {first["value"]}, "only the first is left")
        client.execute("1", reset=True)
        assert listed(client) == {}


def test_what_a_cancelled_run_started_is_not_left() -> None:
    with Client() as client:
        kept = client.execute(NAP.format(own=False))["value"]
        result = client.execute(NAP.format(own=True) + "\nwhile True: pass", timeout=0.5)
        assert result["state"] == "preserved"
        assert set(listed(client)) == {kept}


def test_a_crowd_is_counted_and_its_first_are_listed() -> None:
    with Client() as client:
        client.execute("import subprocess\nmany = [subprocess.Popen(['sleep', '600']) for _ in range(30)]")
        described = session_of(client)
        assert described["processes_total"] == 30
        assert len(described["processes"]) == 10
