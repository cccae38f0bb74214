"""The live nursery tree, as `:tasks` prints it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import trio


class Births(trio.abc.Instrument):
    """An instrument that remembers when each living task was spawned; trio does not."""

    def __init__(self) -> None:
        self._births: dict[trio.lowlevel.Task, float] = {}

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """Called by trio for each new task."""
        self._births[task] = trio.current_time()

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        """Called by trio for each task that ended."""
        self._births.pop(task, None)

    def age(self, task: trio.lowlevel.Task) -> str:
        """Seconds since `task` was spawned, `?` for the one that was there before us."""
        born = self._births.get(task)
        return "?" if born is None else f"{trio.current_time() - born:.1f} s"


def tree(births: Births) -> str:
    """Every task below the root with its age and the line it waits at. One line a task, two columns a nursery."""
    root = trio.lowlevel.current_root_task()
    return "\n".join(_lines(root, births, 0)) if root is not None else "no task runs"


def _lines(task: trio.lowlevel.Task, births: Births, depth: int) -> Iterator[str]:
    name = task.name.removeprefix("repl_trio.")
    yield f"{'  ' * depth}{name} ({births.age(task)}){_place(task)}"
    for number, nursery in enumerate(task.child_nurseries, 1):
        inside = depth + 1
        if len(task.child_nurseries) > 1:
            yield f"{'  ' * inside}nursery {number}"
            inside += 1
        for child in sorted(nursery.child_tasks, key=lambda child: child.name):
            yield from _lines(child, births, inside)


def _place(task: trio.lowlevel.Task) -> str:
    """Where the innermost of our own frames waits; empty for trio's own tasks and the one that is running."""
    ours = ""
    for frame, line in task.iter_await_frames():
        if frame.f_globals.get("__name__", "").startswith("repl_trio."):
            code = frame.f_code
            ours = f" at {code.co_name}, {os.path.basename(code.co_filename)}:{line}"
    return ours
