"""The one end of the server: in each state, whoever asks for it, in time, with exit status 0 and one line on stderr."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable

import pytest

from tests.e2e.client import ROOT, Client
from tests.e2e.states import STATES
from tests.e2e.watch import SURROUNDINGS, all_gone, begin, carriers, content, family

EXIT_BOUND = 8.0
"""seconds. To the exit; that it took less than the 3 that are promised is told by the line: no end by force."""
GONE_BOUND = 3.0
"""seconds. For the rest, after the exit."""

Ending = Callable[[Client], None]


def storm(client: Client) -> None:
    for _ in range(200):
        client.signal(signal.SIGINT)


def one_after_the_other(client: Client) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
        client.signal(number)
    client.close_stdin()


#: What asks for the end, and how the line names it.
ENDINGS: dict[str, tuple[Ending, str]] = {
    "EOF": (Client.close_stdin, "the client closed stdin"),
    "SIGTERM": (lambda client: client.signal(signal.SIGTERM), "SIGTERM"),
    "stdout closed": (Client.close_stdout, "the client no longer reads stdout"),
    "signals in a row": (one_after_the_other, "SIG(TERM|INT|HUP)"),
    "SIGINT storm": (storm, "SIGINT"),
}


def expected(why: str, runs: int, workers: int) -> str:
    """The line, as a pattern."""
    cancelled = f"{runs} {'run was' if runs == 1 else 'runs were'} cancelled, " if runs else ""
    ended = f"{workers} {'worker' if workers == 1 else 'workers'} ended, " if workers else ""
    return rf"repl-trio: ended: {why}; {cancelled}{ended}(\d+ bytes of answers were not read, )?\d\.\d s\n"


def own_words(client: Client) -> str:
    """What the server wrote to stderr, but for what it found of servers that others have killed meanwhile."""
    lines = client.stderr().splitlines(keepends=True)
    return "".join(line for line in lines if "that a server which is gone had left behind" not in line)


SINGLE = ("EOF", "SIGTERM", "stdout closed")
CASES = [
    *((state, ending) for state in STATES for ending in SINGLE),
    *(
        (state, ending)
        for state in ("opened", "cell running", "deaf cell")
        for ending in ENDINGS
        if ending not in SINGLE
    ),
]
# A server that has nothing to say does not notice.
CASES.remove(("nothing said", "stdout closed"))


@pytest.mark.parametrize(("state", "ending"), CASES)
def test_whatever_it_finds_it_is_in_time_and_tells_what_it_was(state: str, ending: str) -> None:
    reach, runs, workers = STATES[state]
    end, why = ENDINGS[ending]
    with Client(version=None) as client:
        reach(client)
        members = family(client)
        end(client)
        assert client.wait(EXIT_BOUND) == 0, client.stderr()
        said = own_words(client)
        all_gone(members | carriers(client.cookie), GONE_BOUND)
        # Nothing else was said, and it was no end by force or at the bound: all sessions went down one ladder together.
        found = re.fullmatch(expected(why, runs, workers), said)
        # On a slow machine the ladder that was under way may be over.
        assert found or (state == "ladder under way" and re.fullmatch(expected(why, 0, 0), said)), said
        client.close_stdout()  # an answer that nobody took ends in the middle


LATE = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, {int(signal.SIGTERM)})
late = Late()
from repl_trio.__main__ import main
sys.exit(main())
"""
"""A server that gets a signal when the interpreter has already taken its handlers away."""


def test_what_was_written_before_the_signal_is_answered() -> None:
    with Client() as client:
        client.signal(signal.SIGSTOP)
        # More than one read takes, and more answers than the server makes before it looks whether the client reads.
        asked = [client.send("tools/call", {"name": "python_session_list", "arguments": {}}) for _ in range(400)]
        run = client.start_call("execute_python", code="while True: pass")
        client.signal(signal.SIGTERM)
        client.signal(signal.SIGCONT)
        assert client.wait() == 0
        assert all(client.answered(request) for request in asked)
        assert client.answered(run)


