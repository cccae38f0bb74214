"""The end of the server, whatever asks for it and whatever runs: in time, requests answered, nothing left."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable

import pytest

from tests.e2e.client import Client
from tests.e2e.watch import SURROUNDINGS, active_run, all_gone, begin, carriers, content, family, living, said

EXIT_BOUND = 5.0
"""seconds. To the exit of the server; 3 are promised."""
GONE_BOUND = 3.0
"""seconds. For the rest, after the exit."""

LEFT_OVER = "import subprocess; subprocess.Popen(['sleep', '987'], start_new_session=True)"
ENDLESS = {
    "Python": "while True: pass",
    "C": "sum(range(10**13))",
    "await": "import asyncio\nwhile True:\n    try:\n        await asyncio.sleep(60)\n    except BaseException: pass",
}


ENDINGS: dict[str, Callable[[Client], None]] = {
    "EOF": Client.close_stdin,
    "SIGTERM": lambda client: client.signal(signal.SIGTERM),
    "SIGINT": lambda client: client.signal(signal.SIGINT),
    "SIGHUP": lambda client: client.signal(signal.SIGHUP),
    "broken stdout": Client.close_stdout,
}


def assert_over(client: Client, members: set[int]) -> None:
    """The server ends in order, and all of these processes with it."""
    assert client.wait(EXIT_BOUND) == 0, client.stderr()
    all_gone(members | carriers(client.cookie), GONE_BOUND)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_a_running_cell_and_what_earlier_ones_left_end_with_the_server(surroundings: str, ending: str) -> None:
    with Client(wrap=SURROUNDINGS[surroundings]) as client:
        client.execute(LEFT_OVER)
        begin(client, ENDLESS["Python"])
        members = family(client)
        # Server, guardian, worker, and the process that was left over.
        assert len(members) == 5
        ENDINGS[ending](client)
        assert_over(client, members)


@pytest.mark.parametrize("ending", ["EOF", "SIGTERM"])
@pytest.mark.parametrize("kind", ["C", "await"])
def test_a_cell_that_takes_no_interrupt_does_not_hold_the_server(kind: str, ending: str) -> None:
    with Client() as client:
        begin(client, ENDLESS[kind])
        members = family(client)
        ENDINGS[ending](client)
        assert_over(client, members)


@pytest.mark.parametrize("ending", ["EOF", "SIGTERM"])
def test_an_idle_server_ends_with_what_was_left_over(ending: str) -> None:
    with Client() as client:
        client.execute(LEFT_OVER)
        members = family(client)
        assert len(members) == 5
        ENDINGS[ending](client)
        assert_over(client, members)


@pytest.mark.parametrize("ending", ["EOF", "SIGTERM", "SIGINT", "SIGHUP"])
def test_requests_in_flight_are_answered_before_the_exit(ending: str) -> None:
    with Client() as client:
        cell = client.start_call("execute_python", code="print('begun', flush=True)\nwhile True: pass")
        run_id = active_run(client)
        said(client, run_id, "begun")
        waiting = client.start_call("python_run", run_id=run_id, wait=60)
        ENDINGS[ending](client)
        result = client.result(cell)["structuredContent"]
        assert (result["success"], result["error_code"], result["stdout"]) == (False, "CANCELLED", "begun\n")
        assert client.result(waiting)["structuredContent"]["error_code"] == "CANCELLED"
        assert client.wait(EXIT_BOUND) == 0


def test_requests_that_were_read_before_the_end_of_stdin_are_answered() -> None:
    with Client() as client:
        client.execute("1")
        requests = [client.start_call("execute_python", code=f"{number}") for number in range(3)]
        client.close_stdin()
        answers = [client.result(request)["structuredContent"] for request in requests]
        # One at a time: what does not run is refused, and nobody is left without an answer.
        ran = [number for number, answer in enumerate(answers) if answer["success"]]
        assert ran
        assert all(answers[number]["value"] == number for number in ran)
        assert {answer["error_code"] for answer in answers if not answer["success"]} <= {"BUSY"}
        assert client.wait(EXIT_BOUND) == 0


@pytest.mark.parametrize("ending", ["SIGTERM", "SIGINT", "SIGHUP", "EOF"])
def test_a_client_that_does_not_read_does_not_hold_the_server(ending: str) -> None:
    """Megabytes of answers wait, fewer than the server holds, and a cell runs."""
    with Client() as client:
        client.execute("1")
        size = len(client.answer(client.send("tools/list"))["result"]["tools"]) and len(client.received[-1].line)
        client.hold_reading()
        for _ in range(6_000_000 // size):
            client.send("tools/list")
        client.start_call("execute_python", code="open('marker', 'w').write('here\\n')\nwhile True: pass")
        content(client.cwd / "marker")
        members = family(client)
        assert len(members) == 4
        ENDINGS[ending](client)
        assert_over(client, members)
        # What is in the pipe ends in the middle of a line.
        client.close_stdout()


def test_a_client_that_never_reads_again_counts_as_gone() -> None:
    with Client("--limit", "unread_bytes=500000") as client:
        begin(client, ENDLESS["Python"])
        size = len(client.answer(client.send("tools/list"))["result"]["tools"]) and len(client.received[-1].line)
        members = family(client)
        client.hold_reading()
        with contextlib.suppress(BrokenPipeError, TimeoutError):
            for _ in range(2 * 500_000 // size):
                client.send("tools/list")
        assert_over(client, members)
        client.close_stdout()


def test_atexit_and_finally_of_the_session_run_at_the_end() -> None:
    with Client() as client:
        client.execute(
            "import atexit, pathlib\n"
            "folder = pathlib.Path.cwd()\n"
            "atexit.register(lambda: (folder / 'atexit').write_text('ran\\n'))"
        )
        client.close_stdin()
        assert client.wait(EXIT_BOUND) == 0
        assert content(client.cwd / "atexit") == "ran\n"


def test_a_session_that_was_closed_is_gone_before_the_answer() -> None:
    with Client() as client:
        client.execute(LEFT_OVER)
        # The worker and what it left; the guardian says that they are gone before it ends itself.
        members = carriers(client.cookie) - {client.process.pid}
        assert len(members) == 2
        client.structured("python_session_close", session_id=client.default_session())
        assert not any(map(living, members))
