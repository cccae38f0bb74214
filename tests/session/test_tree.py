"""The live nursery tree: ages, places and marks of tasks, and what is left out when there are too many."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import trio
import trio.testing

from repl_trio.process.named import named
from repl_trio.process.pipes import PipeReader
from repl_trio.session.tree import Node, nodes, shorten

BOUND = 30.0
"""seconds. A hang bound."""


def found(name: str) -> Node:
    """The node of the one task with this name."""
    (node,) = [node for node in nodes() if node.name == name]
    return node


async def started(nursery: trio.Nursery, task: Callable[..., Awaitable[None]], *arguments: object, name: str) -> None:
    nursery.start_soon(task, *arguments, name=named(name))
    await trio.testing.wait_all_tasks_blocked()


async def test_a_task_has_its_age_its_place_and_its_depth(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        await started(nursery, trio.sleep_forever, name="rests")
        await trio.sleep(2.0)
        await started(nursery, trio.sleep_forever, name="rests less")
        await trio.sleep(1.0)
        older, younger = found("rests"), found("rests less")
        older.nursery = younger.nursery = None  # the number that pytest-trio's nurseries give this one
        assert older.fields() == {"depth": older.depth, "name": "rests", "age_s": 3.0}
        assert younger.line() == f"{'  ' * younger.depth}rests less (1.0 s)"
        names = [node.name for node in nodes()]
        assert names.index("rests") < names.index("rests less")
        nursery.cancel_scope.cancel()


async def test_the_place_is_the_innermost_line_of_ours() -> None:
    ours, theirs = os.pipe()
    reader = PipeReader(ours)
    try:
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                await reader.receive()

            await started(nursery, read, name="reads")
            place = str(found("reads").fields()["at"])
            module, _, function = place.partition(" ")
            assert module.startswith("process.pipes:")
            assert function == "_readable"
            nursery.cancel_scope.cancel()
    finally:
        reader.close()
        os.close(theirs)


async def test_a_cancelled_task_that_is_still_there_is_marked_with_all_below_it() -> None:
    release = trio.Event()

    async def stay() -> None:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as inner:
                inner.start_soon(release.wait, name=named("stays, too"))
                await release.wait()

    async def refuge() -> None:
        async with trio.open_nursery() as inner:
            inner.cancel_scope.shield = True
            inner.start_soon(release.wait, name=named("is sheltered"))

    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stay, name=named("stays"))
            nursery.start_soon(refuge, name=named("shelters"))
            await trio.testing.wait_all_tasks_blocked()
            assert not any(node.cancelled for node in nodes())
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            marks = {node.name: (node.cancelled, node.shielded) for node in nodes()}
            assert marks["stays"] == (True, False)
            assert marks["stays, too"] == (True, False)
            assert marks["is sheltered"] == (False, True)
            assert "cancelled" in found("stays").line()
            assert found("is sheltered").fields()["shielded"] is True
            release.set()


async def test_a_deadline_and_the_number_of_the_nursery_are_told(autojump_clock: trio.testing.MockClock) -> None:
    async def owner() -> None:
        async with trio.open_nursery() as first, trio.open_nursery() as second:
            second.cancel_scope.deadline = trio.current_time() + 5.0
            first.start_soon(trio.sleep, 6.0, name=named("in the first"))
            second.start_soon(trio.sleep, 6.0, name=named("in the second"))

    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner, name=named("owns"))
            await trio.sleep(2.0)
            assert found("in the first").fields().get("deadline_s") is None
            assert found("in the second").fields()["deadline_s"] == 3.0
            assert [found(f"in the {which}").nursery for which in ("first", "second")] == [1, 2]
            assert "(2.0 s, nursery 2, ends in 3.0 s)" in found("in the second").line()


async def test_who_is_left_out_is_counted_and_who_stays_stays_with_his_parents() -> None:
    release = trio.Event()

    async def parent(number: int) -> None:
        async with trio.open_nursery() as inner:
            for child in range(3):
                inner.start_soon(release.wait, name=named(f"child {number}.{child}"))

    async def stay() -> None:
        with trio.CancelScope(shield=True):
            await release.wait()

    async def stuck() -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(stay, name=named("is stuck"))
            inner.cancel_scope.cancel()

    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(parent, number, name=named(f"parent {number}"))
            nursery.start_soon(stuck, name=named("holds what is stuck"))
            await trio.testing.wait_all_tasks_blocked()
            everything = nodes()
            depth = found("is stuck").depth
            for room in range(len(everything) + 2):
                kept = shorten(nodes(), room, lambda _node: 1)
                assert len(kept) <= room
                if kept:
                    assert len(kept) + sum(node.below for node in kept) == len(everything)
                assert all(node.parent is None or node.parent in kept for node in kept)
                # The cancelled one is the first that a room for it and its parents is given to.
                assert ("is stuck" in [node.name for node in kept]) == (room > depth)
            assert shorten(everything, 10_000, lambda _node: 1) == everything
            release.set()


async def test_a_task_of_trio_has_no_age() -> None:
    assert nodes()[0].fields() == {"depth": 0, "name": "<init>"}
