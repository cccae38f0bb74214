"""What is left at the end of a cell: asyncio tasks, timers, callbacks, threads."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.worker_driver import EACH, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with WorkerDriver(interpreter(request.param), tmp_path) as driver:
        driver.ready()
        driver.cell(
            "import asyncio, threading, time\nseen = []\nasync def late(n=0.2):\n"
            "    await asyncio.sleep(n)\n    seen.append(n)"
        )
        yield driver


def test_tasks_of_the_cell_are_cancelled(worker: WorkerDriver) -> None:
    answer = worker.cell("ts = [asyncio.create_task(late()) for _ in range(3)]\nawait asyncio.sleep(0)\n'ended'")
    assert (answer.value, answer.tasks_cancelled, answer.keep, answer.background_tasks) == ("ended", 3, True, [])
    assert worker.cell("[[t.cancelled() for t in ts], seen]").value == [[True] * 3, []]


def test_tasks_that_have_not_begun_and_nested_ones_are_cancelled(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "async def outer():\n    await asyncio.wait_for(late(60), 60)\n"
        "t = asyncio.create_task(outer())\nu = asyncio.create_task(asyncio.sleep(0))\nawait asyncio.sleep(0)"
    )
    assert answer.tasks_cancelled >= 1
    assert worker.cell("[t.cancelled(), u.done()]").value == [True, True]


def test_finally_of_a_cancelled_task_runs(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "async def tidy():\n    try:\n        await asyncio.sleep(60)\n    finally:\n"
        "        await asyncio.sleep(0)\n        print('tidied')\n"
        "t = asyncio.create_task(tidy())\nawait asyncio.sleep(0)"
    )
    assert (answer.stdout, answer.tasks_cancelled) == ("tidied\n", 1)


def test_a_task_that_will_not_end_clears_the_worker(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "async def stubborn():\n    while True:\n        try:\n            await asyncio.sleep(60)\n"
        "        except asyncio.CancelledError:\n            pass\n"
        "t = asyncio.create_task(stubborn())\nawait asyncio.sleep(0)"
    )
    assert (answer.success, answer.keep) == (False, False)
    assert "asyncio task of this cell" in answer.error


def test_a_task_that_fails_at_its_end_harms_nothing(worker: WorkerDriver) -> None:
    for failure in ("ValueError(1)", "SystemExit(3)", "KeyboardInterrupt()"):
        answer = worker.cell(
            "async def fails():\n    try:\n        await asyncio.sleep(60)\n"
            f"    finally:\n        raise {failure}\n"
            "t = asyncio.create_task(fails())\nawait asyncio.sleep(0)\n1"
        )
        assert (answer.success, answer.keep) == (True, True), failure
        assert worker.cell("await asyncio.sleep(0)\n5").value == 5


def test_timers_and_callbacks_of_the_cell_are_cancelled(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "from functools import partial\nloop = asyncio.get_running_loop() if await asyncio.sleep(0) is None else None\n"
        "loop.call_later(0.02, lambda: seen.append('timer'))\n"
        "loop.call_later(0.02, partial(lambda what: seen.append(what), 'partial'))\n"
        "loop.call_soon(lambda: seen.append('soon'))\nNone"
    )
    # What was due at once still ran, in the loop's last turn.
    assert answer.tasks_cancelled == 2
    assert worker.cell("await asyncio.sleep(0.05)\nseen").value == ["soon"]


def test_a_sync_cell_leaves_no_task_on_the_loop_either(worker: WorkerDriver) -> None:
    worker.cell("loop = asyncio.get_running_loop() if await asyncio.sleep(0) is None else None")
    assert worker.cell("t = loop.create_task(late())").tasks_cancelled == 1
    assert worker.cell("t.cancelled()").value is True


def test_a_cell_that_fails_or_is_left_by_exit_loses_its_tasks_too(worker: WorkerDriver) -> None:
    for end in ("1/0", "raise SystemExit(3)"):
        answer = worker.cell(f"t = asyncio.create_task(late())\nawait asyncio.sleep(0)\n{end}")
        assert (answer.success, answer.tasks_cancelled) == (False, 1)


def test_a_generator_the_user_keeps_stays_open(worker: WorkerDriver) -> None:
    worker.cell(
        "async def numbers():\n    for n in range(3):\n        await asyncio.sleep(0)\n"
        "        yield n\ng = numbers()\nawait g.__anext__()"
    )
    assert worker.cell("await g.__anext__()").value == 1


def test_library_tasks_stay_and_are_named(worker: WorkerDriver, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "lib.py").write_text(
        "import asyncio\nasync def reader():\n    while True:\n        await asyncio.sleep(0.01)\n"
    )
    answer = worker.cell(
        f"import sys; sys.path.append({str(site)!r})\nimport lib\n"
        "t = asyncio.create_task(lib.reader(), name='reader of lib')\nawait asyncio.sleep(0)"
    )
    assert (answer.tasks_cancelled, answer.background_tasks, answer.keep) == (0, ["reader of lib"], True)
    assert worker.cell("await asyncio.sleep(0.02)\nt.done()").value is False


def test_child_watchers_and_idle_pools_are_no_user_threads(worker: WorkerDriver) -> None:
    quick = (
        "async def quick(k):\n"
        "    p = await asyncio.create_subprocess_exec('sh', '-c', f'exit {k}')\n"
        "    return await p.wait()\n"
    )
    assert worker.cell(quick + "await asyncio.gather(*[quick(k) for k in range(8)])").value == list(range(8))
    for _again in range(6):
        answer = worker.cell("await quick(3)")
        assert (answer.value, answer.keep, answer.stderr) == (3, True, "")
    answer = worker.cell("await asyncio.to_thread(lambda: 7)")
    assert (answer.value, answer.keep) == (7, True)
    assert [name for name in answer.background_threads if name.startswith("asyncio_")]
    pool = worker.cell(
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)\nlist(pool.map(int, '12'))"
    )
    assert (pool.value, pool.keep) == ([1, 2], True)
    worker.send("shutdown")
    assert worker.exit_status() == 0


@pytest.mark.parametrize(
    "start",
    [
        "threading.Thread(target=work, name='my thread', daemon=True).start()",
        "threading.Thread(target=work, name='my thread').start()",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(1, thread_name_prefix='my thread')\n"
        "f = pool.submit(work)",
        "import _thread\n_thread.start_new_thread(work, ())\nbegun.wait()",
        "loop_future = asyncio.new_event_loop().run_in_executor(None, work)",
    ],
)
def test_a_user_thread_that_goes_on_clears_the_worker(start: str, tmp_path: Path) -> None:
    with WorkerDriver(interpreter("3.12"), tmp_path) as worker:
        worker.ready()
        answer = worker.cell(
            f"import asyncio, threading, time\nbegun = threading.Event()\ndef work():\n"
            f"    begun.set()\n    while True: time.sleep(0.01)\n{start}\nprint('body done')\n5"
        )
        assert (answer.success, answer.keep, answer.stdout) == (False, False, "body done\n")
        assert "is still running user code" in answer.error
        assert "join it" in answer.error
        if "my thread" in start:
            assert "my thread" in answer.error


def test_user_threads_that_end_within_the_grace_are_fine(worker: WorkerDriver) -> None:
    answer = worker.cell("threading.Thread(target=lambda: time.sleep(0.05)).start()\n5")
    assert (answer.success, answer.keep, answer.value, answer.background_threads) == (True, True, 5, [])


def test_a_library_thread_stays_and_is_named(worker: WorkerDriver) -> None:
    answer = worker.cell("threading.Thread(target=time.sleep, args=(600,), daemon=True, name='a library').start()\n5")
    assert (answer.success, answer.keep, answer.background_threads) == (True, True, ["a library"])


def test_the_workers_own_thread_shows_nowhere(worker: WorkerDriver) -> None:
    answer = worker.cell("[thread.name for thread in threading.enumerate()]")
    assert (answer.value, answer.background_threads) == (["MainThread"], [])


def test_long_lists_of_names_are_bounded(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "for n in range(150):\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True, name=f'{n}' + 'x' * 500).start()"
    )
    assert len(answer.background_threads) == 100
    assert max(map(len, answer.background_threads)) == 100
