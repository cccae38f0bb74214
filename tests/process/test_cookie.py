"""The mark of a server in the environment of what it starts: read back exactly, and matched by nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from repl_trio.process import cookie

NAP = [sys.executable, "-I", "-S", "-c", "import time; print('here', flush=True); time.sleep(600)"]


def gone_server() -> cookie.Cookie:
    """The mark of a server that has been this process in another life."""
    mine = cookie.mine()
    assert mine is not None
    return cookie.Cookie(mine.server, mine.start - 1, mine.place)


@contextmanager
def napping(environment: dict[str, str]) -> Iterator[psutil.Process]:
    """A process that sleeps, with exactly this environment."""
    with subprocess.Popen(NAP, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def test_a_cookie_is_read_back() -> None:
    mine = cookie.mine()
    assert mine is not None
    read = cookie.Cookie.parse(mine.text)
    assert read is not None
    assert (read.server, read.start, read.place) == (os.getpid(), mine.start, mine.place)


@pytest.mark.parametrize("text", ["", "1", "1.2", "1.2.", ".2.x", "x.2.y", "1.-2.y", "1.2." + "x" * 200, "½.1.x"])
def test_what_is_no_cookie(text: str) -> None:
    assert cookie.Cookie.parse(text) is None


def test_what_a_server_that_is_gone_left_is_killed() -> None:
    with napping({cookie.NAME: gone_server().text}) as process:
        assert cookie.sweep() >= 1
        assert process.wait(10) == -9


def test_what_must_not_be_killed() -> None:
    mine, gone = cookie.mine(), gone_server()
    assert mine is not None
    boot, _, rest = gone.place.partition(".")
    environments = {
        "of a living server": {cookie.NAME: mine.text},
        "of another boot": {cookie.NAME: f"{gone.server}.{gone.start}.{boot[::-1]}.{rest}"},
        "no cookie": {cookie.NAME: "1"},
        "under another name": {f"OTHER_{cookie.NAME}": gone.text},
    }
    with ExitStack() as stack:
        processes = {what: stack.enter_context(napping(env)) for what, env in environments.items()}
        cookie.sweep()
        assert not [what for what, process in processes.items() if process.status() == psutil.STATUS_ZOMBIE]
