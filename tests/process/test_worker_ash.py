"""`ash`: what `sh` does, beside other tasks, and gone with its task. Odd commands: test_worker_sh_attacks.py."""

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.process.test_worker_sh import WORK, background, gone
from tests.process.worker_driver import EACH, EXTREMES, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")

SETUP = """
import asyncio, gc, os, subprocess, threading
def left():
    return [os.listdir('/proc/self/fd'), open('/proc/thread-self/children').read(), os.listdir('/proc/self/task')]
async def pid_of(name):
    while not (os.path.exists(name) and open(name).read()): await asyncio.sleep(0.01)
    return int(open(name).read())
await ash('true')
before = left()
"""
#: A command that says its number in the file `pid`, and then hangs with a child of its own.
HANGS = "'echo $$ > pid; sleep 600 & sleep 600'"


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with WorkerDriver(interpreter(request.param), tmp_path) as driver:
        driver.ready()
        assert driver.cell(SETUP).success
        yield driver
        assert driver.cell("left() == before").value is True, driver.cell("before, left()")


def ended(tmp_path: Path) -> bool:
    """Whether the command of `HANGS` is dead and reaped, and its group dead; that has a moment to die."""
    pid = int((tmp_path / "pid").read_text())
    (tmp_path / "pid").unlink()
    return not psutil.pid_exists(pid) and all(gone(one.pid) for one in psutil.process_iter() if _group(one.pid) == pid)


def _group(pid: int) -> int:
    try:
        # Behind the command's name, which may hold spaces: state, parent, group.
        state, _parent, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if state == "Z" else int(group)


SAME = [
    "'echo out; echo err >&2'",
    "'exit 3', check=False",
    "'echo partly; echo broken >&2; exit 3'",
    "'kill -9 $$'",
    "'echo first; echo second >&2; sleep 600', timeout=0.3",
    "['echo', '$HOME', 'a  b']",
    "'pwd; echo $MARK', cwd='/', env={'MARK': 'seen'}",
    "'yes abcdefg | head -c 3000000; echo LAST'",
    "\"printf 'a\\\\377b'\"",
    "'cat; echo end'",
]


def test_it_is_sh_in_options_result_errors_and_output(worker: WorkerDriver) -> None:
    told = (
        "told = None\ntry: r = {}({})\nexcept (ShError, ShTimeout) as error: r, told = error.result, repr(error)\n"
        "[type(r).__name__, hash(r.stdout), r.stderr, r.returncode, r.ok, r.truncated, told]"
    )
    for arguments in SAME:
        one, other = (worker.cell(told.format(call, arguments)) for call in ("sh", "await ash"))
        assert one.success, (arguments, one)
        assert other.value == one.value, arguments
        assert (other.stdout, other.stderr) == (one.stdout, one.stderr), arguments


def test_an_error_shows_the_users_lines_only(worker: WorkerDriver) -> None:
    answer = worker.cell("async def build():\n    return await ash('exit 3')\nawait build()")
    assert "line 2, in build\n    return await ash('exit 3')" in answer.error
    assert answer.error.endswith("ShError: exit status 3: exit 3")
    assert "worker" not in answer.error


def test_fifty_run_at_the_same_time(worker: WorkerDriver) -> None:
    """None ends before all have begun."""
    command = "touch began-$n; while [ $(ls | wc -l) -lt 50 ]; do sleep 0.05; done; echo $n"
    answer = worker.cell(
        f"results = await asyncio.gather(*(ash({command!r}, env={{**os.environ, 'n': str(n)}}) for n in range(50)))\n"
        "[int(r) for r in results] == list(range(50))"
    )
    assert answer.value is True, answer
    assert sorted(map(int, answer.stdout.split())) == list(range(50))


def test_other_tasks_go_on_and_output_is_live(worker: WorkerDriver, tmp_path: Path) -> None:
    run_id = worker.start(
        "async def other():\n    await pid_of('go'); open('went', 'w').close()\n"
        "(await asyncio.gather(ash('echo now; while [ ! -e went ]; do sleep 0.01; done; echo then'), other()))[0] + ''"
    )
    worker.wait_output("now\n")
    (tmp_path / "go").write_text("1")
    answer = worker.answer(run_id)
    assert (answer.value, answer.stdout) == ("now\nthen\n", "now\nthen\n")


def test_it_returns_with_the_shell_whoever_holds_the_pipes(worker: WorkerDriver, tmp_path: Path) -> None:
    for detach in ("", "setsid "):
        for work in WORK:
            assert worker.cell(f"(await ash({background(work, detach)!r})).stdout").value == "started\n"
            pid = int((tmp_path / "pid").read_text())
            (tmp_path / "pid").unlink()
            if not detach:
                assert gone(pid)
            elif psutil.pid_exists(pid):
                psutil.Process(pid).kill()


CANCELLED = {
    "cancel": "task = asyncio.create_task(ash({}))\nawait pid_of('pid'); task.cancel()\n"
    "try: await task\nexcept asyncio.CancelledError: how = 'cancelled'\nhow",
    "wait_for": "task = asyncio.ensure_future(pid_of('pid'))\n"
    "try: await asyncio.wait_for(asyncio.gather(task, ash({})), 0.5)\n"
    "except asyncio.TimeoutError: how = 'cancelled'\nhow",
    "gather": "async def fail():\n    await pid_of('pid'); raise LookupError\n"
    "both = asyncio.gather(fail(), task := asyncio.ensure_future(ash({})))\n"
    "try: await both\nexcept LookupError: task.cancel()\n"
    "await asyncio.wait([task]); how = 'cancelled' if task.cancelled() else task\nhow",
    "asyncio.run": "async def main():\n    task = asyncio.create_task(ash({}))\n    await pid_of('pid')\n"
    "asyncio.run(main()); 'cancelled'",
    "loop closed": "loop = asyncio.new_event_loop()\nasync def main():\n    global task\n"
    "    task = loop.create_task(ash({})); await pid_of('pid')\n"
    "loop.run_until_complete(main()); loop.close()\n"
    "loop.call_exception_handler = print; task._log_destroy_pending = False\n"
    "del loop, task; gc.collect(); 'cancelled'",
}


