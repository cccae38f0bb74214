"""The root guardian: whoever of server, root and guardian is killed or stopped, nothing of a worker outlives them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from tests.e2e.client import Client
from tests.e2e.watch import all_gone, carriers, eventually, family, living

LEAVE_CHILDREN = """
import os, subprocess, sys
nap = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
deaf = [sys.executable, "-I", "-S", "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
stop = "import os, signal, time; os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)"
stopped = [sys.executable, "-I", "-S", "-c", stop]
left = [subprocess.Popen(command, start_new_session=True).pid for command in (nap, deaf, stopped)]
os.system("setsid nohup sleep 600 >/dev/null 2>&1 &")
left
"""
"""Four processes that have detached themselves in four ways."""

BOUND = 10.0
EXIT_BOUND = 5.0
"""seconds. To the exit of the server; 3 are promised."""


def parts(client: Client) -> dict[str, int]:
    """The pids of the default session's worker and of what stands above it."""
    worker = int(client.execute("import os; os.getpid()")["value"])
    guardian = psutil.Process(worker).parent()
    assert guardian is not None
    root = guardian.parent()
    assert root is not None
    return {"worker": worker, "guardian": guardian.pid, "root": root.pid, "server": client.process.pid}


@contextmanager
def with_children() -> Iterator[tuple[Client, dict[str, int], set[int]]]:
    """A server whose worker has left detached processes: (client, pids by role, everything below the server)."""
    with Client() as client:
        client.execute(LEAVE_CHILDREN)
        roles = parts(client)
        assert psutil.Process(roles["root"]).ppid() == roles["server"]
        everything = family(client)
        assert len(everything) >= 8
        try:
            yield client, roles, everything
        finally:
            for pid in everything - {client.process.pid}:
                with suppress(ProcessLookupError):
                    if psutil.pid_exists(pid) and psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                        os.kill(pid, signal.SIGCONT)


def kill(roles: dict[str, int], *names: str) -> None:
    for name in names:
        os.kill(roles[name], signal.SIGKILL)


def test_what_a_killed_guardian_leaves_is_gone_and_the_session_goes_on() -> None:
    with with_children() as (client, roles, everything):
        kill(roles, "guardian")
        all_gone(everything - {roles["server"], roles["root"]}, BOUND)
        result = client.execute("1 + 1")
        assert (result["value"], result["state_reset"]) == (2, True)
        assert parts(client)["root"] == roles["root"]


def test_without_its_root_a_session_goes_on_and_the_next_worker_gets_a_new_one() -> None:
    with with_children() as (client, roles, everything):
        kill(roles, "root")
        eventually(lambda: not living(roles["root"]), "the root is gone")
        assert client.execute("len(left)")["value"] == 3
        assert client.execute("1", reset=True)["generation"] == 2
        assert not any(map(living, everything - {roles["server"]}))
        assert parts(client)["root"] not in (roles["root"], roles["server"])


def test_root_and_guardian_killed_at_once() -> None:
    with with_children() as (client, roles, everything):
        kill(roles, "root", "guardian")
        all_gone(everything - {roles["server"]}, BOUND)
        assert client.execute("1 + 1")["value"] == 2
        # All of them have been reaped as well, by the server.
        assert {child.pid for child in client.descendants()} & everything == set()


def test_a_guardian_killed_after_its_root() -> None:
    with with_children() as (client, roles, everything):
        kill(roles, "root")
        eventually(lambda: psutil.Process(roles["guardian"]).ppid() == roles["server"], "the server has the guardian")
        kill(roles, "guardian")
        all_gone(everything - {roles["server"]}, BOUND)
        assert client.execute("1 + 1")["value"] == 2


@pytest.mark.parametrize(
    "names", [("server",), ("server", "guardian"), ("guardian", "server"), ("server", "root"), ("root", "server")]
)
def test_a_killed_server_takes_everything_along(names: tuple[str, ...]) -> None:
    with with_children() as (_client, roles, everything):
        kill(roles, *names)
        all_gone(everything, BOUND)


@pytest.mark.parametrize("name", ["guardian", "root", "worker"])
def test_a_killed_server_takes_stopped_processes_along(name: str) -> None:
    with with_children() as (_client, roles, everything):
        os.kill(roles[name], signal.SIGSTOP)
        kill(roles, "server")
        all_gone(everything, BOUND)


def test_a_stopped_root_is_continued_for_the_next_worker() -> None:
    with Client() as client:
        roles = parts(client)
        os.kill(roles["root"], signal.SIGSTOP)
        session = client.structured("python_session_open", name="other")["session_id"]
        assert client.execute("6 * 7", session_id=session)["value"] == 42
        assert client.execute("1 + 1")["value"] == 2
        assert parts(client)["root"] == roles["root"]


@pytest.mark.parametrize("then", ["the next cell", "nothing"])
def test_a_stopped_root_ends_what_a_killed_guardian_had(then: str) -> None:
    with with_children() as (client, roles, everything):
        os.kill(roles["root"], signal.SIGSTOP)
        kill(roles, "guardian")
        if then == "the next cell":
            # The first one may still have been sent to the worker that is dying.
            eventually(lambda: client.execute("1 + 1").get("value") == 2, "the session goes on")
        all_gone(everything - {roles["server"], roles["root"]}, BOUND)
        assert living(roles["root"])


@pytest.mark.parametrize("sign", [signal.SIGTERM, None])
def test_stopped_guardians_do_not_hold_the_end_of_their_server(sign: int | None) -> None:
    with with_children() as (client, roles, everything):
        for name in ("root", "guardian"):
            os.kill(roles[name], signal.SIGSTOP)
        if sign is None:
            client.close_stdin()
        else:
            client.signal(sign)
        assert client.wait(EXIT_BOUND) == 0
        all_gone(everything, BOUND)


def test_who_has_ended_a_crowd_gives_its_rank_back() -> None:
    """Guardian and root ask for real-time scheduling against a crowd; later work must not be held back by it."""
    crowd = "import os, time\nfor _ in range(150):\n    if not os.fork(): time.sleep(600)\n"
    with Client() as client:
        client.execute(f"{crowd}time.sleep(600)", timeout=1)
        roles = parts(client)
        assert os.sched_getscheduler(roles["guardian"]) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER
        client.execute(crowd)
        everything = family(client) - {roles["server"], roles["root"]}
        assert len(everything) > 150
        kill(roles, "guardian")
        all_gone(everything, BOUND)
        assert client.execute("1")["value"] == 1
        eventually(
            lambda: os.sched_getscheduler(roles["root"]) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER,
            "the root is an ordinary process again",
        )


# -- the sweep by the next server ------------------------------------------------------------------------------

SWEEP = ("--limit", "sweep_delay=0.01")


def orphaned(client: Client, roles: dict[str, int]) -> set[int]:
    """Kill a server with all its guardians at one moment; what survives that."""
    for name in ("root", "guardian", "server"):
        os.kill(roles[name], signal.SIGSTOP)
    kill(roles, "root", "guardian", "server")
    client.process.wait(BOUND)
    all_gone({roles["worker"]}, BOUND)
    return {pid for pid in carriers(client.cookie) if living(pid)}


def test_the_next_server_ends_what_nobody_was_left_to_end() -> None:
    with with_children() as (client, roles, _everything):
        left = orphaned(client, roles)
        assert len(left) >= 3
        with Client(*SWEEP) as other:
            mine = other.execute("import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True).pid")
            all_gone(left, BOUND)
            assert living(mine["value"])


def test_the_sweep_spares_what_a_living_server_has_started() -> None:
    with with_children() as (client, roles, everything), Client(*SWEEP, "--log-level", "debug") as other:
        with with_children() as (third, third_roles, _all):
            left = orphaned(third, third_roles)
            with Client(*SWEEP) as fourth:
                all_gone(left, BOUND)
                assert fourth.execute("1")["success"]
        assert other.execute("1")["success"]
        assert all(map(living, everything))
        assert client.execute("len(left)")["value"] == 3
        assert living(roles["worker"])
