"""`python_health` with detail: a stuck thing is seen from outside while it is stuck, and named as what it is."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from repl_trio.limits import DEFAULT
from tests.e2e.client import MODERN, Client, Message, Refused
from tests.e2e.watch import begin, eventually, finished

PATIENT = ("--limit", "guardian_ack=60")
"""No guardian is given up while a test looks at it."""


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(*PATIENT) as opened:
        yield opened


def look(client: Client) -> tuple[Message, str]:
    """What health says in detail, in both forms."""
    answer = client.call("python_health", detail=True)
    return answer["structuredContent"], answer["content"][0]["text"]


def session(client: Client, session_id: str | None = None) -> Message:
    """A session with its detail, the default one without an id."""
    sessions: list[Message] = look(client)[0]["sessions"]
    found = next(s for s in sessions if (s["default"] if session_id is None else s["session_id"] == session_id))
    detail: Message = found["detail"]
    return found | detail


def seen(client: Client, condition: Callable[[Message], object], what: str) -> Message:
    """Wait until health meets a condition; what it says then."""

    def found() -> Message | None:
        health = look(client)[0]
        return health if condition(health) else None

    health: Message = eventually(found, what)
    return health


def session_seen(client: Client, condition: Callable[[Message], object], session_id: str | None = None) -> Message:
    """Wait until a session meets a condition; the session in detail."""

    def found() -> Message | None:
        described = session(client, session_id)
        return described if condition(described) else None

    described: Message = eventually(found, "a session is as it should be")
    return described


def task(health: Message, name: str) -> Message:
    """The one task with this name."""
    (found,) = [each for each in health["tasks"] if each["name"] == name]
    return dict(found)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Inside the context a process is stopped."""
    os.kill(pid, signal.SIGSTOP)
    try:
        # It may first have to come out of the kernel.
        eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it is stopped")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def grown(before: Message, after: Message, *, by: float) -> bool:
    """Whether the time between two looks has come to `by` seconds."""
    return bool(after["server"]["uptime_s"] - before["server"]["uptime_s"] >= by)


# -- what is added, and when -----------------------------------------------------------------------------------


def test_without_detail_nothing_is_added(client: Client) -> None:
    client.execute("1")
    plain = client.structured("python_health")
    assert client.structured("python_health", detail=False).keys() == plain.keys()
    detailed, text = look(client)
    added = {"root", "requests", "requests_total", "asked", "unread_bytes", "threads", "tasks", "tasks_total"}
    assert detailed.keys() - plain.keys() == added
    assert detailed["sessions"][0].keys() - plain["sessions"][0].keys() == {"detail"}
    assert detailed["sessions"][0]["detail"].keys() == {"guardian_pid", "guardian", "worker_process"}
    assert f"tasks: {detailed['tasks_total']}" in text
    assert "guardian" not in client.call("python_health")["content"][0]["text"]


@pytest.mark.parametrize("detail", ["yes", 1, None])
def test_detail_is_a_flag(client: Client, detail: Any) -> None:
    with pytest.raises(Refused, match="/params/arguments/detail"):
        client.call("python_health", detail=detail)


def test_a_client_of_the_modern_era_sees_it_as_well() -> None:
    with Client(version=MODERN) as client:
        client.execute("1")
        assert look(client)[0]["tasks"]


def test_every_task_of_ours_has_a_name_and_an_age(client: Client) -> None:
    run = client.structured("python_start", code="import time; time.sleep(60)")
    waiting = client.start_call("python_run", run_id=run["run_id"], wait=60, token="t")
    health = seen(
        client,
        lambda health: "guardian" in health["sessions"][0]["detail"] and health["requests"],
        "the worker is there and the request waits",
    )
    assert {each["name"] for each in health["tasks"] if "age_s" not in each} == {
        "<init>",
        "<TrioToken.run_sync_soon task>",
    }
    assert not [each["name"] for each in health["tasks"] if "repl_trio" in each["name"] or "<function" in each["name"]]
    client.cancel(waiting)


# -- what is stuck ---------------------------------------------------------------------------------------------


