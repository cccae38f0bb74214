"""The live nursery tree: which tasks there are, since when, and where each of them waits. For reports.

Read from trio's own records, synchronously and without waking anybody, so that it is true also while all else is stuck.
Nothing of a cell is in it: tasks are named by their owners, places are lines of this package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import trio

from ..process.named import Name

_OURS = "repl_trio."


class Node:
    """A task: its name, its age, the innermost line of ours where it waits, and the scope of the nursery it is in.

    `age` is in seconds; trio's own few tasks have none. `depth` counts from the root. `nursery` is the number of its
    nursery where its parent holds several. `cancelled`: that nursery, or one around it, was cancelled, and the task is
    still there; `shielded`: its nursery hears no outer cancel; `deadline`: seconds until its nursery is cancelled, if
    that is known. `below`: tasks below it that are not shown.
    """

    __slots__ = ("age", "at", "below", "cancelled", "deadline", "depth", "name", "nursery", "parent", "shielded")

    def __init__(self, task: trio.lowlevel.Task, parent: Node | None, nursery: int | None) -> None:
        self.name = str(task.name).removeprefix(_OURS)
        self.age = trio.current_time() - task.name.born if isinstance(task.name, Name) else None
        self.at = _place(task)
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.nursery = nursery
        self.cancelled = self.shielded = False
        self.deadline: float | None = None
        self.below = 0
        if task.parent_nursery is not None:
            scope = task.parent_nursery.cancel_scope
            self.shielded = scope.shield
            self.deadline = scope.deadline - trio.current_time() if math.isfinite(scope.deadline) else None
            inherited = parent is not None and parent.cancelled and not scope.shield
            self.cancelled = scope.cancel_called or inherited

    def fields(self) -> dict[str, object]:
        """The node for programs: depth, name, age_s and at, and the rest only where there is something to say."""
        fields: dict[str, object] = {"depth": self.depth, "name": self.name}
        if self.age is not None:
            fields["age_s"] = round(self.age, 1)
        if self.at:
            fields["at"] = self.at
        if self.deadline is not None:
            fields["deadline_s"] = round(self.deadline, 1)
        told = {name: getattr(self, name) for name in ("nursery", "cancelled", "shielded", "below")}
        return fields | {name: value for name, value in told.items() if value}

    def line(self) -> str:
        """The node for people, one line, two columns a level."""
        parts = [] if self.age is None else [f"{self.age:.1f} s"]
        parts += [f"nursery {self.nursery}"] if self.nursery else []
        parts += ["cancelled"] if self.cancelled else []
        parts += ["shielded"] if self.shielded else []
        parts += [f"ends in {self.deadline:.1f} s"] if self.deadline is not None else []
        marks = f" ({', '.join(parts)})" if parts else ""
        below = f" [+{self.below} below]" if self.below else ""
        return f"{'  ' * self.depth}{self.name}{marks}{f' at {self.at}' if self.at else ''}{below}"


def nodes() -> list[Node]:
    """Every task of this run, parents first, the oldest of several first."""
    root = trio.lowlevel.current_root_task()
    return list(_walk(root, None, None)) if root is not None else []


def shorten(everything: Sequence[Node], room: int, cost: Callable[[Node], int]) -> list[Node]:
    """As many nodes as fit into `room` by their `cost`, in their order; what is left out is counted by who stays.

    First come those that were cancelled and are still there, because they are what somebody is looking for, then those
    nearest to the root and the oldest of them; whoever stays, stays with all his parents.
    """
    order = sorted(everything, key=lambda node: (not node.cancelled, node.depth, -(node.age or math.inf)))
    kept: set[Node] = set()
    for node in order:
        branch = {each for each in _upwards(node) if each not in kept}
        price = sum(map(cost, branch))
        if price <= room:
            room -= price
            kept |= branch
    for node in everything:
        if node not in kept:
            above = next((each for each in _upwards(node) if each in kept), None)
            if above is not None:
                above.below += 1
    return [node for node in everything if node in kept]


def _upwards(node: Node) -> Iterator[Node]:
    above: Node | None = node
    while above is not None:
        yield above
        above = above.parent


def _walk(task: trio.lowlevel.Task, parent: Node | None, nursery: int | None) -> Iterator[Node]:
    node = Node(task, parent, nursery)
    yield node
    several = len(task.child_nurseries) > 1
    for number, inner in enumerate(task.child_nurseries, 1):
        for child in sorted(inner.child_tasks, key=_seniority):
            yield from _walk(child, node, number if several else None)


def _seniority(task: trio.lowlevel.Task) -> tuple[float, str]:
    return (task.name.born if isinstance(task.name, Name) else math.inf), task.name


def _place(task: trio.lowlevel.Task) -> str:
    """Where the innermost of our own frames waits; empty for trio's own tasks."""
    ours = ""
    for frame, line in task.iter_await_frames():
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_OURS):
            ours = f"{module.removeprefix(_OURS)}:{line} {frame.f_code.co_name}"
    return ours
