"""What keeps SIGINT away does not keep the interrupt away, and what a cell does to SIGINT ends with the cell."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.interrupting import insist, lives_on, prepared
from tests.process.worker_driver import EACH, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with prepared(interpreter(request.param), tmp_path) as driver:
        yield driver


def in_system(worker: WorkerDriver) -> int:
    """Wait until the worker has given SIGINT up for an `os.system`; the pid of the command."""
    for _look in range(2_000):
        status = Path(f"/proc/{worker.pid}/status").read_text()
        ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
        children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        if ignored >> (signal.SIGINT - 1) & 1 and children:
            return int(children[0])
        worker.pause(0.005)
    raise AssertionError("no command was started")


def test_a_cell_in_os_system_ends_with_its_command(worker: WorkerDriver) -> None:
    run_id = worker.start("import os\nos.system('exec sleep 600')\nprint('went on')")
    command = in_system(worker)
    worker.interrupt()
    insist(worker)
    os.kill(command, signal.SIGINT)
    answer = worker.answer(run_id)
    assert answer.error.startswith("KeyboardInterrupt: interrupted")
    assert ", line 2, in <module>\n    os.system('exec sleep 600')" in answer.error
    assert (answer.stdout, answer.interrupted) == ("", True)
    lives_on(worker)


TAKEN = {
    "ignored": "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "handled": "signal.signal(signal.SIGINT, lambda *_: None)",
    "blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])",
}


@pytest.mark.parametrize("code", TAKEN.values(), ids=TAKEN.keys())
def test_a_cell_that_took_sigint_for_itself_is_ended_by_insisting(worker: WorkerDriver, code: str) -> None:
    for wait in ("time.sleep(600)", "while True: pass", "asyncio.run(spin())"):
        run_id = worker.start(f"import signal\n{code}\nprint('running')\n{wait}")
        worker.wait_output("running\n")
        worker.interrupt()
        # The first is not meant for it. Two that come close together are one to the kernel.
        answer = worker.signal_until_answer(run_id, signal.SIGURG)
        assert (answer.success, answer.interrupted) == (False, True), wait
        assert 'File "<repl:' in answer.error, wait
        lives_on(worker)


def test_the_first_insisting_leaves_a_handler_of_the_cells_own_in_peace(worker: WorkerDriver) -> None:
    run_id = worker.start(
        "import signal\nseen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(2))\n"
        "print('running')\nwhile not seen: time.sleep(0.001)\nprint('seen')\ntime.sleep(0.1)\n'ended by itself'"
    )
    worker.wait_output("running\n")
    worker.interrupt()
    worker.wait_output("seen\n")
    insist(worker)
    answer = worker.answer(run_id)
    assert (answer.value, answer.interrupted) == ("ended by itself", False)
    lives_on(worker)


def test_insisting_on_what_has_landed_changes_nothing(worker: WorkerDriver) -> None:
    run_id = worker.start(
        "try:\n    print('running')\n    time.sleep(600)\nfinally:\n    print('cleaning')\n    time.sleep(0.1)\n"
        "    print('saved')"
    )
    worker.wait_output("running\n")
    worker.interrupt()
    worker.wait_output("cleaning\n")
    insist(worker)
    answer = worker.answer(run_id)
    assert answer.stdout.endswith("saved\n")
    assert answer.interrupted
    for _again in range(20):
        insist(worker)
        answer = worker.cell("mark")
        assert (answer.value, answer.interrupted) == (41, False)


SWALLOWING = {
    "__del__": "class D:\n    def __del__(self): wait()\nD()",
    "weakref": "import weakref\nclass D: pass\nd = D(); r = weakref.ref(d, lambda _: wait()); del d",
    "await": "class D:\n    def __del__(self): wait()\nawait asyncio.sleep(0); D()",
}


@pytest.mark.parametrize("code", SWALLOWING.values(), ids=SWALLOWING.keys())
def test_insisting_meets_an_interrupt_that_the_interpreter_swallowed(worker: WorkerDriver, code: str) -> None:
    worker.cell("def wait():\n    print('running')\n    time.sleep(600)")
    run_id = worker.start(f"{code}\nprint('swallowed')\ntime.sleep(600)")
    worker.wait_output("running\n")
    worker.interrupt()
    worker.wait_output("swallowed\n")
    insist(worker)
    answer = worker.answer(run_id)
    assert answer.error.startswith("KeyboardInterrupt: interrupted")
    assert (answer.stdout, answer.stderr) == ("running\nswallowed\n", "")
    worker.cell("D = r = None")
    lives_on(worker)


SLOW_LOADING = """
import sys, time
class Look:
    seen = False
    def find_spec(self, name, path, target=None):
        frame = sys._getframe()
        while frame is not None and not Look.seen:
            if "ExtensionFileLoader" in frame.f_code.co_qualname and name.startswith("numpy"):
                Look.seen = True
                print("running")
                time.sleep(0.1)
            frame = frame.f_back
sys.meta_path.insert(0, Look())
import numpy
print("imported")
while True: time.sleep(0.01)
"""


def test_an_extension_module_is_loaded_whole_or_not_at_all(tmp_path: Path) -> None:
    # The tests' own environment: it has NumPy, which cannot be loaded a second time.
    with prepared(sys.executable, tmp_path) as worker:
        run_id = worker.start(SLOW_LOADING)
        worker.wait_output("running\n")
        worker.interrupt()
        worker.wait_output("imported\n")
        insist(worker)
        assert worker.answer(run_id).interrupted
        assert worker.cell("import numpy\nint(numpy.arange(4).sum())").value == 6
        lives_on(worker)


# -- what a cell leaves of the handling --------------------------------------------------------------------------


def test_a_late_interrupt_does_not_meet_the_handler_of_the_cell_before(worker: WorkerDriver) -> None:
    for code in ("signal.SIG_DFL", "lambda *_: print('late')"):
        worker.cell(f"import signal\nsignal.signal(signal.SIGINT, {code})\nNone")
        worker.interrupt()
        answer = worker.cell("mark")
        assert (answer.value, answer.interrupted, answer.stdout) == (41, False, "")


def test_an_interrupt_that_a_cell_had_blocked_is_not_the_next_cells(worker: WorkerDriver) -> None:
    # Long after a run an interrupt that meets a waiting frame is that frame's; here every moment is long after.
    worker.cell("sys.modules['_repl_trio.worker.generation'].LATE = 0.0")
    run_id = worker.start(
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nprint('running')\n"
        "while signal.SIGINT not in signal.sigpending(): time.sleep(0.001)\n7"
    )
    worker.wait_output("running\n")
    worker.interrupt()
    assert worker.answer(run_id).value == 7
    answer = worker.cell("mark")
    assert (answer.value, answer.interrupted) == (41, False)
