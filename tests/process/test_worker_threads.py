"""Threads that a cell leaves behind, what they may do to later cells, and what a cell may do to the interpreter."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.worker_driver import EACH, EXTREMES, Gone, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with WorkerDriver(interpreter(request.param), tmp_path) as driver:
        driver.ready()
        driver.cell("import os, signal, sys, threading, time")
        yield driver


TIMERS = {
    "function": "threading.Timer(0.3, late).start()",
    "builtin": "threading.Timer(0.3, print, ['late']).start()",
    "method": "threading.Timer(0.3, Late().method).start()",
    "repeated": (
        "class Repeated(threading.Timer):\n    def run(self):\n"
        "        while not self.finished.wait(0.3): self.function()\nRepeated(0.3, late).start()"
    ),
}


@pytest.mark.parametrize("timer", TIMERS)
def test_a_timer_ends_with_its_cell(worker: WorkerDriver, timer: str) -> None:
    worker.cell("def late(): print('late')\nclass Late:\n    def method(self): print('late')")
    left = worker.cell(TIMERS[timer])
    assert (left.success, left.keep, left.background_threads) == (True, True, [])
    assert left.tasks_cancelled == (0 if timer == "repeated" else 1)
    assert worker.cell("time.sleep(0.4)").stdout == ""


def test_a_timer_of_a_library_stays(worker: WorkerDriver, tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(
        "import threading\ndef tick(): ticked.set()\nticked = threading.Event()\nthreading.Timer(0.1, tick).start()"
    )
    left = worker.cell("import library")
    assert (left.tasks_cancelled, left.keep) == (0, True)
    assert worker.cell("library.ticked.wait(10)").value is True


JOBS = {
    "submit": "jobs = [pool.submit(job, n) for n in range(10)]",
    "map": "jobs = pool.map(job, range(10))",
    "partial": "import functools\njobs = [pool.submit(functools.partial(job, n)) for n in range(10)]",
    "run_in_executor": (
        "import asyncio\nawait asyncio.sleep(0)\n"
        "jobs = [asyncio.get_running_loop().run_in_executor(pool, job, n) for n in range(10)]"
    ),
}


@pytest.mark.parametrize("way", JOBS)
def test_jobs_that_no_thread_has_begun_end_with_the_cell(worker: WorkerDriver, way: str) -> None:
    worker.cell(
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\nran = []\n"
        "gate = threading.Event()\ndef job(n):\n    gate.wait(0.1)\n    ran.append(n)"
    )
    left = worker.cell(JOBS[way])
    assert (left.success, left.keep) == (True, True)
    assert left.tasks_cancelled >= 9
    assert worker.cell("gate.set()\n[len(ran) <= 1, pool.submit(int, 5).result()]").value == [True, 5]


def test_jobs_of_a_library_stay(worker: WorkerDriver, tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\nimport threading\ngate = threading.Event()\n"
        "def job(n):\n    gate.wait(10)\n    return n\npool = ThreadPoolExecutor(1)\n"
        "def start(): return [pool.submit(job, n) for n in range(5)]"
    )
    left = worker.cell("import library\njobs = library.start()\nmine = library.pool.submit(lambda: 0)")
    assert (left.tasks_cancelled, left.keep) == (1, True)
    told = worker.cell("library.gate.set()\n[[job.result() for job in jobs], mine.cancelled()]")
    assert told.value == [[0, 1, 2, 3, 4], True]


@pytest.mark.parametrize("target", ["loop.run_forever", "lambda: loop.run_forever()"])
def test_tasks_on_a_loop_of_another_thread_end_with_their_cell(worker: WorkerDriver, target: str) -> None:
    worker.cell(
        "import asyncio\nloop = asyncio.new_event_loop()\nasync def late():\n"
        "    await asyncio.sleep(0.2)\n    print('late')\nasync def at_once(): return 5"
    )
    if "lambda" in target:
        # Code of the cell is at the bottom of that thread's stack.
        assert worker.cell(f"threading.Thread(target={target}, daemon=True).start()").keep is False
        return
    started = worker.cell(
        f"threading.Thread(target={target}, daemon=True, name='loop').start()\n"
        "asyncio.run_coroutine_threadsafe(at_once(), loop).result()"
    )
    assert (started.value, started.background_threads) == (5, ["loop"])
    left = worker.cell("f = asyncio.run_coroutine_threadsafe(late(), loop)\nNone")
    assert (left.tasks_cancelled, left.keep) == (1, True)
    again = worker.cell("time.sleep(0.3)\n[f.cancelled(), asyncio.run_coroutine_threadsafe(at_once(), loop).result()]")
    assert (again.value, again.stdout) == ([True, 5], "")
    stubborn = worker.cell(
        "async def stubborn():\n    while True:\n        try: await asyncio.sleep(60)\n"
        "        except asyncio.CancelledError: pass\nf = asyncio.run_coroutine_threadsafe(stubborn(), loop)\nNone"
    )
    assert (stubborn.success, stubborn.keep) == (False, False)
    assert "asyncio task" in stubborn.error


def test_a_thread_that_fails_is_told_of_once(worker: WorkerDriver) -> None:
    failed = worker.cell(
        "def fails(): raise ValueError('in a thread')\nt = threading.Thread(target=fails)\nt.start(); t.join()\n5"
    )
    assert (failed.value, failed.stderr.count("ValueError: in a thread")) == (5, 1)
    assert 'File "<repl:r2>", line 1, in fails' in failed.stderr
    quiet = worker.cell("t = threading.Thread(target=sys.exit, args=(3,))\nt.start(); t.join()\n6")
    assert (quiet.value, quiet.stderr, quiet.exit_code) == (6, "", None)
    hooked = worker.cell(
        "threading.excepthook = lambda told: 1 / 0\nt = threading.Thread(target=fails)\nt.start(); t.join()\n7"
    )
    assert (hooked.value, "ZeroDivisionError" in hooked.stderr) == (7, True)


def test_a_library_thread_has_no_part_in_the_contexts_of_later_cells(worker: WorkerDriver) -> None:
    worker.cell(
        "import contextvars\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "v = contextvars.ContextVar('v', default=0)\nv.set(1)\npool = ThreadPoolExecutor(1)\n"
        "old = contextvars.copy_context()\npool.submit(old.run, v.get).result()"
    )
    told = worker.cell("v.set(2)\n[pool.submit(old.run, v.get).result(), pool.submit(v.get).result(), v.get()]")
    assert told.value == [1, 0, 2]


def test_a_lock_that_a_cell_holds_is_held(worker: WorkerDriver) -> None:
    worker.cell("import logging\nlock = threading.Lock()\nlock.acquire()\nlogging._lock.acquire()")
    told = worker.cell("logging.warning('still')\nlock.locked()")
    assert (told.value, "still" in told.stderr) == (True, True)


def test_a_module_that_a_thread_still_imports_is_waited_for(worker: WorkerDriver, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(0.3)\nvalue = 4")
    left = worker.cell("t = threading.Thread(target=__import__, args=('slow',), name='importer')\nt.start()")
    assert (left.keep, left.background_threads) == (True, ["importer"])
    assert worker.cell("import slow\nslow.value").value == 4


def test_processes_of_pools_serve_cell_after_cell(worker: WorkerDriver) -> None:
    worker.cell(
        "import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor\ndef square(n): return n * n\n"
        "pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('fork'))"
    )
    for _again in range(2):
        used = worker.cell("list(pool.map(square, range(4)))")
        assert (used.value, used.keep) == ([0, 1, 4, 9], True)
    assert worker.cell("pool.shutdown()").background_threads == []


ALARM = "def ring(*_): raise TimeoutError('alarm')\nsignal.signal(signal.SIGALRM, ring)\n"


@pytest.mark.parametrize("wait", ["time.sleep(9)", "while True: pass", "import asyncio\nawait asyncio.sleep(9)"])
def test_an_alarm_ends_a_cell(worker: WorkerDriver, wait: str) -> None:
    for _again in range(2):
        rung = worker.cell(f"{ALARM}kept = 1\nsignal.setitimer(signal.ITIMER_REAL, 0.02)\n{wait}")
        assert (rung.error_type, rung.tasks_cancelled, rung.keep) == ("TimeoutError", 0, True)
        assert rung.error.endswith("TimeoutError: alarm")
        assert worker.cell("import asyncio\nawait asyncio.sleep(0)\nkept").value == 1


def test_alarms_at_any_moment_raise_in_cells_only(worker: WorkerDriver) -> None:
    # So many that each step of the worker's own around a cell meets some.
    worker.cell(
        "left = 200\ndef ring(*_):\n    global left\n    left -= 1\n"
        "    if left <= 0: signal.setitimer(signal.ITIMER_REAL, 0)\n    raise TimeoutError('alarm')\n"
        "signal.signal(signal.SIGALRM, ring)\nsignal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)"
    )
    rung = 0
    for _cell in range(2_000):
        told = worker.cell("left")
        assert told.keep is True
        assert told.error is None or told.error.endswith("TimeoutError: alarm"), told.error
        assert "repl_trio" not in (told.error or "") + told.stderr
        rung += told.error is not None
        if told.value is not None and told.value <= 0:
            break
    calm = worker.cell("left")
    assert (calm.value <= 0, calm.stderr) == (True, "")
    assert rung > 0


SHOWN = """
class Shown:
    def __init__(self, call): self.call = call
    def __repr__(self): return str(self.call())
