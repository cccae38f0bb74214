"""Which generation a cell runs in: compared before anything happens, and new after a reset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.client import Client
from tests.e2e.watch import note, session_of


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as opened:
        yield opened


def test_expected_generation_is_compared_before_anything_happens(client: Client, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    wrong = client.execute(note(marker, "wrong"), expected_generation=1)
    assert (wrong["success"], wrong["error_code"]) == (False, "STATE_CHANGED")
    assert session_of(client)["worker"] == "none"
    assert client.execute("kept = 1", expected_generation=0)["generation"] == 1
    assert client.execute("kept", expected_generation=1)["value"] == 1
    refused = client.execute(note(marker, "reset"), reset=True, expected_generation=2)
    assert (refused["error_code"], refused["state"]) == ("STATE_CHANGED", "preserved")
    assert client.execute("kept", expected_generation=1)["value"] == 1
    assert client.execute("'kept' in globals()", reset=True, expected_generation=1)["generation"] == 2
    client.execute("import os; os._exit(0)")
    refused = client.execute(note(marker, "dead"), expected_generation=2)
    assert (refused["error_code"], refused["state"]) == ("STATE_CHANGED", "cleared")
    assert client.execute("1", expected_generation=3)["generation"] == 3
    started = client.structured("python_start", code=note(marker, "start"), expected_generation=2)
    assert started["error_code"] == "STATE_CHANGED"
    assert not marker.exists()


def test_a_reset_is_a_new_worker_and_no_loss(client: Client) -> None:
    before = client.execute("import os; os.chdir('/'); os.environ['X_MARK'] = '1'; kept = 1; os.getpid()")["value"]
    call = client.call(
        "execute_python", code="import os; [os.getpid(), 'X_MARK' in os.environ, os.getcwd()]", reset=True
    )
    after = call["structuredContent"]
    assert (after["state_reset"], after["generation"]) == (True, 2)
    assert after["value"][0] != before
    assert after["value"][1:] == [False, str(client.cwd.resolve())]
    assert "lost" not in call["content"][0]["text"]
    assert not psutil.pid_exists(before)
