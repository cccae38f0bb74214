"""`sh` and `ash` with commands, arguments and surroundings that nobody would wish for. Both: they share the work."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.worker_driver import EACH, EXTREMES, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")

CALLS = {"sh": "sh", "ash": "await ash"}
#: What a call may leave behind: descriptors, children (a zombie is one as well), threads.
SETUP = """
import asyncio, gc, os, signal, subprocess, threading, time
def left():
    return [os.listdir('/proc/self/fd'), open('/proc/thread-self/children').read(), os.listdir('/proc/self/task')]
sh('true'); await ash('true'); sh('exit 1', check=False)
before = left()
def as_before():
    # A thread is joined a moment before the kernel has ended it.
    end = time.monotonic() + 10
    while left() != before and time.monotonic() < end: time.sleep(0.001)
    return left() == before
"""


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with prepared(request.param, tmp_path) as driver:
        yield driver
        assert driver.cell("as_before()").value is True, driver.cell("before, left()")


def prepared(version: str, cwd: Path) -> WorkerDriver:
    driver = WorkerDriver(interpreter(version), cwd)
    driver.ready()
    assert driver.cell(SETUP).success
    return driver


UNSTARTABLE = [
    (
        "['no-such-command', '-x']",
        "FileNotFoundError",
        "no such command (or its #! interpreter is missing): 'no-such-c",
    ),
    ("['ls -l']", "FileNotFoundError", "a str goes to the shell, a list is a program and its arguments: 'ls -l'"),
    ("'pwd', cwd='gone'", "FileNotFoundError", "no such working directory: 'gone'"),
    ("'x' * 3_000_000", "OSError", "the command has 3,000,000 bytes, more than the system takes"),
    ("['echo', 'x' * 3_000_000]", "OSError", "the command has 3,000,004 bytes, more than the system takes"),
    ("'echo a\\0b'", "ValueError", "NUL"),
    ("['echo', 'a\\0b']", "ValueError", "NUL"),
    ("['/']", "PermissionError", "Permission denied: '/'"),
    ("[]", "ValueError", "empty list"),
    ("['sleep', 1]", "TypeError", "argument 1 of the command is of type int"),
    ("b'ls'", "TypeError", "is of type bytes: give a str"),
    ("None", "TypeError", "is of type NoneType"),
    ("'ls', timeout=0", "ValueError", "timeout=0: give seconds above 0, or None"),
    ("'ls', timeout=float('nan')", "ValueError", "timeout=nan"),
]


@pytest.mark.parametrize("call", CALLS)
def test_what_cannot_be_started_is_told_in_words(worker: WorkerDriver, call: str) -> None:
    for arguments, kind, words in UNSTARTABLE:
        answer = worker.cell(f"{CALLS[call]}({arguments})")
        assert answer.error_type == kind, (arguments, answer)
        assert words in answer.error, arguments
        assert "repl_trio" not in answer.error, arguments
        assert len(answer.error) < 1_000, arguments


@pytest.mark.parametrize("call", CALLS)
def test_odd_surroundings_that_work(worker: WorkerDriver, tmp_path: Path, call: str) -> None:
    name = CALLS[call]
    assert worker.cell(f"({name}(['echo', 'x'], env={{}})) + ''").value == "x\n"
    assert worker.cell(f"({name}('echo ${{PATH:+set}}', env={{}})) + ''").success
    assert worker.cell(f"({name}('')) + ''").value == ""
    assert worker.cell(f"import pathlib\n({name}([pathlib.Path('/bin/echo'), pathlib.Path('p')])) + ''").value == "p\n"
    assert worker.cell(f"({name}(pathlib.Path('/bin/true'))) + ''").value == ""
    assert worker.cell(f"({name}('echo x', cwd=pathlib.Path('/'), timeout=None)) + ''").value == "x\n"
    closed = worker.cell(f"import sys\nsys.stdout.close(); sys.stderr = None\n({name}('echo z')) + ''")
    assert (closed.value, closed.stdout) == ("z\n", "z\n")
    # A folder that is gone is where the process still is.
    (tmp_path / "gone").mkdir()
    assert worker.cell(f"os.chdir('gone'); os.rmdir('../gone')\n({name}('echo y')) + ''").value == "y\n"
    worker.cell(f"os.chdir({str(tmp_path)!r})")


ODD_ENDS = [
    ("exec >&- 2>&-; sleep 0.05; exit 3", 3),
    ("exec >&-; echo on >&2; sleep 0.05; exit 4", 4),
    ("sh -c 'kill -STOP $$' & sleep 0.05; exit 5", 5),
    ("kill -SEGV $$", -11),
    ("kill -40 $$", -40),
    ("trap '' TERM INT HUP; kill -TERM $$; exit 6", 6),
]


@pytest.mark.parametrize("call", CALLS)
def test_odd_ends_have_their_status(worker: WorkerDriver, call: str) -> None:
    for command, status in ODD_ENDS:
        assert worker.cell(f"({CALLS[call]}({command!r}, check=False)).returncode").value == status, command
    assert "ended by signal 40" in worker.cell(f"{CALLS[call]}('kill -40 $$')").error
    # A stopped command takes no other signal than the one at the time limit.
    assert worker.cell(f"{CALLS[call]}('kill -STOP $$; echo never', timeout=0.1)").error_type == "ShTimeout"


@pytest.mark.parametrize("call", CALLS)
def test_closed_pipes_are_waited_for_without_work(worker: WorkerDriver, call: str) -> None:
    """A pipe at its end is always ready: whoever goes on asking spins."""
    answer = worker.cell(
        "import select\nreal, looks = select.poll, []\nclass Counting:\n"
        "    def __init__(self): self.poll_ = real(); self.register = self.poll_.register\n"
        "    def unregister(self, number): self.poll_.unregister(number)\n"
        "    def poll(self, wait): looks.append(wait); return self.poll_.poll(wait)\n"
        "select.poll = Counting\n"
        f"try: {CALLS[call]}('exec >&- 2>&-; sleep 0.3')\nfinally: select.poll = real\nlen(looks)"
    )
    assert 1 <= answer.value <= 20, answer


@pytest.mark.parametrize("call", CALLS)
def test_a_status_that_somebody_else_took_is_no_success(worker: WorkerDriver, call: str) -> None:
    worker.cell("handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    answer = worker.cell(f"{CALLS[call]}('echo told')")
    told = worker.cell(f"[({CALLS[call]}('true', check=False)).ok, ({CALLS[call]}('true', check=False)).returncode]")
    worker.cell("signal.signal(signal.SIGCHLD, handler)")
    assert (answer.error_type, answer.stdout) == ("ShError", "told\n")
    assert "exit status unknown" in answer.error
    assert told.value == [False, 255]


@pytest.mark.parametrize("call", CALLS)
def test_without_pidfd_it_is_the_same(worker: WorkerDriver, call: str) -> None:
    name = CALLS[call]
    worker.cell("saved = os.pidfd_open; del os.pidfd_open")
    assert worker.cell(f"({name}('exit 3', check=False)).returncode").value == 3
    assert worker.cell(f"({name}('sleep 600 & echo on')) + ''").value == "on\n"
    assert worker.cell(f"{name}('sleep 600', timeout=0.1)").error_type == "ShTimeout"
    assert worker.cell(f"({name}('exec >&- 2>&-; sleep 0.1; exit 4', check=False)).returncode").value == 4
    worker.cell("os.pidfd_open = saved")


@pytest.mark.parametrize("call", CALLS)
def test_without_descriptors_it_fails_and_leaves_none(worker: WorkerDriver, call: str) -> None:
    """From none to enough: each failure on the way closes what it had opened."""
    answer = worker.cell(
        "import resource\nlimits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))\nheld, codes = [], set()\n"
        "try:\n    while True: held.append(os.open('/dev/null', os.O_RDONLY))\nexcept OSError: pass\n"
        "while held:\n"
        f"    try: works = ({CALLS[call]}('echo works')).stdout\n"
        "    except OSError as error: codes.add(error.errno)\n"
        "    else: break\n"
        "    os.close(held.pop())\n"
        "tries = 0\n"
        "for number in held: os.close(number)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n[works, sorted(codes), len(held) > 40]"
    )
    assert answer.value == ["works\n", [24], True], answer


def test_many_threads_and_other_children_at_once(worker: WorkerDriver) -> None:
    """Each takes its own exit status and nobody else's."""
    answer = worker.cell(
        "others = [subprocess.Popen(['sh', '-c', f'exit {n}']) for n in range(8)]\n"
        "def work(n):\n"
        "    for _ in range(4): statuses.append((n, sh(f'exit {n}', check=False).returncode))\n"
        "statuses = []\nthreads = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for n in range(8): statuses.append((n, (await ash(f'exit {n}', check=False)).returncode))\n"
        "for thread in threads: thread.join()\n"
        "[len(statuses), all(n == status for n, status in statuses), [other.wait() for other in others]]"
    )
    assert answer.value == [40, True, list(range(8))]


