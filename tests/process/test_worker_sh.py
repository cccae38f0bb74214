"""`sh`: runs commands, shows and returns their output, ends with the shell, leaves nothing."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.process.worker_driver import BOUND, EACH, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")

LEFT = (
    "import os\n[sorted(os.listdir('/proc/self/fd')), os.path.exists('/proc/self/task'),"
    " open(f'/proc/self/task/{os.getpid()}/children').read().split(), sorted(os.listdir('/proc/self/task'))]"
)


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with WorkerDriver(interpreter(request.param), tmp_path) as driver:
        driver.ready()
        # The first call loads what it needs; descriptors and threads are compared with what is there afterwards.
        driver.cell("sh('true')")
        before = driver.cell(LEFT).value
        yield driver
        try:
            assert driver.cell(LEFT).value == before
        except OSError:
            assert driver.exit_status() is not None


def test_the_result_is_stdout_with_attributes(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "r = sh('echo out; echo err >&2')\n"
        "[r + '', r.stdout, r.stderr, r.returncode, r.ok, r.truncated, isinstance(r, str)]"
    )
    assert answer.value == ["out\n", "out\n", "err\n", 0, True, False, True]
    assert (answer.stdout, answer.stderr) == ("out\n", "err\n")
    assert worker.cell("sh('echo out')").return_value == "'out\\n'"
    assert worker.cell("import pickle\npickle.loads(pickle.dumps(r)).stderr").value == "err\n"


def test_a_list_runs_without_a_shell(worker: WorkerDriver) -> None:
    assert worker.cell("sh(['echo', '$HOME', 'a  b']) + ''").value == "$HOME a  b\n"
    assert worker.cell("from pathlib import Path\nsh(['cat', Path('/dev/null')]) + ''").value == ""
    assert worker.cell("sh(['no-such-command'])").error_type == "FileNotFoundError"


def test_a_failing_command_raises_unless_told_otherwise(worker: WorkerDriver) -> None:
    answer = worker.cell("sh('echo partly; echo broken >&2; exit 3')")
    assert answer.error_type == "ShError"
    assert "ShError: exit status 3: echo partly" in answer.error
    assert answer.error.endswith("\nbroken")
    assert "repl_trio" not in answer.error
    told = worker.cell(
        "try:\n    sh('echo partly; exit 3')\nexcept ShError as error:\n    r = error.result\n"
        "[r.returncode, r.ok, r.stdout, isinstance(error, RuntimeError) if False else True]"
    )
    assert told.value == [3, False, "partly\n", True]
    assert worker.cell("issubclass(ShError, RuntimeError) and issubclass(ShTimeout, TimeoutError)").value is True
    assert worker.cell("sh('exit 3', check=False).returncode").value == 3
    assert worker.cell("sh('kill -9 $$', check=False).returncode").value == -9
    assert "ended by SIGKILL" in worker.cell("sh('kill -9 $$')").error


def test_surroundings_of_a_command(worker: WorkerDriver, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert worker.cell("sh('pwd').strip() + ''").value == str(tmp_path)
    assert worker.cell("sh('pwd', cwd='sub').strip()").value == str(tmp_path / "sub")
    worker.cell("import os\nos.chdir('sub'); os.environ['MARK'] = 'seen'")
    assert worker.cell("sh('pwd; echo $MARK').split()").value == [str(tmp_path / "sub"), "seen"]
    assert worker.cell("sh('echo $MARK-$ONLY', env={'ONLY': 'this'}).strip()").value == "-this"
    assert worker.cell("sh('cat; wc -c').strip()").value == "0"
    assert worker.cell("[int(x) for x in sh('ps -o pgid= -p $$; echo $$').split()]").value[0] != worker.pid


def test_sh_a02_a_timeout_kills_the_group_and_keeps_what_came(worker: WorkerDriver, tmp_path: Path) -> None:
    answer = worker.cell("sh('sleep 600 & echo $! > pid; echo first; sleep 600', timeout=0.3)")
    assert answer.error_type == "ShTimeout"
    assert "killed after 0.3 s" in answer.error
    assert answer.stdout == "first\n"
    assert gone(int((tmp_path / "pid").read_text()))
    told = worker.cell(
        "try:\n    sh('echo first; sleep 600', timeout=0.3)\nexcept TimeoutError as error:\n"
        "    told = [error.result.stdout, error.result.returncode]\ntold"
    )
    assert told.value == ["first\n", -9]


WORK = ["exec sleep 600", "exec sleep 600 >/dev/null", "while :; do echo noise >&2 || exit; sleep 0.001; done"]


def test_sh_a01_it_returns_with_the_shell_when_a_background_child_holds_the_pipes(
    worker: WorkerDriver, tmp_path: Path
) -> None:
    for work in WORK:
        assert worker.cell(f"sh({background(work)!r}).stdout").value == "started\n"
        # What is in the group is gone with it.
        assert gone(int((tmp_path / "pid").read_text()))
        (tmp_path / "pid").unlink()


def test_sh_a01_the_time_limit_covers_everything(worker: WorkerDriver) -> None:
    assert worker.cell("sh('sleep 300', timeout=0.1)").error_type == "ShTimeout"
    assert worker.cell("sh('sleep 300 & sleep 300 & wait', timeout=0.001)").error_type == "ShTimeout"


@pytest.mark.parametrize("detach", ["setsid ", "nohup setsid "])
def test_sh_a05_it_returns_with_the_shell_when_a_detached_child_holds_the_pipes(
    worker: WorkerDriver, tmp_path: Path, detach: str
) -> None:
    for work in WORK:
        assert worker.cell(f"sh({background(work, detach)!r}).stdout").value == "started\n"
        pid = int((tmp_path / "pid").read_text())
        (tmp_path / "pid").unlink()
        if psutil.pid_exists(pid):
            # A guardian would find it; here is none.
            psutil.Process(pid).kill()


def background(work: str, detach: str = "") -> str:
    """A command that leaves this work behind in the background, its number in the file `pid`."""
    return f"{detach}sh -c 'echo $$ > pid; {work}' & while [ ! -s pid ]; do sleep 0.01; done; echo started"


def test_a_large_output_is_bounded_at_both_ends(worker: WorkerDriver) -> None:
    run_id = worker.start(
        "r = sh('echo FIRST; yes abcdefg | head -c 3000000; echo LAST')\nprint('told')\n"
        "[len(r), r[:6], r[-5:], r.truncated, 'bytes left out' in r]"
    )
    worker.wait_output("told\n")
    answer = worker.answer(run_id)
    size, first, last, truncated, marked = answer.value
    assert 1_048_576 < size < 1_048_700
    assert (first, last, truncated, marked) == ("FIRST\n", "LAST\n", True, True)
    assert len(answer.stdout) > 3_000_000


def test_sh_a03_output_is_live(worker: WorkerDriver, tmp_path: Path) -> None:
    run_id = worker.start("sh('echo now; while [ ! -e go ]; do sleep 0.01; done; echo then')\nNone")
    worker.wait_output("now\n")
    (tmp_path / "go").touch()
    assert worker.answer(run_id).stdout == "now\nthen\n"


def test_sh_a03_what_was_written_before_an_interrupt_is_shown(worker: WorkerDriver) -> None:
    run_id = worker.start("sh('echo half >&2; echo built part 1; sleep 600')")
    worker.wait_output("built part 1\n")
    worker.interrupt()
    answer = worker.answer(run_id)
    assert (answer.interrupted, answer.stdout, answer.stderr) == (True, "built part 1\n", "half\n")


def test_sh_a04_a_command_that_reads_finds_nothing_and_goes_on(worker: WorkerDriver) -> None:
    assert worker.cell("sh('cat; read x; test -t 0 || echo end').stdout").value == "end\n"


def test_sh_a02_an_interrupt_kills_and_reaps_the_group(worker: WorkerDriver, tmp_path: Path) -> None:
    run_id = worker.start("sh('sleep 600 & echo $! > pid; echo running; sleep 600')")
    worker.wait_output("running\n")
    worker.interrupt()
    answer = worker.answer(run_id)
    assert answer.interrupted
    assert answer.error.startswith("KeyboardInterrupt: interrupted")
    assert "repl_trio" not in answer.error
    assert gone(int((tmp_path / "pid").read_text()))


def test_prints_before_come_first(worker: WorkerDriver) -> None:
    assert worker.cell("print('a', end=''); sh('echo b'); print('c')").stdout == "ab\nc\n"


def test_bytes_that_are_no_utf8_are_replaced(worker: WorkerDriver) -> None:
    assert worker.cell("sh(\"printf 'a\\\\377b'\").stdout").value == "a\ufffdb"


def test_help_tells_an_agent_how_to_use_it(worker: WorkerDriver) -> None:
    told = worker.cell("help(sh); help(repl_source); help(repl_history)").stdout
    for word in ("timeout", "check", "ShError", ".returncode", "run_id", "previous cell"):
        assert word in told


def gone(pid: int) -> bool:
    """Whether a killed process is dead; it has a moment to die, and nobody here to reap it."""
    try:
        process = psutil.Process(pid)
        deadline = time.monotonic() + BOUND
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            psutil.wait_procs([process], timeout=0.05)
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
