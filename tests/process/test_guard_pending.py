"""What a guard says it waits for, from the launch of its guardian to the end: the test is the guardian."""

from __future__ import annotations

import json
import signal
import socket

import trio
import trio.testing

from repl_trio.limits import Limits
from repl_trio.process.guard import Guard, open_guard
from repl_trio.process.launch import Launch, Root
from repl_trio.process.root import RootWatch

LIMITS = Limits.overridden({"guardian_ack": "20", "guardian_clean": "20"})


async def said(guardian: socket.socket, **record: object) -> None:
    """The guardian's record, heard. A test that fails closes the socket, and that is the guardian's end."""
    guardian.sendall(json.dumps(record).encode() + b"\n")
    await trio.testing.wait_all_tasks_blocked(0.01)


async def test_each_thing_that_is_waited_for_is_told_with_its_beginning(mock_clock: trio.testing.MockClock) -> None:
    def pending() -> tuple[str, float] | None:
        if guard.pending is None:
            return None
        return guard.pending[0], round(trio.current_time() - guard.pending[1], 6)

    ours, guardian = socket.socketpair()
    guard: Guard
    async with open_guard(Launch(ours), RootWatch(Root(), LIMITS), LIMITS) as guard:
        with guardian:
            async with trio.open_nursery() as nursery:
                mock_clock.jump(1.0)
                assert pending() == ("its start", 1.0)
                await said(guardian, ev="spawned", pid=1)
                assert pending() is None

                nursery.start_soon(guard.signal, signal.SIGTERM, "tree")
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(2.0)
                nursery.start_soon(guard.signal, signal.SIGINT, "child")
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(guard.descendants)
                await trio.testing.wait_all_tasks_blocked()
                assert pending() == ("the acknowledgement of SIGTERM to tree", 2.0)
                await said(guardian, ev="signalled", id=1, n=1)
                assert pending() == ("the acknowledgement of SIGINT to worker", 0.0)
                await said(guardian, ev="signalled", id=2, n=1)
                assert pending() == ("its list of processes", 0.0)
                await said(guardian, ev="ps", id=3, pids=[])
                assert pending() is None

                guard.stop()
                mock_clock.jump(3.0)
                await said(guardian, ev="exit", code=0)
                assert pending() == ("the end of everything below it", 3.0)
                guardian.shutdown(socket.SHUT_RDWR)
                await guard.gone.wait()
                assert pending() is None


async def test_the_end_of_a_child_alone_begins_the_wait_for_the_end(mock_clock: trio.testing.MockClock) -> None:
    ours, guardian = socket.socketpair()
    async with open_guard(Launch(ours), RootWatch(Root(), LIMITS), LIMITS) as guard:
        with guardian:
            await said(guardian, ev="spawned", pid=1)
            mock_clock.jump(1.0)
            await said(guardian, ev="exit", code=3)
            assert guard.pending == ("the end of everything below it", trio.current_time())
            guardian.shutdown(socket.SHUT_RDWR)
            await guard.gone.wait()
