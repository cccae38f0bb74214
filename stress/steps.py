"""What is done to a session: each step is one coroutine that leaves the model true, or raises `Gone`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from stress import cells, kernel
from stress.cells import Marks, choose
from stress.client import Message
from stress.session import Session

Step = Callable[[Session], Awaitable[None]]

STEP_BOUND = 30.0
"""seconds. The longest that a step can take, with every bound of the server in it used up."""
BUSY_PATIENCE = 5.0
"""seconds. How long the server lets a cell wait for the clean-up of the run before it."""


# -- cells that end by themselves ------------------------------------------------------------------------------


async def quick(session: Session) -> None:
    """A cell with a known value, which also shows the namespace."""
    await session.check_namespace(choose(cells.QUICK, session.rng))


async def failing(session: Session) -> None:
    """A cell that fails and keeps the namespace."""
    name = choose(cells.FAILING, session.rng)
    body, code = cells.FAILING[name]
    marks = session.new_marks()
    # A file of its own for the broken source: the mark would not be written at all.
    result = await session.run((cells.head(marks) if name != "syntax" else "") + body)
    session.freeze(marks)
    told = session.take(result)
    session.record.step(f"failing {name}", told)
    if not told.startswith(("not run", "refused", "WORKER_DIED")):
        right = result["error_code"] == code and result["state"] == "preserved"
        session.check_value(right, f"{session}: {name} ends with {told}")


async def fatal(session: Session) -> None:
    """A cell that ends its worker."""
    name = choose(cells.FATAL, session.rng)
    marks = session.new_marks(name)
    result = await session.run(cells.head(marks) + cells.FATAL[name])
    _stopped(session, marks)
    told = session.take(result)
    session.record.step(f"fatal {name}", told)
    if not told.startswith(("not run", "refused")):
        session.check_value(result["state"] == "cleared", f"{session}: {name} ends with {told}")


async def keep(session: Session) -> None:
    """A completed cell that leaves a child behind on purpose."""
    name = choose(cells.KEPT, session.rng)
    marks = session.new_marks()
    result = await session.run(cells.head(marks) + cells.KEPT[name])
    session.freeze(marks)
    told = session.take(result)
    session.record.step(f"kept {name}", told)
    if result["status"] == "finished" and result["success"]:
        session.kept[result["value"]] = result["generation"]


async def polled(session: Session) -> None:
    """A cell that outlasts its `wait` and is read with python_run, one call of which is cancelled."""
    marks = session.new_marks()
    code = f"{cells.head(marks)}time.sleep(0.3); mark('end')\n'polled'"
    tool, wait = session.rng.choice([("execute_python", 0.05), ("python_start", None)])
    begun = await session.run(code, tool, wait=wait)
    if begun["status"] not in ("finished", "refused"):
        given_up = await session.server.begin("python_run", run_id=begun["run_id"], wait=20)
        await session.server.cancel(given_up)
        begun = await session.finished(begun["run_id"])
        await session.server.heard(given_up)
    session.freeze(marks)
    told = session.take(begun)
    session.record.step("polled", told)
    if not told.startswith(("not run", "refused", "WORKER_DIED")):
        right = begun["success"] and begun.get("value") == "polled"
        session.check_value(right, f"{session}: a polled cell ends with {told}")


async def conditional(session: Session) -> None:
    """`expected_generation`, right or wrong."""
    if session.disturbed:
        return
    # A worker that is gone counts as the next generation, a session that never ran as 0.
    expected = session.generation + (session.dead and session.generation > 0)
    right = session.rng.random() < 0.5
    marks = session.new_marks()
    asked = expected if right else expected + session.rng.randint(1, 5)
    result = await session.run(f"{cells.head(marks)}5", expected_generation=asked)
    session.freeze(marks)
    told = session.take(result)
    session.record.step(f"expected generation, {'right' if right else 'wrong'}", told)
    refused = result.get("error_code") == "STATE_CHANGED"
    if not told.startswith("not run"):
        words = f"{session} in {expected}, asked for {asked}: {told}"
        session.record.check("state claims are true", refused is not right, words)
    if refused:
        session.record.check("what was not run wrote nothing", marks.size == 0, f"{session}: {marks.lines}")


async def inspect(session: Session) -> None:
    """Look at the session and its names."""
    found = await session.server.call("python_session_inspect", session_id=session.id, include_namespace=True)
    session.record.step("inspect", found["worker"])
    if not session.disturbed:
        right = found["generation"] == session.generation
        session.record.check("state claims are true", right, f"{session}: {found['generation']} is inspected")


# -- stopped runs ----------------------------------------------------------------------------------------------


async def _begin_endless(session: Session) -> tuple[str, Marks, Message]:
    """Start an endless cell; its kind, its marks, and what python_start says."""
    name = choose(cells.ENDLESS, session.rng)
    marks = session.new_marks(name)
    begun = await session.run(cells.head(marks) + cells.ENDLESS[name], "python_start")
    return name, marks, begun


async def _pause(session: Session) -> None:
    """A moment: sometimes none, sometimes long enough for everything to run."""
    await trio.sleep(session.rng.choice([0.0, 0.0, 0.02, 0.1, 0.3, 0.7, 1.5]))


def _stopped(session: Session, marks: Marks) -> None:
    """The answer to a stopped run has just been read: nothing of it may run or write any more."""
    session.freeze(marks)
    for pid in marks.processes:
        words = f"{session}: {kernel.describe(pid)} of a stopped run; the cell wrote {marks.lines[:3]}"
        session.record.check("a stopped run's processes are gone", not kernel.alive(pid), words)


def _take_stopped(session: Session, name: str, how: str, marks: Marks, result: Message) -> None:
    told = session.take(result)
    session.record.step(f"{how}: {name}", told)
    if told.startswith(("not run", "refused")):
        session.record.check("what was not run wrote nothing", marks.size == 0, f"{session}, {told}: {marks.lines}")
        return
    words = f"{session}: {name} ended by itself: {told}"
    session.check_value(not result["success"], words)


async def cancelled(session: Session) -> None:
    """python_start, python_cancel, python_run."""
    name, marks, begun = await _begin_endless(session)
    if begun["status"] == "refused":
        session.take(begun)
        return
    await _pause(session)
    asked = trio.current_time()
    await session.server.call("python_cancel", run_id=begun["run_id"], session_id=session.id)
    result = await session.finished(begun["run_id"])
    _stopped(session, marks)
    session.record.latency("python_cancel to the answer", trio.current_time() - asked)
    _take_stopped(session, name, "cancel", marks, result)


async def given_up(session: Session) -> None:
    """execute_python, then notifications/cancelled; the run's end is read with python_run."""
    name = choose(cells.ENDLESS, session.rng)
    marks = session.new_marks(name)
    session.began = trio.current_time()
    code = cells.head(marks) + cells.ENDLESS[name]
    request = await session.server.begin("execute_python", code=code, session_id=session.id)
    await _pause(session)
    asked = trio.current_time()
    await session.server.cancel(request)
    result = await session.finished()
    _stopped(session, marks)
    session.record.latency("notifications/cancelled to the end", trio.current_time() - asked)
    await session.server.heard(request)
    _take_stopped(session, name, "notification", marks, result)


