"""asyncio in cells: one loop and one context, what a cell does to the loop, and what a cell leaves on it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.worker_driver import EACH, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")

AWAIT = "await asyncio.sleep(0)\n"


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with WorkerDriver(interpreter(request.param), tmp_path) as driver:
        driver.ready()
        driver.cell("import asyncio, os, sys, time")
        yield driver


def test_one_context_for_cells_and_a_copy_for_tasks(worker: WorkerDriver) -> None:
    worker.cell("import contextvars\nv = contextvars.ContextVar('v')\ntoken = v.set(1)")
    seen = worker.cell(
        "async def task():\n    before = v.get()\n    v.set(99)\n    return before\n"
        "[await asyncio.create_task(task()), v.get(), await asyncio.to_thread(v.get)]"
    )
    assert seen.value == [1, 1, 1]
    assert worker.cell("async def direct(): v.set(5)\nawait direct()\nv.get()").value == 5
    assert worker.cell("v.get()").value == 5
    assert worker.cell("asyncio.run(direct())\nv.set(6)\nv.get()").value == 6
    assert worker.cell(AWAIT + "v.get()").value == 6


def test_the_loop_of_a_cell_without_await_is_the_loop_of_one_with_it(worker: WorkerDriver) -> None:
    worker.cell(
        "import warnings; warnings.simplefilter('ignore')\nloop = asyncio.get_event_loop()\nq = asyncio.Queue()"
    )
    assert worker.cell("loop.run_until_complete(q.put(4))\nawaited = loop.create_task(q.get())").success
    assert worker.cell("[asyncio.get_running_loop() is loop, await awaited]").value == [True, 4]
    assert worker.cell("asyncio.get_event_loop() is loop").value is True


def test_what_is_open_in_one_cell_serves_in_the_next(worker: WorkerDriver) -> None:
    opened = worker.cell(
        "lines = []\nasync def answer(reader, writer):\n"
        "    lines.append(await reader.readline())\n    writer.write(b'HI\\n')\n    await writer.drain()\n"
        "    writer.close()\n"
        "server = await asyncio.start_server(answer, '127.0.0.1', 0)\nlock = asyncio.Lock()\nawait lock.acquire()\n"
        "future = asyncio.get_running_loop().create_future()"
    )
    assert (opened.success, opened.stderr) == (True, "")
    assert worker.cell("future.set_result(lock.locked())\nlock.release()").success
    answered = worker.cell(
        "reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())\n"
        "writer.write(b'hi\\n')\nawait writer.drain()\n[(await reader.readline()).decode(), await future]"
    )
    assert answered.value == ["HI\n", True]
    assert worker.cell("async with lock: lines.append(b'in')\nserver.close()\nlen(lines)").value == 2


def test_a_connection_whose_reader_is_cancelled_with_its_cell_says_nothing(worker: WorkerDriver) -> None:
    left = worker.cell(
        "async def wait(reader, writer): await reader.read()\n"
        "server = await asyncio.start_server(wait, '127.0.0.1', 0)\n"
        "reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())\nawait asyncio.sleep(0.05)"
    )
    assert (left.tasks_cancelled, left.stderr) == (1, "")


RUNS = {
    "asyncio.run": "asyncio.run(asyncio.sleep(0, 5))",
    "Runner": "r = asyncio.Runner()\nx = r.run(asyncio.sleep(0, 4))\nx + (r.run(asyncio.sleep(0, 1)), r.close())[0]",
    "own loop": "l = asyncio.new_event_loop()\nx = l.run_until_complete(asyncio.sleep(0, 5))\nl.close()\nx",
    "own current loop": (
        "l = asyncio.new_event_loop()\nasyncio.set_event_loop(l)\n"
        "x = l.run_until_complete(asyncio.sleep(0, 5))\nl.close()\nx"
    ),
    "in a thread": (
        "import concurrent.futures as f\nwith f.ThreadPoolExecutor(1) as pool:\n"
        "    x = pool.submit(asyncio.run, asyncio.sleep(0, 5)).result()\nx"
    ),
}


@pytest.mark.parametrize("way", RUNS)
def test_loops_of_the_users_own_get_along_with_ours(worker: WorkerDriver, way: str) -> None:
    if way == "Runner" and worker.cell("hasattr(asyncio, 'Runner')").value is False:
        pytest.skip("no asyncio.Runner before 3.11")
    for lead in ("", f"async def lead(): {AWAIT}"):
        assert worker.cell(f"{lead}\n{RUNS[way]}").value == 5
        assert worker.cell(f"{AWAIT}keep = asyncio.get_running_loop()").success
        assert worker.cell(RUNS[way]).value == 5
        assert worker.cell(f"{AWAIT}asyncio.get_running_loop() is keep").value is True


def test_asyncio_run_below_a_running_loop_is_refused_and_harms_nothing(worker: WorkerDriver) -> None:
    for code in ("async def main(): asyncio.run(asyncio.sleep(0))\nasyncio.run(main())", f"{AWAIT}asyncio.run(main())"):
        refused = worker.cell(code)
        assert "cannot be called from a running event loop" in refused.error
        assert "repl_trio" not in refused.error + refused.stderr
    after = worker.cell(f"{AWAIT}5")
    assert (after.value, "repl_trio" in after.stderr) == (5, False)


HARM = {
    "closed": "loop.close()",
    "stopped while it rests": "loop.stop()",
    "stopped while it runs": f"asyncio.get_running_loop().stop()\n{AWAIT}",
    "stopped at the end": f"{AWAIT}asyncio.get_running_loop().stop()",
    "closed while it runs": f"{AWAIT}asyncio.get_running_loop().close()",
    "task cancelled": "asyncio.current_task().cancel()\nawait asyncio.sleep(9)",
    "task cancelled at the end": f"{AWAIT}asyncio.current_task().cancel()",
    "all tasks cancelled": f"{AWAIT}[t.cancel() for t in asyncio.all_tasks()]",
    "task factory that fails": "loop.set_task_factory(lambda *a, **k: 1 / 0)",
    "task factory gone": "loop.set_task_factory(lambda loop, coro, **k: None)",
    "exception handler that fails": "loop.set_exception_handler(lambda *a: 1 / 0)",
    "no current loop": "asyncio.set_event_loop(None)",
    "another current loop": "asyncio.set_event_loop(asyncio.new_event_loop())",
    "debug": "loop.set_debug(True)",
    "executor shut down": f"{AWAIT}await loop.shutdown_default_executor()\nloop._default_executor = None",
}


@pytest.mark.parametrize("harm", HARM)
def test_what_a_cell_does_to_the_loop_is_no_later_cells_trouble(worker: WorkerDriver, harm: str) -> None:
    worker.cell(f"kept = 1\n{AWAIT}loop = asyncio.get_running_loop()")
    harmed = worker.cell(HARM[harm])
    assert harmed.keep is True
    assert (harmed.tasks_cancelled, harmed.background_tasks) == (0, [])
    for _again in range(2):
        after = worker.cell(
            f"{AWAIT}await asyncio.wait_for(asyncio.sleep(0), 5) if loop.get_task_factory() is None else 0\nkept"
        )
        assert (after.value, after.error, after.stderr) == (1, None, "")


def test_an_eager_task_factory(worker: WorkerDriver) -> None:
    if worker.cell("sys.version_info < (3, 12)").value:
        pytest.skip("new in 3.12")
    worker.cell(f"{AWAIT}asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)")
    worker.cell("async def at_once(): return 5\nasync def later():\n    await asyncio.sleep(0)\n    return 6")
    assert worker.cell("await asyncio.gather(at_once(), later(), asyncio.create_task(at_once()))").value == [5, 6, 5]
    assert "1/0" in worker.cell(f"1/0\n{AWAIT}").error
    left = worker.cell(f"async def long(): await asyncio.sleep(60)\nt = asyncio.create_task(long())\n{AWAIT}")
    assert (left.tasks_cancelled, left.keep) == (1, True)
    run_id = worker.start("print('begun', flush=True)\nwhile True: pass\nawait later()")
    worker.wait_output("begun")
    assert worker.interrupt_until_answer(run_id).interrupted


def test_policies_of_the_users(worker: WorkerDriver) -> None:
    told = worker.cell(
        "import warnings; warnings.simplefilter('ignore')\nmade = []\n"
        "class Policy(asyncio.DefaultEventLoopPolicy):\n    def new_event_loop(self):\n"
        "        made.append(1)\n        return super().new_event_loop()\n"
        "asyncio.set_event_loop_policy(Policy())\nasyncio.run(asyncio.sleep(0, 7))"
    )
    assert told.value == 7, told.error
    assert worker.cell(f"{AWAIT}asyncio.get_event_loop_policy().get_event_loop() is asyncio.get_running_loop()").value
    assert worker.cell("asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 3))").value == 3


NESTED = """\
import asyncio.base_events as base, asyncio.events as events
usual, usual_run = base.BaseEventLoop.run_until_complete, asyncio.run
def run_until_complete(self, future):
    if not self.is_running():
        return usual(self, future)
    future = asyncio.ensure_future(future, loop=self)
    task = asyncio.current_task(self)
    asyncio.tasks._leave_task(self, task)
    while not future.done():
        self._run_once()
    asyncio.tasks._enter_task(self, task)
    return future.result()