def test_a_thread_that_goes_on_with_nothing_but_sh_is_one_of_the_cell(tmp_path: Path) -> None:
    with prepared("3.12", tmp_path) as worker:
        answer = worker.cell("threading.Thread(target=sh, args=('sleep 600',), name='busy').start()")
        assert not answer.keep
        assert "still running user code (busy)" in answer.error


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("version", EXTREMES)
def test_a_hundred_megabytes_pass_through_little_memory(version: str, call: str, tmp_path: Path) -> None:
    with prepared(version, tmp_path) as worker:
        worker.cell("import resource\ndef peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss")
        answer = worker.cell(
            f'start = peak()\nr = {CALLS[call]}(\'head -c 100000000 /dev/zero | tr "\\\\0" "\\\\377"\')\n'
            "[r.truncated, len(r) < 1_100_000, peak() - start]"
        )
        assert answer.value[:2] == [True, True]
        assert answer.value[2] < 24_000, "kilobytes"
        assert len(answer.stdout) == 100_000_000


def test_a_cut_inside_a_character_shows_no_half_of_it(tmp_path: Path) -> None:
    with prepared("3.12", tmp_path) as worker:
        for shift in range(4):
            padding = f"printf '%{shift}s'"
            command = f"{padding}; yes '\U0001f600' | tr -d '\\n' | head -c 2000000; {padding}"
            code = f"r = sh({command!r})\n'\ufffd' in r"
            run_id = worker.start(code)
            assert worker.answer(run_id).value is False, shift


