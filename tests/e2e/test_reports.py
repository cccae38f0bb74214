"""The public reports that take more than cells: each row is a test named by its id, for each Python."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.e2e.client import Client, Message
from tests.e2e.watch import active_run, all_gone, begin, carriers, eventually, family, finished, idle, said
from tests.process.worker_driver import VERSIONS, interpreter

EXIT_BOUND = 5.0
"""seconds. To the exit of a server that was told to end, and of everything below it."""
RETURN_MS = 10_000
"""milliseconds. For a call that must not wait for a process that sleeps for minutes."""

_numbers = itertools.count(3_000)


def seconds() -> int:
    """How long a sleeper sleeps: minutes, and a number of its own to be found by."""
    return next(_numbers)


def sleepers(number: int) -> list[int]:
    """The processes that have this number for an argument."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(number) in argument for argument in process.info["cmdline"] or ()):
            found.append(process.pid)
    return found


def gone(number: int) -> None:
    eventually(lambda: not sleepers(number), f"no process with {number} is left", bound=5)


class Session:
    """A session of one Python on a server that other tests use too."""

    def __init__(self, client: Client, python: str) -> None:
        self.client = client
        self.id = str(client.structured("python_session_open", python=python)["session_id"])

    def execute(self, code: str, **arguments: object) -> Message:
        return self.client.execute(code, session_id=self.id, bound=60, **arguments)


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    with Client() as client:
        client.execute("1")  # starts the root guardian, which stays with the server and is no test's own
        yield client


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> str:
    return interpreter(request.param)


@pytest.fixture
def session(server: Client, python: str) -> Iterator[Session]:
    session = Session(server, python)
    yield session
    server.structured("python_session_close", session_id=session.id)


@pytest.mark.parametrize("start", ["run(['sleep', '{0}'])", "Popen(['sh', '-c', 'sleep {0}; :']).wait()"])
def test_INT_A06_a_cancelled_request_takes_its_processes_along(session: Session, start: str) -> None:
    number = seconds()
    client = session.client
    code = f"import subprocess\nsubprocess.{start.format(number)}"
    request = client.start_call("execute_python", code=code, timeout=600, session_id=session.id)
    active_run(client, session.id)
    eventually(lambda: sleepers(number), "the command runs")
    client.cancel(request)
    gone(number)
    idle(client, session.id, bound=5)
    assert session.execute("1+1")["value"] == 2
    assert not client.answered(request)


@pytest.mark.parametrize("second", ["execute_python", "python_start"])
def test_INT_A07_a_second_call_is_refused_at_once_and_changes_nothing(session: Session, second: str) -> None:
    client = session.client
    code = "print('begun', flush=True)\nimport time\nv = 'first'\ntime.sleep(0.5)\nseen = v"
    run_id = client.structured("python_start", code=code, session_id=session.id)["run_id"]
    said(client, run_id, "begun")
    refused = client.structured(second, code="v = 'second'", session_id=session.id)
    assert (refused["success"], refused["error_code"], refused["state"]) == (False, "BUSY", "preserved")
    assert run_id in refused["error"]
    assert finished(client, run_id)["success"]
    assert session.execute("[v, seen]")["value"] == ["first", "first"]


ENDINGS: dict[str, Callable[[Client], None]] = {
    "SIGTERM": lambda client: client.signal(signal.SIGTERM),
    "SIGHUP": lambda client: client.signal(signal.SIGHUP),
}


@pytest.mark.parametrize("running", ["while True: pass", None])
def test_LIFE_A08_the_end_of_stdin_ends_everything(python: str, running: str | None) -> None:
    with Client("--python", python) as client:
        client.execute("import subprocess\nsubprocess.Popen(['sleep', '987'], start_new_session=True).pid")
        if running is not None:
            begin(client, running)
        members = family(client)
        assert len(members) == 5
        client.close_stdin()
        assert client.wait(EXIT_BOUND) == 0
        all_gone(members | carriers(client.cookie), EXIT_BOUND)


@pytest.mark.parametrize("ending", ENDINGS)
def test_LIFE_A09_a_signal_ends_everything_also_beside_c_code_that_holds_the_gil(python: str, ending: str) -> None:
    with Client("--python", python) as client:
        begin(client, "sum(range(10**13))")
        members = family(client)
        ENDINGS[ending](client)
        assert client.wait(EXIT_BOUND) == 0
        all_gone(members | carriers(client.cookie), EXIT_BOUND)


def test_SH_A03_output_is_shown_while_the_command_runs_and_kept_when_it_is_cut_off(session: Session) -> None:
    number = seconds()
    client = session.client
    code = f"sh('echo built part 1; echo warned >&2; sleep {number}')"
    run_id = client.structured("python_start", code=code, timeout=1.0, session_id=session.id)["run_id"]
    said(client, run_id, "built part 1")
    result = finished(client, run_id)
    assert (result["error_code"], result["state"]) == ("TIMEOUT", "preserved")
    assert (result["stdout"], result["stderr"]) == ("built part 1\n", "warned\n")
    gone(number)


@pytest.mark.parametrize(
    "command",
    [
        "setsid sleep {0} </dev/null >/dev/null & echo up",
        "setsid sleep {0} & echo up",
        "sleep {0} </dev/null >/dev/null & disown; echo up",
        "setsid sh -c 'while :; do echo noise; sleep 0.01; done; : {0}' & echo up",
    ],
)
def test_SH_A05_who_else_holds_the_pipes_does_not_matter(session: Session, command: str) -> None:
    number = seconds()
    look = "import os, threading\nopen_now = len(os.listdir('/proc/self/fd')), threading.active_count()\n"
    session.execute(look + "sh('true')\nbefore = open_now")
    command = f"bash -c {command.format(number)!r}" if "disown" in command else command.format(number)
    told = session.execute(f"{look}before = open_now\nout = str(sh({command!r})).split()")
    assert told["success"], told["error"]
    assert told["elapsed_ms"] < RETURN_MS
    assert session.execute(f"{look}['up' in out, open_now == before]")["value"] == [True, True]
    for pid in sleepers(number):
        psutil.Process(pid).kill()
    gone(number)