@pytest.mark.parametrize("way", CANCELLED)
def test_a_task_that_is_cancelled_takes_its_command_along(worker: WorkerDriver, way: str, tmp_path: Path) -> None:
    answer = worker.cell(CANCELLED[way].format(HANGS))
    assert answer.value == "cancelled", answer
    assert answer.stderr == ""
    assert ended(tmp_path)


def test_a_task_group_that_fails_takes_its_commands_along(worker: WorkerDriver, tmp_path: Path) -> None:
    if worker.cell("hasattr(asyncio, 'TaskGroup')").value is False:
        pytest.skip("no TaskGroup before 3.11")
    answer = worker.cell(
        f"async with asyncio.TaskGroup() as group:\n    group.create_task(ash({HANGS}))\n    await pid_of('pid')\n"
        "    group.create_task(ash('exit 3'))"
    )
    assert "ShError: exit status 3: exit 3" in answer.error
    assert ended(tmp_path)


def test_the_end_of_its_cell_takes_a_task_along(worker: WorkerDriver, tmp_path: Path) -> None:
    """Also one that runs no code of the cell's but the call itself, begun or not."""
    answer = worker.cell(f"task = asyncio.create_task(ash({HANGS}))\nawait pid_of('pid')\n'over'")
    assert (answer.value, answer.tasks_cancelled, answer.keep) == ("over", 1, True)
    assert ended(tmp_path)
    answer = worker.cell(f"task = asyncio.create_task(ash({HANGS}))\nawait asyncio.sleep(0)\ntask = None")
    assert (answer.tasks_cancelled, answer.background_tasks) == (1, [])
    (tmp_path / "pid").unlink(missing_ok=True)


@pytest.mark.parametrize("form", ["await ash({})", "asyncio.run(ash({}))", "await asyncio.gather(ash({}), ash('yes'))"])
def test_an_interrupt_kills_and_reaps_the_group(worker: WorkerDriver, form: str, tmp_path: Path) -> None:
    run_id = worker.start(form.format("'echo $$ > pid; sleep 600 & echo running; sleep 600'"))
    worker.wait_output("running\n")
    worker.interrupt()
    answer = worker.answer(run_id)
    assert (answer.interrupted, answer.keep) == (True, True)
    assert answer.error.startswith("KeyboardInterrupt: interrupted")
    assert "repl_trio" not in answer.error
    assert ended(tmp_path)
    assert worker.cell("(await ash('echo on')) + ''").value == "on\n"


def test_any_running_loop_will_do(worker: WorkerDriver) -> None:
    assert worker.cell("asyncio.run(ash('echo x')) + ''").value == "x\n"
    assert worker.cell("asyncio.run(ash('echo x'), debug=True) + ''").value == "x\n"
    in_thread = "def work(): results.append(asyncio.run(ash('echo y')) + '')\nresults = []\n"
    answer = worker.cell(f"{in_thread}t = threading.Thread(target=work); t.start(); t.join(); results")
    assert answer.value == ["y\n"]
    own = "loop = asyncio.new_event_loop()\nr = loop.run_until_complete(ash('echo z')); loop.close(); r + ''"
    assert worker.cell(own).value == "z\n"


def test_without_a_loop_the_error_names_sh(worker: WorkerDriver) -> None:
    answer = worker.cell("ash('echo never').send(None)")
    assert answer.error_type == "RuntimeError"
    assert "running asyncio loop" in answer.error
    assert "use sh(cmd)" in answer.error
    assert answer.stdout == ""


def test_under_trio_the_error_says_what_works(tmp_path: Path) -> None:
    with WorkerDriver(sys.executable, tmp_path) as worker:
        worker.ready()
        answer = worker.cell("import trio\nasync def main(): await ash('echo never')\ntrio.run(main)")
        assert answer.error_type == "RuntimeError"
        assert "trio.to_thread.run_sync(sh, cmd)" in answer.error
        said = worker.cell("async def main(): return await trio.to_thread.run_sync(sh, 'echo x')\ntrio.run(main) + ''")
        assert said.value == "x\n"


@pytest.mark.parametrize("version", EXTREMES)
def test_it_takes_no_exit_status_but_its_own(version: str, tmp_path: Path) -> None:
    """Beside asyncio's own processes, whose watchers wait for theirs, and Popen's."""
    with WorkerDriver(interpreter(version), tmp_path) as worker:
        worker.ready()
        answer = worker.cell(
            "import asyncio, subprocess\n"
            "async def other(n): return await (await asyncio.create_subprocess_shell(f'exit {n}')).wait()\n"
            "async def ours(n): return (await ash(f'exit {n}', check=False)).returncode\n"
            "popen = [subprocess.Popen(['sh', '-c', f'exit {n}']) for n in range(1, 9)]\n"
            "statuses = await asyncio.gather(*(work(n) for n in range(1, 9) for work in (ours, other)))\n"
            "[statuses == sorted([*range(1, 9)] * 2), [process.wait() for process in popen]]"
        )
        assert answer.value == [True, list(range(1, 9))], answer
        assert answer.stderr == ""