def run(main, **_options):
    loop = events._get_running_loop()
    return loop.run_until_complete(main) if loop else usual_run(main)
base.BaseEventLoop.run_until_complete = run_until_complete
asyncio.run = run
"""


def test_a_loop_that_was_patched_to_nest(worker: WorkerDriver) -> None:
    assert worker.cell(NESTED).success
    assert worker.cell(f"{AWAIT}asyncio.run(asyncio.sleep(0.01, 2)) + asyncio.run(asyncio.sleep(0, 1))").value == 3
    assert worker.cell("asyncio.run(asyncio.sleep(0, 4))").value == 4
    run_id = worker.start(f"{AWAIT}print('begun', flush=True)\nasyncio.run(asyncio.sleep(60))")
    worker.wait_output("begun")
    stopped = worker.interrupt_until_answer(run_id)
    assert (stopped.interrupted, stopped.keep) == (True, True)
    left = worker.cell(f"async def long(): await asyncio.sleep(60)\nt = asyncio.create_task(long())\n{AWAIT}")
    assert left.tasks_cancelled == 1
    assert worker.cell(f"{AWAIT}t.cancelled()").value is True


def test_nest_asyncio_harms_no_later_cell(tmp_path: Path) -> None:
    pytest.importorskip("nest_asyncio")
    with WorkerDriver(sys.executable, tmp_path) as worker:
        worker.ready()
        worker.cell("import asyncio, nest_asyncio\nnest_asyncio.apply()")
        for lead in ("", AWAIT):
            assert worker.cell(f"{lead}asyncio.run(asyncio.sleep(0.01, 3))").value == 3
            for code in ("asyncio.run(asyncio.sleep(60))", "while True: pass"):
                run_id = worker.start(f"{lead}print('begun', flush=True)\n{code}")
                worker.wait_output("begun")
                stopped = worker.interrupt_until_answer(run_id)
                assert (stopped.interrupted, stopped.keep) == (True, True)
        left = worker.cell(f"async def long(): await asyncio.sleep(60)\nt = asyncio.create_task(long())\n{AWAIT}")
        assert left.tasks_cancelled == 1
        assert worker.cell(f"{AWAIT}[t.cancelled(), await asyncio.sleep(0, 8)]").value == [True, 8]


def test_debug_mode_from_the_environment(tmp_path: Path) -> None:
    with WorkerDriver(interpreter("3.13"), tmp_path, {"PYTHONASYNCIODEBUG": "1"}) as worker:
        worker.ready()
        worker.cell(f"import asyncio\n{AWAIT}async def long(): await asyncio.sleep(60)")
        left = worker.cell(f"t = asyncio.create_task(long())\n{AWAIT}")
        assert (left.tasks_cancelled, left.stderr) == (1, "")
        assert worker.cell(f"{AWAIT}[t.cancelled(), asyncio.get_running_loop().get_debug()]").value == [True, True]


TIMERS = {
    "function": "loop.call_later(0.01, late)",
    "at": "loop.call_at(loop.time() + 0.01, late)",
    "soon": "loop.call_soon(loop.call_soon, late)\nloop.call_soon(loop.call_soon, loop.call_soon, late)",
    "lambda": "loop.call_later(0.01, lambda: seen.append('lambda'))",
    "partial": "import functools\nloop.call_later(0.01, functools.partial(functools.partial(late)))",
    "method": "loop.call_later(0.01, Late().method)",
    "callable": "loop.call_later(0.01, Late())",
    "builtin": "loop.call_later(0.01, print, 'late')",
    "context": "import contextvars\nloop.call_later(0.01, contextvars.copy_context().run, late)",
    "threadsafe": "loop.call_soon_threadsafe(loop.call_later, 0.01, late)",
}


@pytest.mark.parametrize("timer", TIMERS)
def test_whatever_a_cell_puts_off_ends_with_it(worker: WorkerDriver, timer: str) -> None:
    worker.cell(
        "seen = []\ndef late(): seen.append('late')\nclass Late:\n"
        "    def method(self): seen.append('method')\n    def __call__(self): seen.append('call')"
    )
    left = worker.cell(f"{AWAIT}loop = asyncio.get_running_loop()\nloop.is_running()\n{TIMERS[timer]}\nNone")
    assert left.success, left.error
    ran = worker.cell("len(seen)").value
    after = worker.cell("await asyncio.sleep(0.05)\nlen(seen)")
    assert (after.value, after.stdout) == (ran, "")
    if timer not in ("soon", "threadsafe"):
        assert (left.tasks_cancelled, ran) == (1, 0)


def test_a_hostile_callable_runs_nothing_when_it_is_looked_at(worker: WorkerDriver) -> None:
    worker.cell(
        "class Meta(type):\n    def __getattribute__(cls, name): print('asked'); raise RuntimeError(name)\n"
        "class Odd(metaclass=Meta):\n    def __getattribute__(self, name): print('asked'); raise RuntimeError(name)\n"
        "    def __call__(self): print('late')"
    )
    left = worker.cell(f"{AWAIT}asyncio.get_running_loop().call_later(0.01, odd := Odd())\nNone")
    assert (left.success, left.stdout, left.tasks_cancelled) == (True, "", 1)


def test_generators_are_closed_with_the_cell_that_lets_go_of_them(worker: WorkerDriver) -> None:
    worker.cell(
        "async def numbers():\n    try:\n        yield 1\n        yield 2\n    finally:\n"
        "        await asyncio.sleep(0.01)\n        print('closed')"
    )
    assert worker.cell("async for n in numbers(): break").stdout == "closed\n"
    assert worker.cell("kept = numbers()\nawait kept.__anext__()").stdout == ""
    assert worker.cell("[await kept.__anext__()]").value == [2]
    assert worker.cell("kept = None").stdout == "closed\n"


@pytest.mark.parametrize("times", [1, 2])
def test_a_task_may_swallow_its_cancellation_for_a_while(worker: WorkerDriver, times: int) -> None:
    left = worker.cell(
        f"async def stubborn():\n    for _ in range({times}):\n        try: await asyncio.sleep(60)\n"
        "        except asyncio.CancelledError: pass\n    await asyncio.sleep(60)\n"
        f"t = asyncio.create_task(stubborn())\n{AWAIT}"
    )
    assert (left.tasks_cancelled, left.keep) == (1, True)
    assert worker.cell("t.cancelled()").value is True


def test_a_clean_up_within_the_grace_ends_and_a_longer_one_is_cut_off(worker: WorkerDriver) -> None:
    worker.cell(
        "async def tidy(seconds):\n    try: await asyncio.sleep(60)\n    finally:\n"
        "        await asyncio.sleep(seconds)\n        print('tidy', seconds)"
    )
    left = worker.cell(f"ts = [asyncio.create_task(tidy(n)) for n in (0.02, 60)]\n{AWAIT}")
    assert (left.tasks_cancelled, left.keep, left.stdout) == (2, True, "tidy 0.02\n")
    assert worker.cell("[t.done() for t in ts]").value == [True, True]


def test_a_failed_task_is_told_of_once(worker: WorkerDriver) -> None:
    worker.cell(
        "async def fails(): raise ValueError('lost')\nt = asyncio.create_task(fails())\nawait asyncio.sleep(0.01)"
    )
    told = worker.cell("del t").stderr
    assert told.count("never retrieved") == told.count("ValueError: lost") == 1
    assert worker.cell("await asyncio.sleep(0.01)").stderr == ""


def test_a_coroutine_that_was_never_awaited_is_told_of_with_the_cells_line(worker: WorkerDriver) -> None:
    worker.cell("async def forgotten(): pass")
    told = worker.cell("x = 1\nforgotten()\nx")
    assert "<repl:r3>:2: RuntimeWarning: coroutine 'forgotten' was never awaited" in told.stderr
    # It hangs on the error's traceback and goes in the worker's own code.
    told = worker.cell(f"{AWAIT}asyncio.run(forgotten())")
    rest = worker.cell("1").stderr
    assert "coroutine 'forgotten' was never awaited" in told.stderr + rest
    assert "repl_trio" not in told.stderr + rest


WATCHERS = ["", "ThreadedChildWatcher", "PidfdChildWatcher", "SafeChildWatcher"]


@pytest.mark.parametrize("watcher", WATCHERS)
def test_exit_codes_of_children_across_cells(worker: WorkerDriver, watcher: str) -> None:
    if watcher and worker.cell("sys.version_info >= (3, 12)").value:
        pytest.skip("child watchers went with 3.12")
    if watcher:
        worker.cell(f"{AWAIT}asyncio.set_child_watcher(asyncio.{watcher}())")
    worker.cell(
        "async def start(code, **options):\n"
        "    return await asyncio.create_subprocess_exec('sh', '-c', code, **options)\n"
        "async def status(code): return await (await start(code)).wait()"
    )
    assert worker.cell("await asyncio.gather(*[status(f'exit {n}') for n in range(5)])").value == [0, 1, 2, 3, 4]
    worker.cell("p = await start('echo out; exit 6', stdout=asyncio.subprocess.PIPE)")
    # It ends while the loop rests. The watcher may reap it meanwhile.
    ended = worker.cell("try: os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)\nexcept ChildProcessError: pass")
    assert ended.keep is True
    assert worker.cell("[(await p.communicate())[0].decode(), p.returncode]").value == ["out\n", 6]
    assert worker.cell("asyncio.run(status('exit 3'))").value == 3
    assert worker.cell("await status('exit 4')").value == 4


def test_signal_handlers_of_the_loop_hear_what_comes_between_its_runs(worker: WorkerDriver) -> None:
    worker.cell(f"import signal\n{AWAIT}asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, print, 'heard')")
    assert worker.cell("os.kill(os.getpid(), signal.SIGUSR2)").success
    assert worker.cell("await asyncio.sleep(0.05)").stdout == "heard\n"


def test_groups_and_time_outs(worker: WorkerDriver) -> None:
    if worker.cell("sys.version_info < (3, 11)").value:
        assert worker.cell("await asyncio.wait_for(asyncio.sleep(9), 0.01)").error_type.endswith("TimeoutError")
        return
    grouped = worker.cell(
        "async def fails(n):\n    await asyncio.sleep(0)\n    raise ValueError(n)\n"
        "async with asyncio.TaskGroup() as group:\n    [group.create_task(fails(n)) for n in (1, 2)]"
    )
    assert grouped.error_type == "ExceptionGroup"
    assert all(word in grouped.error for word in ("(2 sub-exceptions)", "ValueError: 1", "ValueError: 2", "in fails"))
    assert "repl_trio" not in grouped.error
    caught = worker.cell(
        "try:\n    async with asyncio.TaskGroup() as group: group.create_task(fails(3))\n"
        "except* ValueError as errors: caught = [str(e) for e in errors.exceptions]\ncaught"
    )
    assert caught.value == ["3"]
    assert worker.cell("async with asyncio.timeout(0.01): await asyncio.sleep(9)").error_type == "TimeoutError"
    assert worker.cell(f"{AWAIT}5").value == 5


def test_what_a_library_awaits_is_not_asked(worker: WorkerDriver, tmp_path: Path) -> None:
    # As a proxy does that has no object to stand for.
    (tmp_path / "library.py").write_text(
        "class Steps:\n    def __getattr__(self, name): raise RuntimeError(name)\n"
        "    def __iter__(self): return self\n    def __next__(self): return None\n"
        "class Proxy:\n    def __await__(self): return Steps()\n"
        "async def work(): await Proxy()\n"
    )
    left = worker.cell(f"import library\ntask = asyncio.ensure_future(library.work())\n{AWAIT}")
    assert (left.success, left.keep, left.tasks_cancelled) == (True, True, 0)
    assert worker.cell(f"{AWAIT}task.cancel()").value is True


def test_a_loop_is_looked_at_past_what_a_cell_has_made_of_it(worker: WorkerDriver) -> None:
    broken = worker.cell(
        "def broken(*_): raise ValueError('broken')\nasync def forever(): await asyncio.sleep(99)\n"
        "loop = asyncio.get_running_loop()\nloop.get_exception_handler = loop.set_exception_handler = broken\n"
        f"task = asyncio.ensure_future(forever())\n{AWAIT}"
    )
    assert (broken.success, broken.keep, broken.tasks_cancelled) == (True, True, 1)
    assert worker.cell(f"{AWAIT}5").value == 5