async def timed_out(session: Session) -> None:
    """A cell over its time limit."""
    name = choose(cells.ENDLESS, session.rng)
    marks = session.new_marks(name)
    timeout = session.rng.choice([0.01, 0.05, 0.2, 0.5, 1.0])
    result = await session.run(cells.head(marks) + cells.ENDLESS[name], timeout=timeout)
    _stopped(session, marks)
    if result["status"] == "finished" and not result["state_reset"]:
        session.record.latency("time limit to the answer", result["elapsed_ms"] / 1000 - timeout)
    _take_stopped(session, name, "timeout", marks, result)


async def followed(session: Session) -> None:
    """A cell sent right behind the cancel of the one before waits for its clean-up."""
    name, marks, begun = await _begin_endless(session)
    if begun["status"] == "refused":
        session.take(begun)
        return
    await _pause(session)
    await session.server.call("python_cancel", run_id=begun["run_id"], session_id=session.id)
    second = session.new_marks()
    asked = trio.current_time()
    body, _ = cells.QUICK["arithmetic"]
    session.began = trio.current_time()
    next_one = await session.run(cells.quick(second, body))
    _stopped(session, marks)
    session.freeze(second)
    waited = trio.current_time() - asked
    result = await session.finished(begun["run_id"])
    _take_stopped(session, name, "followed", marks, result)
    told = session.take(next_one)
    session.record.step("cell behind a cancel", told)
    if next_one["status"] == "refused":
        words = f"{session} after {waited:.1f} s: {told}"
        session.check_value(waited >= BUSY_PATIENCE, words)
    elif next_one["generation"] and next_one["success"]:
        right = next_one["value"] == [session.planted, 42]
        session.check_value(right, f"{session}: {next_one['value']}, not {session.planted}")


async def intruded(session: Session) -> None:
    """A second cell while one runs is refused, with a reset as well, and the first one is stopped."""
    name, marks, begun = await _begin_endless(session)
    if begun["status"] == "refused":
        session.take(begun)
        return
    second = session.new_marks()
    again = session.rng.random() < 0.5
    intruder = await session.run(cells.head(second), reset=again)
    session.freeze(second)
    session.record.step("second cell", str(intruder.get("error_code")))
    await session.server.call("python_cancel", run_id=begun["run_id"], session_id=session.id)
    result = await session.finished(begun["run_id"])
    _stopped(session, marks)
    _take_stopped(session, name, "intruded", marks, result)
    if intruder["status"] != "refused" and result.get("error_code") != "CANCELLED":
        session.take(intruder, reset=again)  # the first run had ended with its worker
        return
    words = f"{session}: {intruder.get('error_code')} beside {begun['run_id']}, {result.get('error_code')}"
    session.check_value(intruder.get("error_code") == "BUSY", words)
    session.record.check("what was not run wrote nothing", second.size == 0, f"{session}: {second.lines}")


