"""A whole server where guardians are not given their orphans back, and one that is refused what it needs."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.e2e.client import ROOT, Client
from tests.e2e.watch import all_gone, begin, carriers, eventually, finished, living
from tests.process.guardian_driver import ALONE, KERNELS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

WRAP = """
import sys, time
kernel, prelude, root = sys.argv[1:4]
sys.path.insert(0, root)
from repl_trio.process import launch, moment
launch._RUN = "import sys;sys.path.insert(0,sys.argv[1]);" + prelude + "import {0};{0}.main()"
if kernel != "refused":
    launch.has_root = lambda: False
if kernel == "macOS":
    moment.Clock.now = lambda self: moment.Moment(int(time.time()), 0)
boot = sys.argv.index("-c", 1) + 1
sys.argv[1:], source = sys.argv[boot + 1 :], sys.argv[boot]
exec(source)
"""

LEAVE = """
import os, subprocess, sys
nap = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
deaf = [sys.executable, "-I", "-S", "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
left = [subprocess.Popen(command, start_new_session=True).pid for command in (nap, deaf)]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(nap[0], nap)
    os._exit(0)
os.wait()
os.system("setsid nohup sleep 600 >/dev/null 2>&1 &")
left
"""
"""Four processes that have detached themselves, two of them without a parent."""


@contextmanager
def server(kernel: str, prelude: str, *arguments: str) -> Iterator[Client]:
    with Client(
        "--log-level", "warning", *arguments, wrap=[sys.executable, "-c", WRAP, kernel, prelude, str(ROOT)]
    ) as client:
        yield client


def marked(client: Client) -> set[int]:
    """The living processes that a worker of this server has started, itself included."""
    return {pid for pid in carriers(client.cookie) if living(pid)} - {client.process.pid}


def leave(client: Client) -> set[int]:
    """The worker and four processes that have detached themselves; the shell's own needs a moment for it."""
    assert len(client.execute(LEAVE)["value"]) == 2
    eventually(lambda: len(marked(client)) == 5, "the worker and four more")
    return marked(client)


@pytest.mark.parametrize("ending", ["reset", "crash", "kill", "shutdown", "server"])
@pytest.mark.parametrize("kernel", ALONE)
def test_what_has_detached_itself_ends_with_its_worker(kernel: str, ending: str) -> None:
    with server(kernel, KERNELS[kernel]) as client:
        everything = leave(client)
        if ending == "reset":
            assert client.execute("1", reset=True)["generation"] == 2
        elif ending == "crash":
            assert client.execute("import os; os._exit(3)")["state"] == "cleared"
        elif ending == "kill":
            client.execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        elif ending == "server":
            os.kill(client.process.pid, signal.SIGKILL)
        if ending != "shutdown":
            all_gone(everything, 10)
    all_gone(everything, 10)


@pytest.mark.parametrize("kernel", ALONE)
def test_a_cancelled_run_takes_its_own_along_and_leaves_the_others(kernel: str) -> None:
    with server(kernel, KERNELS[kernel]) as client:
        before = leave(client)
        # With ps the start of a process is known to the second, and here may be off by one in both directions.
        client.execute("import time\ntime.sleep(2.1)")
        run = begin(client, f"time.sleep(1.1)\n{LEAVE}\ntime.sleep(600)")
        eventually(lambda: len(marked(client)) == len(before) + 4, "four more processes")
        client.call("python_cancel", run_id=run["run_id"])
        assert finished(client, run["run_id"])["state"] == "preserved"
        assert marked(client) == before


@pytest.mark.parametrize("kernel", ALONE)
def test_the_worker_ends_with_a_killed_guardian(kernel: str) -> None:
    with server(kernel, KERNELS[kernel]) as client:
        worker = client.execute("import os\nos.getpid()")["value"]
        guardian = psutil.Process(worker).parent()
        assert guardian is not None
        # With the GIL held in C it would not see that its pipes are closed.
        call = client.start_call("execute_python", code="10 ** 10 ** 9")
        os.kill(guardian.pid, signal.SIGKILL)
        all_gone({worker}, 10)
        client.answer(call)
        assert client.execute("1 + 1")["value"] == 2


@pytest.mark.parametrize("kernel", ALONE)
def test_health_names_the_level_and_the_faults(kernel: str) -> None:
    with server(kernel, KERNELS[kernel]) as client:
        client.execute("1")
        health = client.call("python_health")
        known = health["structuredContent"]["containment"]
        assert known["level"] == "groups"
        assert "may survive" in known["details"]
        faults = known.get("faults", [])
        assert [fault for fault in faults if "libffi" in fault] == faults
        assert len(faults) == (kernel != "macOS")
        assert all(fault in health["content"][0]["text"] for fault in faults)


def test_a_system_that_gives_no_more_processes_is_named_with_the_fix() -> None:
    refuse = "import posix; posix.fork = lambda: (_ for _ in ()).throw(BlockingIOError(11, 'no'));"
    with server("refused", refuse, "--limit", "guardian_clean=20") as client:
        # The second one waits for the end of the first one's guardian, which never was.
        for _ in range(2):
            failed = client.execute("1", bound=10.0)
            assert failed["success"] is False
            assert "the limit on processes is reached" in failed["error"]
            assert "ulimit -u" in failed["error"]


def test_what_the_system_withholds_is_logged_once() -> None:
    refuse = "import posix; del posix.pidfd_open;"
    with server("Linux", refuse) as client:
        for _ in range(2):
            assert client.execute("1", reset=True)["success"]
        (fault,) = client.call("python_health")["structuredContent"]["containment"]["faults"]
        assert client.stderr().count(fault) == 1
