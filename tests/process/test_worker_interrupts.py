"""Interrupts: they end user code, whatever it does and at whatever moment they come, and nothing else."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.interrupting import interrupted, lives_on, prepared
from tests.process.worker_driver import EACH, VERSIONS, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with prepared(interpreter(request.param), tmp_path) as driver:
        yield driver


BLOCKING = {
    "spin": "while True: pass",
    "sleep": "time.sleep(600)",
    "event": "threading.Event().wait()",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "queue": "queue.Queue().get()",
    "socket": "a, b = socket.socketpair(); a.recv(1)",
    "fifo": "import os; os.mkfifo('fifo'); open('fifo')",
    "join": "thread = threading.Thread(target=time.sleep, args=(600,), daemon=True); thread.start(); thread.join()",
    "child": "subprocess.run(['sleep', '600'])",
    "print": "while True: print('flood')",
    "regex": "import re; re.match('^(a+)+$', 'a' * 40 + 'b')",
    "await sleep": "await asyncio.sleep(600)",
    "await event": "await asyncio.Event().wait()",
    "await spin": "await spin()",
    "await busy": "await busy()",
    "await gather": "await asyncio.gather(spin(), asyncio.sleep(600))",
    "await task": "await asyncio.create_task(busy())",
    "await wait_for": "await asyncio.wait_for(spin(), 600)",
    "await blocking": "time.sleep(600); await asyncio.sleep(0)",
    "asyncio.run": "asyncio.run(asyncio.sleep(600))",
    "asyncio.run spin": "asyncio.run(spin())",
    "asyncio.run busy": "asyncio.run(busy())",
    "until_complete": "loop = asyncio.new_event_loop(); loop.run_until_complete(spin())",
    "forever": "loop = asyncio.new_event_loop(); loop.run_forever()",
    "sh": "sh('sleep 600')",
    "sh in async": "sh('sleep 600'); await asyncio.sleep(0)",
}


@pytest.mark.parametrize("code", BLOCKING.values(), ids=BLOCKING.keys())
@pytest.mark.parametrize("version", [VERSIONS[0], "3.13"])
def test_one_interrupt_ends_the_cell_and_keeps_the_state(version: str, code: str, tmp_path: Path) -> None:
    with prepared(interpreter(version), tmp_path) as worker:
        answer = interrupted(worker, code)
        assert not answer.success
        assert answer.error.startswith("KeyboardInterrupt: interrupted\nTraceback (most recent call last):\n")
        assert 'File "<repl:r2>", line ' in answer.error
        assert answer.error_type in ("KeyboardInterrupt", "asyncio.exceptions.CancelledError")
        assert "repl_trio" not in answer.error
        assert answer.keep
        lives_on(worker)


def test_finally_blocks_run_whole(worker: WorkerDriver) -> None:
    answer = interrupted(
        worker, "try:\n    print('running')\n    time.sleep(600)\nfinally:\n    time.sleep(0.05)\n    print('saved')"
    )
    assert "saved" in answer.stdout
    for wait in ("await asyncio.sleep(600)", "while True: pass"):
        answer = interrupted(
            worker,
            f"try:\n    print('running')\n    {wait}\nfinally:\n    await asyncio.sleep(0.05)\n"
            f"    print('saved')\nawait asyncio.sleep(0)",
        )
        assert "saved" in answer.stdout, wait
    lives_on(worker)


def test_a_swallowed_interrupt_is_told(worker: WorkerDriver) -> None:
    answer = interrupted(
        worker, "try:\n    print('running')\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    pass\n7"
    )
    assert (answer.success, answer.value, answer.interrupted) == (True, 7, True)


def test_asyncio_run_raises_keyboard_interrupt_as_ever(tmp_path: Path) -> None:
    with prepared(interpreter("3.13"), tmp_path) as worker:
        for main in ("asyncio.sleep(600)", "spin()", "busy()"):
            answer = interrupted(
                worker,
                f"try:\n    print('running')\n    asyncio.run({main})\nexcept KeyboardInterrupt:\n"
                f"    print('caught')\n7",
            )
            assert (answer.stdout.endswith("caught\n"), answer.value) == (True, 7), main


def test_an_error_of_the_clean_up_is_shown_with_the_interrupt(worker: WorkerDriver) -> None:
    answer = interrupted(worker, "try:\n    print('running')\n    time.sleep(600)\nfinally:\n    1/0")
    assert answer.error.startswith("Interrupted, and the cell then ended with this error:\nTraceback")
    assert answer.error_type == "ZeroDivisionError"


def test_a_second_interrupt_ends_what_ignored_the_first(worker: WorkerDriver) -> None:
    run_id = worker.start(
        "try:\n    print('running')\n    time.sleep(600)\nexcept KeyboardInterrupt:\n"
        "    print('ignored')\n    time.sleep(600)"
    )
    worker.wait_output("running\n")
    worker.interrupt()
    worker.wait_output("ignored\n")
    worker.interrupt()
    assert worker.answer(run_id).interrupted
    run_id = worker.start(
        "try:\n    print('running')\n    await asyncio.sleep(600)\n"
        "except asyncio.CancelledError:\n    print('ignored')\n"
        "    await asyncio.sleep(600)"
    )
    worker.wait_output("running\n")
    worker.interrupt()
    worker.wait_output("ignored\n")
    worker.interrupt()
    assert worker.answer(run_id).interrupted
    lives_on(worker)


def test_an_interrupted_repr_costs_the_preview_alone(worker: WorkerDriver) -> None:
    run_id = worker.start(
        "class Told:\n    def __repr__(self):\n        print('in repr')\n"
        "        while True: pass\n[1, Told(), Told(), 2]"
    )
    worker.wait_output("in repr\n")
    worker.interrupt()
    answer = worker.answer(run_id)
    assert answer.return_value == "[1, <Told object; its repr was interrupted>, <Told object>, 2]"
    assert (answer.success, answer.interrupted, answer.has_value) == (False, True, False)
    assert "in __repr__" in answer.error
    lives_on(worker)


def test_an_interrupted_text_of_an_exception_costs_that_alone(worker: WorkerDriver) -> None:
    run_id = worker.start(
        "class Told(Exception):\n    def __str__(self):\n        print('in str', flush=True)\n"
        "        while True: pass\nraise Told"
    )
    worker.wait_output("in str\n")
    worker.interrupt()
    answer = worker.answer(run_id)
    assert (answer.success, answer.error_type, answer.interrupted) == (False, "Told", True)
    assert "Told" in answer.error
    lives_on(worker)


def test_an_interrupt_between_runs_is_dropped(worker: WorkerDriver) -> None:
    for _again in range(20):
        worker.interrupt()
        answer = worker.cell("mark")
        assert (answer.value, answer.interrupted) == (41, False)


def test_an_interrupt_right_behind_the_first_execute_is_that_runs(tmp_path: Path) -> None:
    for _again in range(10):
        with WorkerDriver(interpreter("3.13"), tmp_path) as worker:
            worker.ready()
            run_id = worker.start("while True: pass")
            worker.interrupt()
            assert worker.answer(run_id).interrupted


def test_a_trio_run_is_ended_as_trio_itself_would(tmp_path: Path) -> None:
    # The tests' own environment: it has Trio.
    with prepared(sys.executable, tmp_path) as worker:
        worker.cell("import trio\nasync def spin():\n    while True: await trio.lowlevel.checkpoint()")
        for main in ("trio.sleep_forever", "spin"):
            for _again in range(5):
                answer = interrupted(worker, f"trio.run({main})")
                assert answer.error.startswith("KeyboardInterrupt: interrupted"), main
        answer = interrupted(worker, "async def busy():\n    while True: pass\ntrio.run(busy)")
        assert answer.error.startswith("KeyboardInterrupt: interrupted")
        assert worker.cell("trio.run(trio.sleep, 0)\nmark").value == 41


def test_an_interrupt_in_the_midst_of_importing_asyncio(tmp_path: Path) -> None:
    chance = random.Random(7)
    for _again in range(12):
        with WorkerDriver(interpreter("3.13"), tmp_path) as worker:
            worker.ready()
            run_id = worker.start("import asyncio\nwhile True: pass")
            worker.pause(0.06 * chance.random())
            answer = worker.interrupt_until_answer(run_id)
            assert answer.error.startswith("KeyboardInterrupt: interrupted")
            assert worker.cell("import asyncio\nawait asyncio.sleep(0)\n5").value == 5


def test_the_handler_is_put_back_for_the_next_run(worker: WorkerDriver) -> None:
    for code in ("signal.SIG_IGN", "signal.SIG_DFL", "lambda *_: None"):
        worker.cell(f"import signal\nsignal.signal(signal.SIGINT, {code})\nNone")
        interrupted(worker, "time.sleep(600)")
    worker.cell("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nNone")
    interrupted(worker, "time.sleep(600)")
    lives_on(worker)


def test_a_handler_of_the_cells_own_works_while_it_runs(worker: WorkerDriver) -> None:
    run_id = worker.start(
        "import signal\nseen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1))\nprint('running')\n"
        "while not seen: time.sleep(0.001)\nseen"
    )
    worker.wait_output("running\n")
    worker.interrupt()
    answer = worker.answer(run_id)
    assert (answer.value, answer.interrupted) == ([1], False)


def test_asyncio_in_debug_mode_loses_no_step(worker: WorkerDriver) -> None:
    """In that mode asyncio runs other modules at each turn, and an interrupt falls into one of them now and then."""
    for number in range(15):
        run_id = worker.start("print('running')\nasyncio.run(spin(), debug=True)")
        worker.wait_output("running\n")
        worker.pause(0.02 + number * 0.0003)
        worker.interrupt()
        answer = worker.answer(run_id)
        assert answer.interrupted
        assert "Exception in callback" not in answer.stderr
    lives_on(worker)


STREAMS = """
async def echo(reader, writer):
    while data := await reader.read(99): writer.write(data)