def test_a_running_cell_and_a_waiting_request_are_seen_with_ages_that_grow(client: Client) -> None:
    run = begin(client, "import time; time.sleep(60)")
    waiting = client.start_call("python_run", run_id=run["run_id"], wait=60)
    before = seen(client, lambda health: "_answered" in str(health["tasks"]), "the request waits")
    after = seen(client, lambda health: grown(before, health, by=0.3), "time goes by")
    passed = after["server"]["uptime_s"] - before["server"]["uptime_s"]
    id_, run_id = before["sessions"][0]["session_id"], run["run_id"]
    for health in (before, after):
        assert health["requests_total"] == 1
        (request,) = health["requests"]
        assert (request["id"], request["tool"], request["run_id"]) == (str(waiting), "python_run", run_id)
        assert health["sessions"][0]["detail"]["stage"] == "running"
        assert health["sessions"][0]["detail"]["guardian"] == "sleeping"
        assert "waits_for" not in health["sessions"][0]["detail"]
        assert "_answered" in task(health, f"answers request {waiting} python_run").get("at", "")
        assert "_own" in task(health, f"owns session {id_}, generation 1")["at"]
    for age in (
        [health["requests"][0]["age_s"] for health in (before, after)],
        [health["sessions"][0]["detail"]["run_age_s"] for health in (before, after)],
    ):
        assert age[1] - age[0] == pytest.approx(passed, abs=0.05)
    for name in (f"leads run {run_id}", f"answers request {waiting} python_run", "serves"):
        ages = [task(health, name)["age_s"] for health in (before, after)]
        assert ages[1] - ages[0] == pytest.approx(passed, abs=0.15)
    assert task(after, "serves")["age_s"] >= task(after, f"leads run {run_id}")["age_s"]
    text = look(client)[1]
    assert f"request {waiting} python_run for run {run_id}: unanswered for " in text
    assert "; run running for " in text
    client.structured("python_cancel")
    client.result(waiting)


def test_a_stopped_guardian_in_the_ladder_is_seen_as_what_is_waited_for(client: Client) -> None:
    run = begin(client, "while True: pass")
    guardian = session(client)["guardian_pid"]
    with stopped(guardian):
        client.structured("python_cancel")
        stuck = session_seen(client, lambda described: "waits_for" in described)
        assert stuck["waits_for"] == "the acknowledgement of SIGINT to worker"
        assert 0 <= stuck["waits_s"] <= stuck["run_age_s"]
        assert (stuck["stage"], stuck["guardian"]) == ("interrupting", "stopped")
        health, text = look(client)
        assert "climb" in task(health, f"leads run {run['run_id']}")["at"] or "_ask" in str(health["tasks"])
        assert f"run interrupting for {session_s(health)} s, guardian {guardian} stopped, waits " in text
    assert finished(client, run["run_id"])["error_code"] == "CANCELLED"
    after = session(client)
    assert "waits_for" not in after
    assert "stage" not in after
    assert after["guardian"] == "sleeping"


def session_s(health: Message) -> str:
    return str(health["sessions"][0]["detail"]["run_age_s"])


def test_the_newest_step_of_a_ladder_is_told_while_the_cell_is_deaf_to_it(tmp_path: Path) -> None:
    slow = [f"--limit=ladder_{rung}=100" for rung in ("children", "again", "dump", "term", "kill")]
    flag = tmp_path / "flag"
    code = (
        "import os, time\n"
        f"while not os.path.exists({str(flag)!r}):\n"
        "    try: time.sleep(0.01)\n"
        "    except KeyboardInterrupt: pass"
    )
    with Client(*slow) as client:
        run = begin(client, code)
        client.structured("python_cancel")
        stuck = session_seen(client, lambda described: "last_step" in described)
        assert (stuck["stage"], stuck["last_step"]) == ("interrupting", "interrupt")
        assert "waits_for" not in stuck
        assert "; run interrupting (interrupt is done) for " in look(client)[1]
        flag.touch()
        finished(client, run["run_id"])
        assert "last_step" not in session(client)


def test_a_close_that_is_stuck_is_seen_though_its_session_is_no_longer_there(client: Client) -> None:
    other = client.structured("python_session_open")["session_id"]
    client.execute("1", session_id=other)
    guardian = session(client, other)["guardian_pid"]
    with stopped(guardian):
        closing = client.start_call("python_session_close", session_id=other)
        stuck = session_seen(client, lambda described: "waits_for" in described, other)
        assert (stuck["closing"], stuck["worker"], stuck["guardian"]) == (True, "stopping", "stopped")
        # The worker has ended by itself, and nobody says so.
        assert stuck["waits_for"] == "the acknowledgement of SIGTERM to tree"
        assert stuck["worker_process"] == "ended"
        assert [request["tool"] for request in look(client)[0]["requests"]] == ["python_session_close"]
        assert [s["default"] for s in client.structured("python_health")["sessions"]] == [True]
        assert f"{other} " in look(client)[1]
    assert client.result(closing)["structuredContent"]["closed"]
    health, text = look(client)
    assert [s["default"] for s in health["sessions"]] == [True]
    assert other not in text