def test_a_signal_while_the_interpreter_ends_changes_nothing() -> None:
    client = Client()
    client.command = [sys.executable, "-P", "-c", LATE]
    with client:
        client.close_stdin()
        assert client.wait(EXIT_BOUND) == 0


# -- before the runtime is there -------------------------------------------------------------------------------

LOADING = f"""
import importlib.abc, select, sys
sys.path.insert(0, {str(ROOT)!r})
from repl_trio.server import ending
made = []
real = ending.Ending.receive_signals
def receive_signals(self):
    made.append(self)
    real(self)
ending.Ending.receive_signals = receive_signals
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "trio":
            with open("loading", "w") as mark:
                mark.write("so\\n")
            select.select([made[0].wake], [], [], 60)
sys.meta_path.insert(0, Slow())
from repl_trio.__main__ import main
sys.exit(main())
"""
"""A server whose import of trio takes until a signal has come."""


def test_a_first_call_is_answered_when_a_signal_comes_before_the_runtime() -> None:
    client = Client()
    client.command = [sys.executable, "-P", "-c", LOADING]
    with client:
        cell = client.start_call("execute_python", code="1")
        content(client.cwd / "loading")
        members = family(client)
        client.signal(signal.SIGTERM)
        told = client.result(cell)["structuredContent"]
        assert (told["success"], told["error_code"]) == (False, "CANCELLED")
        assert client.wait(EXIT_BOUND) == 0
        all_gone(members | carriers(client.cookie), GONE_BOUND)
        assert re.fullmatch(expected("SIGTERM", 1, 0), own_words(client)), client.stderr()


# -- a stderr that takes nothing -------------------------------------------------------------------------------

UNREAD = (
    "import os, sys; reading, writing = os.pipe(); os.set_inheritable(reading, True); os.set_blocking(writing, False)\n"
    "try:\n    while True: os.write(writing, b'x' * 4096)\nexcept BlockingIOError: os.set_blocking(writing, True)\n"
    "os.dup2(writing, 2); os.close(writing); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Starts the server with a stderr that is full, and that somebody could read and does not."""

BROKEN = (
    "import os, sys; reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 2); os.close(writing)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)

TAKES_NOTHING = {
    "unread": [sys.executable, "-c", UNREAD],
    "full disk": ["sh", "-c", 'exec "$@" 2>/dev/full', "sh"],
    "closed": SURROUNDINGS["stderr closed"],
    "broken": [sys.executable, "-c", BROKEN],
}


@pytest.mark.parametrize("ending", ["EOF", "SIGTERM"])
@pytest.mark.parametrize("stderr", TAKES_NOTHING)
def test_a_stderr_that_takes_nothing_holds_nobody(stderr: str, ending: str) -> None:
    with Client("--log-level", "debug", wrap=TAKES_NOTHING[stderr]) as client:
        client.execute("1")
        begin(client, "while True: pass")
        members = family(client)
        ENDINGS[ending][0](client)
        assert client.wait(EXIT_BOUND) == 0
        all_gone(members | carriers(client.cookie), GONE_BOUND)
        assert client.stderr() == ""


def test_a_log_file_on_a_full_disk_holds_nobody() -> None:
    with Client("--log-level", "debug", "--log-file", "/dev/full") as client:
        client.execute("1")
        begin(client, "while True: pass")
        client.signal(signal.SIGTERM)
        assert client.wait(EXIT_BOUND) == 0
        assert re.fullmatch(expected("SIGTERM", 1, 1), own_words(client)), client.stderr()


def test_a_log_file_gets_the_line_as_well() -> None:
    with Client("--log-level", "info", "--log-file", "log") as client:
        client.execute("1")
        client.close_stdin()
        assert client.wait(EXIT_BOUND) == 0
        assert (client.cwd / "log").read_text().endswith(client.stderr())
        assert re.fullmatch(expected("the client closed stdin", 0, 1), client.stderr())