# -- ends of workers and sessions ------------------------------------------------------------------------------


async def reset(session: Session) -> None:
    """A new worker."""
    marks = session.new_marks()
    result = await session.run(cells.quick(marks, "outcome = 0"), reset=True)
    session.freeze(marks)
    told = session.take(result, reset=True)
    session.record.step("reset", told)
    if result["status"] == "finished" and result["success"]:
        session.check_value(result["value"] == [None, 0], f"{session}: {result['value']}")


async def reset_given_up(session: Session) -> None:
    """A reset whose request is cancelled in the middle."""
    marks = session.new_marks()
    session.began = trio.current_time()
    code = cells.head(marks) + "time.sleep(60)"
    request = await session.server.begin("execute_python", code=code, session_id=session.id, reset=True)
    await trio.sleep(session.rng.choice([0.0, 0.005, 0.02, 0.05, 0.2]))
    await session.server.cancel(request)
    result = await session.finished()
    _stopped(session, marks)
    await session.server.heard(request)
    # The reset was ordered, whatever became of the cell.
    session.record.step("reset given up", session.take(result, reset=True))


async def closed(session: Session) -> None:
    """Close the session, idle or in the middle of a cell, and open another."""
    marks = session.new_marks()
    request = None
    if session.rng.random() < 0.6:
        marks.kind = choose(cells.ENDLESS, session.rng)
        code = cells.head(marks) + cells.ENDLESS[marks.kind]
        request = await session.server.begin("execute_python", code=code, session_id=session.id)
        await _pause(session)
    asked = trio.current_time()
    answer = await session.server.call("python_session_close", session_id=session.id)
    _stopped(session, marks)
    session.record.latency("close to the answer", trio.current_time() - asked)
    session.record.step("close", "closed" if answer.get("closed") else str(answer.get("error_code")))
    session.closed(f"closed: {answer}")
    if request is not None:
        result = await session.server.result(request)
        session.record.step("cell in a closing session", str(result.get("error_code")))
        session.check_value(not result["success"], f"{session}: {result}")
    await session.open()


async def _kill(session: Session, whom: str) -> bool:
    worker = await session.worker()
    if worker is None:
        return False
    server = session.server.pid
    above = kernel.Guardians(worker, server)
    parts: dict[str, list[int | None]] = {"worker": [worker], "guardian": [above.own], "root": [above.root]}
    targets = parts[whom] if whom != "both" else [above.root, above.own]
    session.disturbed = session.disturbed or whom != "root"
    # Above a worker whose guardian has just died stands the root, so both may be meant by "guardian".
    if whom in ("root", "both") or above.root is None:
        session.server.root_killed = trio.current_time()
    killed = kernel.kill(targets, server)
    session.doomed = session.doomed or (whom == "worker" and killed)
    session.record.step(f"SIGKILL to {whom}", "sent" if killed else "nobody there")
    return killed


async def killed_idle(session: Session) -> None:
    """Somebody is killed while the session rests; the next step meets what is left."""
    await _kill(session, session.rng.choices(["worker", "guardian", "root", "both"], [5, 4, 1, 1])[0])
    if session.rng.random() < 0.5:
        await trio.sleep(0.2)


async def killed_running(session: Session) -> None:
    """Somebody is killed under an endless cell."""
    name, marks, begun = await _begin_endless(session)
    if begun["status"] == "refused":
        session.take(begun)
        return
    await _pause(session)
    whom = session.rng.choices(["worker", "guardian", "root", "both"], [5, 4, 1, 1])[0]
    killed = await _kill(session, whom)
    if whom == "root" or not killed:
        await session.server.call("python_cancel", run_id=begun["run_id"], session_id=session.id)
    result = await session.finished(begun["run_id"])
    _stopped(session, marks)
    _take_stopped(session, name, f"{whom} killed", marks, result)


#: Each step with its weight.
STEPS: dict[Step, int] = {
    quick: 30,
    failing: 4,
    fatal: 4,
    keep: 6,
    polled: 5,
    conditional: 5,
    inspect: 4,
    cancelled: 10,
    given_up: 10,
    timed_out: 12,
    followed: 6,
    intruded: 4,
    reset: 5,
    reset_given_up: 3,
    closed: 5,
    killed_idle: 4,
    killed_running: 4,
}


async def walk(session: Session, going: Callable[[], bool]) -> None:
    """One random step after the other while `going`."""
    choices, weights = list(STEPS), list(STEPS.values())
    while going():
        step = session.rng.choices(choices, weights)[0]
        began = trio.current_time()
        await step(session)
        took = trio.current_time() - began
        session.record.latency(f"step {step.__name__}", took)
        session.record.check(
            "answers within the bound", took < STEP_BOUND, f"{session}: {step.__name__} took {took:.1f} s"
        )
        session.look_back()