def test_a_stopped_root_guardian_is_seen_until_it_is_needed(client: Client) -> None:
    client.execute("1")
    root = look(client)[0]["root"]
    assert (root["state"], set(root)) == ("sleeping", {"pid", "state"})
    with stopped(root["pid"]):
        health, text = look(client)
        assert health["root"] == {"pid": root["pid"], "state": "stopped"}
        assert f"root guardian {root['pid']}: stopped\n" in text


def test_a_stopped_worker_is_seen_and_that_it_does_not_read_its_cell(client: Client) -> None:
    client.execute("1")
    worker = session(client)["worker_pid"]
    with stopped(worker):
        run = client.structured("python_start", code=f"'{'x' * 200_000}'")
        stuck = session(client)
        assert (stuck["worker_process"], stuck["stage"]) == ("stopped", "running")
        assert stuck["undelivered"]
        assert "worker process stopped, worker has not read its cell" in look(client)[1]
    assert finished(client, run["run_id"])["success"]
    assert session(client).keys().isdisjoint({"undelivered", "stage"})


# -- bounds ----------------------------------------------------------------------------------------------------


def test_a_server_with_as_many_sessions_as_there_may_be_stays_in_bounds(client: Client) -> None:
    opening = [client.start_call("python_session_open") for _ in range(DEFAULT.sessions - 1)]
    ids = [client.default_session(), *(client.result(one)["structuredContent"]["session_id"] for one in opening)]
    cell = "import time; time.sleep(100)"
    for id_ in ids:
        client.structured("python_start", code=cell, session_id=id_)
    waiting = [client.start_call("python_run", session_id=id_, wait=60) for id_ in ids]
    health = seen(
        client, lambda health: all("guardian" in each["detail"] for each in health["sessions"]), "all of them run"
    )
    assert len(health["sessions"]) == len(ids)
    assert health["requests_total"] == len(waiting)
    assert health["tasks_total"] > 9 * len(ids)
    shown = health["tasks"]
    assert len(shown) + sum(each.get("below", 0) for each in shown) == health["tasks_total"]
    assert {"serves", "reads requests", "writes to the client"} <= {each["name"] for each in shown}
    added = {name: health[name] for name in health if name not in client.structured("python_health")}
    assert len(json.dumps(added, separators=(",", ":"))) < DEFAULT.detail_bytes
    # Both forms together are judged by the oracle.


def test_the_longest_paths_leave_it_in_bounds(client: Client, tmp_path: Path) -> None:
    project = tmp_path / os.path.join(*["d" * 200] * 18)
    project.mkdir(parents=True)
    ids = [client.structured("python_session_open", project=str(project))["session_id"] for _ in range(6)]
    begin(client, "import time; time.sleep(60)", session_id=ids[-1])
    health, text = look(client)
    # Who runs something is shown first.
    assert health["sessions"][0]["session_id"] == ids[-1]
    assert len(health["sessions"]) < 7
    assert "more sessions, whose long paths do not fit" in text
    assert health["tasks_total"] >= len(health["tasks"])
    assert f"tasks: {health['tasks_total']}" in text
    # The size of both forms together is judged by the oracle.


def test_nothing_of_a_cell_and_nothing_of_the_environment_is_in_it() -> None:
    secrets = ("word_of_the_source", "word of the environment", "word of the output", "word of a name")
    source, environment, output, name = secrets
    with Client(env={"SECRET": environment}) as client:
        code = f"def {source}(): print({output!r}, flush=True); time.sleep(60)\nimport time\n{source}()"
        begin(client, f"import asyncio\n{name.replace(' ', '_')} = asyncio.get_running_loop\n{code}")
        said = json.dumps(look(client))
        assert "leads run" in said
        for secret in secrets:
            assert secret not in said
            assert secret.replace(" ", "_") not in said
        client.structured("python_cancel")