@pytest.mark.parametrize("call", CALLS)
def test_output_that_nobody_takes_stops_neither_interrupt_nor_time_limit(tmp_path: Path, call: str) -> None:
    """The cell has put a full pipe where its output goes."""
    with prepared("3.12", tmp_path) as worker:
        run_id = worker.start(
            "print('running')\nr, w = os.pipe(); out = os.dup(1); os.dup2(w, 1)\n"
            f"try: {CALLS[call]}('yes')\nfinally: os.dup2(out, 1)"
        )
        worker.wait_output("running\n")
        worker.pause(0.1)
        worker.interrupt()
        assert worker.answer(run_id).interrupted
        assert worker.cell("[left()[1], sh('echo on') + '']").value == ["", "on\n"]


@pytest.mark.parametrize("call", CALLS)
def test_a_stream_of_the_cells_own_that_hangs_is_interrupted(tmp_path: Path, call: str) -> None:
    with prepared("3.12", tmp_path) as worker:
        run_id = worker.start(
            "import sys, time\nclass Hanging:\n    def flush(self):\n"
            "        if not hung: hung.append(1); os.write(1, b'running\\n'); time.sleep(600)\n"
            f"hung = []; sys.stdout = Hanging()\n{CALLS[call]}('true')"
        )
        worker.wait_output("running\n")
        worker.interrupt()
        assert worker.answer(run_id).interrupted


ENDLESS = [
    "sh('echo a; sleep 600')",
    "sh('while :; do echo flood; done')",
    "sh('sleep 600 & sleep 600'); await asyncio.sleep(0)",
    "for _ in range(10**6): sh('true')",
    "await ash('echo a; sleep 600')",
    "await ash('while :; do echo flood; done')",
    "await asyncio.gather(*map(ash, ['sleep 600 & sleep 600'] * 8))",
    "async def many(): await asyncio.gather(*map(ash, ['sleep 600'] * 8))\nasyncio.run(many())",
    "for _ in range(10**6): await ash('true')",
    "await asyncio.wait_for(ash('sleep 600'), 500)",
    "while True:\n    try: await ash('sleep 600', timeout=0.002)\n    except TimeoutError: pass",
]


@pytest.mark.parametrize("version", EXTREMES)
@pytest.mark.parametrize("rounds", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_interrupts_at_random_moments_leave_no_process_and_no_descriptor(
    version: str, rounds: int, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    with prepared(version, tmp_path) as worker:
        before = worker.cell("before").value
        for _ in range(rounds):
            code = chance.choice(ENDLESS)
            run_id = worker.start(f"print('running')\n{code}")
            worker.wait_output("running\n")
            worker.pause(chance.random() * chance.choice([0.001, 0.01, 0.05]))
            answer = worker.interrupt_until_answer(run_id, 1.0)
            assert (answer.interrupted, answer.success, answer.keep) == (True, False, True), (seed, code, answer)
            assert "repl_trio" not in answer.error, (seed, code)
            # An interrupt in the midst of asyncio.run leaves asyncio's own loop to the collector.
            after = worker.cell("collected = gc.collect()\n[left(), (await ash('echo on')) + '', sh('echo on') + '']")
            assert after.value == [before, "on\n", "on\n"], (seed, code)
