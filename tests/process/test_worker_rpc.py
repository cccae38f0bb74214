"""The RPC of cells: who may ask, how many at once, and what interrupts and cancelled tasks leave behind."""

import json
import random
import signal
import sys

import pytest

from repl_trio.limits import DEFAULT
from repl_trio.wire.frames import EXIT_PROTOCOL
from tests.process.rpc_driver import Frame, RpcDriver, text, value
from tests.process.worker_driver import Answer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")

PENDING = "mcp._turn.exchange().pending"


def nothing_yet(_frame: Frame) -> None:
    """The server takes its time."""


# -- many at once ----------------------------------------------------------------------------------------------


def test_the_worker_keeps_back_what_is_over_the_limit(worker: RpcDriver) -> None:
    worker.reply = nothing_yet
    most = DEFAULT.rpc_pending
    run_id = worker.start(
        f"import asyncio\nr = await asyncio.gather(*(mcp.acall('s', 't', i=i) for i in range({most + 2})))\n"
        "[one.data for one in r]"
    )
    worker.wait_asked(most)
    worker.answer_rpc(worker.asked[0]["id"], text("", structuredContent=0))
    worker.wait_asked(most + 1)  # and no more: the last is asked when another has been answered
    worker.answer_rpc(worker.asked[1]["id"], text("", structuredContent=1))
    worker.wait_asked(most + 2)
    for number in range(2, most + 2):
        frame = worker.asked[number]
        worker.answer_rpc(frame["id"], text("", structuredContent=frame["params"]["arguments"]["i"]))
    assert value(worker.answer(run_id)) == list(range(most + 2))


def test_hundreds_at_once_get_each_its_own_answer(worker: RpcDriver) -> None:
    cell = "import asyncio\nr = await asyncio.gather(*(mcp.acall('s', 't', i=i) for i in range(500)))\n"
    assert value(worker.cell(cell + "[one.data['i'] for one in r] == list(range(500))")) is True


def test_threads_of_the_run_ask_side_by_side(worker: RpcDriver) -> None:
    cell = """
import asyncio, contextvars
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    jobs = [pool.submit(contextvars.copy_context().run, mcp.call, 's', 't', i=i) for i in range(200)]
    got = [job.result().data['i'] for job in jobs]
got == list(range(200))
"""
    assert value(worker.cell(cell)) is True


# -- who may ask -----------------------------------------------------------------------------------------------

REFUSED = {
    "a plain thread": (
        "import threading\nt = threading.Thread(target=lambda: got.append(attempt()))\nt.start(); t.join()",
        "does not carry its context",
    ),
    "a context of its own": ("import contextvars\ncontextvars.Context().run(lambda: got.append(attempt()))", "context"),
    "an earlier context": ("old.run(lambda: got.append(attempt()))", "code of run r1, which is over"),
    "a forked process": (
        "import os\nr, w = os.pipe()\nif not os.fork():\n    os.write(w, attempt().encode()); os._exit(0)\n"
        "os.wait()\ngot.append(os.read(r, 1000).decode())",
        "forked process",
    ),
}


@pytest.mark.parametrize("who", REFUSED)
def test_whoever_does_not_belong_to_the_run_is_refused(worker: RpcDriver, who: str) -> None:
    code, words = REFUSED[who]
    worker.cell(
        "import contextvars\nold = contextvars.copy_context()\ngot = []\ndef attempt():\n"
        "    try: return mcp.call('s', 't').text\n    except mcp.Error as e: return f'{e.code} {e.sent} {e}'"
    )
    if sys.version_info >= (3, 14) and who == "a plain thread":
        pytest.skip("threads may inherit the context here")
    run = worker.cell(code)
    assert run.success, run.error
    told = value(worker.cell("got"))
    assert len(told) == 1
    assert told[0].startswith("OUTSIDE_RUN no ")
    assert words in told[0]
    assert worker.asked == []