class Rich(Shown):
    def __repr__(self): return 'plain'
    def _repr_markdown_(self): return str(self.call())
"""


@pytest.mark.parametrize(("kind", "place"), [("Shown", "repr"), ("Rich", "_repr_markdown_")])
def test_an_alarm_ends_what_shows_a_value(worker: WorkerDriver, kind: str, place: str) -> None:
    worker.cell(f"{ALARM}{SHOWN}")
    told = worker.cell(f"def call():\n    signal.setitimer(signal.ITIMER_REAL, 0.02)\n    time.sleep(9)\n{kind}(call)")
    assert f"{place} failed: TimeoutError: alarm" in told.return_value
    after = worker.cell("5")
    assert (told.error, after.value, after.stderr) == (None, 5, "")


def test_alarms_at_any_moment_of_showing_raise_there_only(worker: WorkerDriver) -> None:
    worker.cell(
        f"{SHOWN}left = 200\ndef ring(*_):\n    global left\n    left -= 1\n"
        "    if left <= 0: signal.setitimer(signal.ITIMER_REAL, 0)\n    raise TimeoutError('alarm')\n"
        "signal.signal(signal.SIGALRM, ring)\nsignal.setitimer(signal.ITIMER_REAL, 0.0021, 0.0021)"
    )
    rung = 0
    for kind in ("Shown", "Rich") * 1_000:
        # The next signal comes in any step of it.
        told = worker.cell(f"{kind}(lambda: sum(range(50_000)))")
        assert told.keep is True
        assert told.error is None or told.error.endswith("TimeoutError: alarm"), told.error
        assert "repl_trio" not in (told.error or "") + told.stderr
        rung += told.error is None and "TimeoutError" in told.return_value
        if worker.cell("left <= 0").value is True:
            break
    calm = worker.cell("left")
    assert (calm.value <= 0, calm.stderr) == (True, "")
    assert rung > 0


def test_an_alarm_between_cells_is_no_later_cells_trouble(worker: WorkerDriver) -> None:
    worker.cell(f"{ALARM}signal.setitimer(signal.ITIMER_REAL, 0.05)")
    worker.pause(0.5)
    told = worker.cell("5")
    assert (told.value, told.stderr.count("TimeoutError: alarm")) == (5, 1)
    assert "repl_trio" not in told.stderr


def test_a_signal_that_the_user_blocks_stays_blocked(worker: WorkerDriver) -> None:
    worker.cell(
        f"{ALARM}signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\nsignal.raise_signal(signal.SIGALRM)"
    )
    assert worker.cell("signal.SIGALRM in signal.sigpending()").value is True
    assert worker.cell("signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])").error_type == "TimeoutError"


def test_children_get_no_blocked_signals(worker: WorkerDriver) -> None:
    worker.cell(f"{ALARM}import subprocess")
    told = worker.cell("open('/proc/self/status').read().partition('SigBlk:')[2].split()[0]")
    child = worker.cell(
        "subprocess.run(['grep', 'SigBlk', '/proc/self/status'], capture_output=True, text=True).stdout"
    )
    assert told.value == child.value.split()[1] == "0" * 16


FUNCTIONS = {"settrace": "sys.gettrace", "setprofile": "sys.getprofile"}


@pytest.mark.parametrize("setter", FUNCTIONS)
@pytest.mark.parametrize("lead", ["", "import asyncio\nawait asyncio.sleep(0)\n"])
def test_trace_functions_see_cells_only(worker: WorkerDriver, lead: str, setter: str) -> None:
    worker.cell(f"seen = set()\ndef look(frame, *_):\n    seen.add(frame.f_code.co_filename)\nsys.{setter}(look)")
    worker.cell(f"{lead}def called(): return 1\ncalled()")
    worker.cell(f"{lead}called()")
    told = worker.cell(f"{lead}on = {FUNCTIONS[setter]}() is look\nsys.{setter}(None)\n[on, sorted(seen)]")
    assert told.value[0] is True
    assert "<repl:r3>" in told.value[1]
    ours = [name for name in told.value[1] if "/repl_trio/worker/" in name]
    # Those at the border are called and left while it is in force.
    assert {name.rpartition("/")[2] for name in ours} <= {"border.py", "source.py", "loop.py", "gate.py"}
    assert worker.cell(f"{FUNCTIONS[setter]}() is None").value is True


@pytest.mark.parametrize("setter", FUNCTIONS)
@pytest.mark.parametrize("lead", ["", "import asyncio\nawait asyncio.sleep(0)\n"])
def test_a_trace_function_that_raises_fails_its_cell_at_most(worker: WorkerDriver, lead: str, setter: str) -> None:
    worker.cell("kept = 1\ndef fails(*_): raise ValueError('traced')")
    traced = worker.cell(f"{lead}sys.{setter}(fails)")
    assert traced.keep is True
    assert traced.error is None or traced.error.endswith("ValueError: traced")
    for code in ("kept", "import asyncio\nawait asyncio.sleep(0)\nkept"):
        after = worker.cell(code)
        assert (after.value, after.stderr) == (1, "")


BROKEN = {
    "len": "import builtins\nbuiltins.len = None",
    "print": "import builtins\ndel builtins.print",
    "isinstance": "import builtins\nbuiltins.isinstance = builtins.getattr = builtins.list = builtins.set = None",
    "import": "import builtins\nbuiltins.__import__ = None",
    "modules": "kept_modules = dict(sys.modules)\nsys.modules.clear()\nsys.modules.update(sys=sys)",
    "our modules": "for name in list(sys.modules):\n    if 'repl_trio' in name: del sys.modules[name]",
    "main": "del sys.modules['__main__']",
    "finders": "sys.meta_path.clear()\nsys.path_hooks.clear()",
    "path": "sys.path = None",
    "gc": "import gc\ngc.callbacks.append(lambda *_: 1 / 0)\ngc.set_threshold(100)",
    "recursion": "sys.setrecursionlimit(50)",
    "hooks": "sys.excepthook = sys.unraisablehook = sys.displayhook = lambda *_: 1 / 0",
    "audit": "def watch(event, _):\n    if event == 'compile': raise RuntimeError('no')\nsys.addaudithook(watch)",
    "clock": "time.monotonic = lambda: 1 / 0",
}


#: What leaves the text of an error to its type: the standard library cannot make it any more.
WORDLESS = ("len", "isinstance", "import", "modules", "audit")


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
@pytest.mark.parametrize("harm", BROKEN)
def test_what_a_cell_breaks_is_its_own_code(worker: WorkerDriver, harm: str) -> None:
    worker.cell("kept = 1")
    broken = worker.cell(BROKEN[harm])
    assert (broken.success, broken.keep) == (True, True)
    failed = worker.cell("1 / 0")
    assert (failed.success, failed.keep) == (False, True)
    assert failed.error_type == ("RuntimeError" if harm == "audit" else "ZeroDivisionError")
    assert ("<repl:r4>" in failed.error) is (harm not in WORDLESS)
    told = worker.cell("import __main__\n__main__.kept" if harm == "main" else "kept")
    assert (told.value, told.keep) == (None if harm == "audit" else 1, True)
    assert worker.cell("import asyncio\nawait asyncio.sleep(0)").keep is True


def test_what_cannot_be_survived_ends_the_worker_and_never_hangs(worker: WorkerDriver) -> None:
    with pytest.raises(Gone) as gone:
        worker.cell("os.getpid = None")
    assert gone.value.status == 1
    assert "TypeError: 'NoneType' object is not callable" in gone.value.stderr


def test_our_modules_stay_the_ones_they_are(worker: WorkerDriver) -> None:
    worker.cell(BROKEN["our modules"])
    assert worker.cell("try: sh('exit 3')\nexcept ShError as e: status = e.result.returncode\nstatus").value == 3


HOSTILE = {
    "timer": "class Mine(threading.Timer):\n    def cancel(self): raise ValueError\n    join = cancel\n",
    "name": "class Mine(threading.Thread):\n    name = property(lambda self: 1 / 0, lambda self, name: None)\n",
    "number": "class Mine(threading.Thread):\n    name = 5\n",
}


@pytest.mark.parametrize("form", HOSTILE)
def test_threads_are_looked_at_past_their_own_methods(worker: WorkerDriver, form: str) -> None:
    worker.cell("never = threading.Event()")
    started = "Mine(9, late)" if form == "timer" else "Mine(target=never.wait, daemon=True)"
    extra = "" if form == "timer" else "threading.Thread(target=never.wait, daemon=True).start()"
    left = worker.cell(f"def late(): pass\n{HOSTILE[form]}{started}.start()\n{extra}")
    assert (left.success, left.keep) == (True, True)
    assert (left.tasks_cancelled, len(left.background_threads)) == ((1, 0) if form == "timer" else (0, 2))
    assert worker.cell("5").value == 5