server = await asyncio.start_server(echo, "127.0.0.1", 0)
reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
try:
    while True: writer.write(b"x" * 99); await reader.readexactly(99)
finally: writer.close(); server.close()
"""

KINDS = {
    "spin": "while True: pass",
    "calls": "def f(n): return f(n - 1) if n else 0\nwhile True: f(20)",
    "finally": "while True:\n    try: [i * i for i in range(50)]\n    finally: str(1)",
    "sleep": "time.sleep(600)",
    "print": "while True: print('flood')",
    "await sleep": "await asyncio.sleep(600)",
    "await spin": "await spin()",
    "await gather": "await asyncio.gather(spin(), spin(), asyncio.sleep(600))",
    "background": "t = asyncio.create_task(spin())\nawait asyncio.sleep(600)",
    "asyncio.run": "asyncio.run(spin())",
    "debug mode": "asyncio.run(spin(), debug=True)",
    "streams": STREAMS,
    "sh": "while True: sh('true')",
    "repr": "[SlowRepr(), SlowRepr()]",
    "text": "raise SlowText",
    "import": "while True:\n    import colorsys\n    del sys.modules['colorsys']",
    "one": "1 + 1",
    "await one": "await asyncio.sleep(0)",
}


def sweep(worker: WorkerDriver, code: str, rounds: int, chance: random.Random) -> None:
    """Interrupt a cell at random moments; each time it ends, and the worker is as before."""
    for _round in range(rounds):
        run_id = worker.start(code)
        worker.pause(chance.choice((0.0003, 0.002, 0.01)) * chance.random())
        answer = worker.interrupt_until_answer(run_id)
        assert answer.keep
        if not answer.success:
            assert answer.interrupted
            # The text of SlowText itself may be what was interrupted.
            assert answer.error.startswith(("KeyboardInterrupt: interrupted", "Interrupted", "Traceback", "SlowText: "))
        assert worker.cell("mark + 1").value == 42
        after = worker.cell("await asyncio.sleep(0)\nmark + 1")
        assert (after.value, after.interrupted) == (42, False)


@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_interrupts_at_random_moments(version: str, tmp_path: Path) -> None:
    with prepared(interpreter(version), tmp_path) as worker:
        for number, code in enumerate(KINDS.values()):
            sweep(worker, code, 6, random.Random(number))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", EACH)
def test_interrupts_at_many_random_moments(version: str, kind: str, tmp_path: Path) -> None:
    with prepared(interpreter(version), tmp_path) as worker:
        sweep(worker, KINDS[kind], 300, random.Random(f"{version} {kind}"))