def test_a_finalizer_between_two_parts_of_a_frame_is_refused(plain: RpcDriver) -> None:
    # Writing a part alone is what a signal makes of a large frame; the collector may run right behind it.
    cell = """
import os
whole, seen = os.write, []
def part(number, frame):
    os.write = whole
    written = whole(number, frame[:10])
    try: mcp.call('s', 'finalizer')
    except mcp.Error as e: seen.append([e.code, e.sent])
    return written
os.write = part
seen.append(mcp.call('s', 't', x=1).data)
seen
"""
    assert value(plain.cell(cell)) == [["OUTSIDE_RUN", "no"], {"x": 1}]
    assert [frame["params"]["tool"] for frame in plain.asked] == ["t"]
    assert value(plain.cell(PENDING)) == 0


# -- interrupts and cancelling -------------------------------------------------------------------------------------


def test_an_interrupt_wakes_a_blocked_call_and_the_server_is_told(worker: RpcDriver) -> None:
    worker.reply = nothing_yet
    run_id = worker.start("mcp.call('s', 't')")
    worker.wait_asked(1)
    run = _interrupted(worker, run_id)
    assert run.interrupted
    assert "KeyboardInterrupt" in run.error
    assert worker.cancelled == [worker.asked[0]["id"]]
    # Too late: nobody waits any more.
    worker.answer_rpc(worker.asked[0]["id"], text("late"))
    worker.reply = lambda _frame: text("next")
    assert value(worker.cell("mcp.call('s', 't').text")) == "next"


def _interrupted(worker: RpcDriver, run_id: str) -> Answer:
    """Interrupt a run as the server does, insisting, until it has ended."""
    for number in (signal.SIGINT, signal.SIGURG) * 20:
        worker.signal(number)
        worker.let_go(0.1)
        if worker.has_result:
            return worker.answer(run_id)
    raise AssertionError("the run went on")


def test_an_interrupt_ends_every_call_of_an_async_cell(worker: RpcDriver) -> None:
    worker.reply = nothing_yet
    run_id = worker.start("import asyncio\nawait asyncio.gather(*(mcp.acall('s', 't') for i in range(32)))")
    worker.wait_asked(32)
    run = _interrupted(worker, run_id)
    assert run.interrupted
    assert run.keep
    assert sorted(worker.cancelled) == [frame["id"] for frame in worker.asked]
    assert value(worker.cell("1 + 1")) == 2


def test_a_thread_that_waits_is_let_go_when_its_cell_is_interrupted(worker: RpcDriver) -> None:
    worker.reply = nothing_yet
    run_id = worker.start(
        "import contextvars, threading, time\ncaught = []\ndef ask():\n    try: mcp.call('s', 't')\n"
        "    except mcp.Error as e: caught.append([e.code, e.sent])\n"
        "t = threading.Thread(target=contextvars.copy_context().run, args=(ask,))\nt.start()\ntime.sleep(100)"
    )
    worker.wait_asked(1)
    run = _interrupted(worker, run_id)
    assert run.interrupted
    assert run.keep, run.error
    assert value(worker.cell("t.join(); caught")) == [["CALL_CANCELLED", "unknown"]]


def test_a_cancelled_task_takes_its_own_call_back_and_no_other(worker: RpcDriver) -> None:
    def reply(frame: Frame) -> object:
        return None if frame["params"]["tool"] == "slow" else text("ok")

    worker.reply = reply
    cell = """
import asyncio
slow = asyncio.create_task(mcp.acall('s', 'slow'))
quick = (await mcp.acall('s', 'quick')).text
try: await asyncio.wait_for(mcp.acall('s', 'slow'), 0.01)
except asyncio.TimeoutError: quick += ' timeout'
slow.cancel()
try: await slow
except asyncio.CancelledError: quick += ' cancelled'
quick
"""
    assert value(worker.cell(cell)) == "ok timeout cancelled"
    slow = [frame["id"] for frame in worker.asked if frame["params"]["tool"] == "slow"]
    assert sorted(worker.cancelled) == slow


def test_a_task_that_nobody_awaits_ends_with_its_cell(worker: RpcDriver) -> None:
    worker.reply = nothing_yet
    run = worker.cell("import asyncio\nt = asyncio.create_task(mcp.acall('s', 't'))\nawait asyncio.sleep(0)")
    assert run.success
    assert run.tasks_cancelled == 1
    assert worker.cancelled == [frame["id"] for frame in worker.asked]
    assert value(worker.cell(f"[t.cancelled(), {PENDING}]")) == [True, 0]


@pytest.mark.parametrize("order", ["ts", "reversed(ts)", "sorted(ts, key=id)"])
def test_what_was_kept_back_is_never_sent_when_its_task_is_cancelled(worker: RpcDriver, order: str) -> None:
    worker.reply = nothing_yet
    most = DEFAULT.rpc_pending
    cell = (
        f"import asyncio\nts = [asyncio.create_task(mcp.acall('s', 't', i=i)) for i in range({10 * most})]\n"
        f"await asyncio.sleep(0)\nfor t in {order}: t.cancel()\n"
        f"await asyncio.wait(ts)\n[sum(t.cancelled() for t in ts), {PENDING}]"
    )
    assert value(worker.cell(cell)) == [10 * most, 0]
    assert [frame["params"]["arguments"]["i"] for frame in worker.asked] == list(range(most))
    assert sorted(worker.cancelled) == [frame["id"] for frame in worker.asked]


LOOPS = {
    "small": "while True: mcp.call('s', 't', n=[1] * 20)",
    "large": "while True: mcp.call('s', 't', n='x' * 500_000)",
    "async": "import asyncio\nwhile True: await asyncio.gather(*(mcp.acall('s', 't', n=i) for i in range(8)))",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_interrupts_at_any_moment_leave_no_request_behind(worker: RpcDriver, loop: str) -> None:
    chance = random.Random(7)
    for _again in range(30 if loop == "large" else 70):
        run_id = worker.start(LOOPS[loop])
        worker.wait_asked(len(worker.asked) + 1)
        worker.let_go(chance.random() * 0.01)
        run = _interrupted(worker, run_id)
        assert run.keep, run.error
        told = value(worker.cell(f"[{PENDING}, mcp._turn.exchange()._out, mcp.call('s', 't', x=1).data]"))
        assert told == [0, 0, {"x": 1}]


def test_a_handler_of_the_cells_own_may_bound_a_call(worker: RpcDriver) -> None:
    worker.reply = nothing_yet
    cell = f"""
import signal
def late(*_): raise TimeoutError('mine')
signal.signal(signal.SIGALRM, late)
got = []
for i in range(20):
    signal.setitimer(signal.ITIMER_REAL, 0.0005 * (i + 1))
    try: mcp.call('s', 't', x=['y' * 1000] * 200)
    except TimeoutError as e: got.append(str(e))
[got == ['mine'] * 20, {PENDING}]
"""
    assert value(worker.cell(cell)) == [True, 0]
    assert sorted(worker.cancelled) == [frame["id"] for frame in worker.asked]


def test_a_signal_handler_may_ask_while_a_call_waits(worker: RpcDriver) -> None:
    first: list[int] = []

    def reply(frame: Frame) -> object:
        if frame["params"]["tool"] == "outer":
            first.append(frame["id"])
            return None
        worker.answer_rpc(first[0], text("outer"))
        return text("inner")

    worker.reply = reply
    cell = """
import signal
signal.signal(signal.SIGALRM, lambda *_: got.append(mcp.call('s', 'inner').text))
got = []
signal.setitimer(signal.ITIMER_REAL, 0.05)
got.append(mcp.call('s', 'outer').text)
got
"""
    assert value(worker.cell(cell)) == ["inner", "outer"]


# -- frames ----------------------------------------------------------------------------------------------------


def test_an_answer_that_nobody_waits_for_is_dropped(worker: RpcDriver) -> None:
    for number in (1, 99):
        worker.answer_rpc(number, text("what"))
    assert value(worker.cell("1 + 1")) == 2
    assert value(worker.cell("mcp.call('s', 't', a=1).data")) == {"a": 1}
    worker.answer_rpc(worker.asked[0]["id"], text("twice"))
    assert value(worker.cell("mcp.call('s', 't', a=2).data")) == {"a": 2}


@pytest.mark.parametrize(
    "broken", ['{"id": 1}', '{"id": "1", "result": "1", "error": null}', '{"id": 1, "result": 1, "error": null}']
)
def test_a_broken_answer_ends_the_worker(plain: RpcDriver, broken: str) -> None:
    plain.send_bytes(json.dumps({"frame": "rpc_result", **json.loads(broken)}).encode() + b"\n")
    assert plain.exit_status() == EXIT_PROTOCOL
