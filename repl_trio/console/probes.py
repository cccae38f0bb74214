"""The doctor's checks that start a process. Everything they start is gone when they return."""

from __future__ import annotations

import os
import sys
import time

import trio

from ..errors import ReplError
from ..process.guard import open_guard
from ..process.launch import Command, Root, guardian_folder, launch
from ..process.root import open_root
from ..process.start import start_worker
from ..session import containment
from ..session.interpreter import choose
from ..session.lifetime import open_generation
from ..settings import Settings
from .broken import Broken


def guardian(settings: Settings) -> str:
    """Start a child that does nothing through a guardian. Raises `Broken`."""
    try:
        folder = guardian_folder()
    except FileNotFoundError as error:
        raise Broken(f"{error}; reinstall repl-trio") from None
    return trio.run(_guardian, settings, folder)


async def _guardian(settings: Settings, folder: str) -> str:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        child = [getattr(sys, "_base_executable", None) or sys.executable, "-I", "-S", "-c", "pass"]
        root = Root()
        started = launch(root, Command(child, {}, settings.project, dict.fromkeys((0, 1, 2), null)), settings.limits)
    except OSError as error:
        raise Broken(
            f"{folder}/guardian.py could not be started ({error}); look at `ulimit -u` and `ulimit -n`"
        ) from None
    finally:
        os.close(null)
    bound = settings.limits.probe_bound
    opened = open_root(root, settings.limits)
    async with opened as watch, open_guard(started, watch, settings.limits) as guard:
        with trio.move_on_after(bound):
            await guard.exited.wait()
        ended, code, why = guard.exited.is_set(), guard.exit_code, guard.error
        level, faults = containment.level(subreaper=guard.subreaper), guard.faults
    if not ended:
        raise Broken(f"{folder}/guardian.py gave no answer in {bound:g} s; run it on a machine that is less busy")
    if code != 0:
        how = why or (f"its child ended with {code}" if code is not None else "it ended without a word")
        raise Broken(f"{folder}/guardian.py does not work with {child[0]} ({how}); reinstall repl-trio")
    if guard.clean is None:
        raise Broken(f"{folder}/guardian.py did not report that nothing is left; reinstall repl-trio")
    return ". ".join([f"{level}: {containment.details(level)}", *faults])


def worker(settings: Settings) -> str:
    """Start a worker with the interpreter that the default session would use. Raises `Broken`."""
    try:
        interpreter = choose(settings.python, settings.project, settings.environment)
    except ReplError as error:
        raise Broken(error.message) from None
    return trio.run(_worker, settings, interpreter.path, interpreter.source)


async def _worker(settings: Settings, path: str, source: str) -> str:
    begun = time.monotonic()
    try:
        root = Root()
        start = start_worker(root, path, settings.project, settings.environment, settings.limits)
    except OSError as error:
        raise Broken(f"{path} could not be started ({error}); look at `ulimit -u` and `ulimit -n`") from None
    problem: ReplError | None = None
    version, took = None, 0.0
    with trio.move_on_after(settings.limits.probe_bound) as scope:
        opened = open_root(root, settings.limits)
        async with opened as watch, open_generation(0, start, watch, settings.limits) as generation:
            problem, version = generation.problem, generation.python_version
            took = time.monotonic() - begun
    if problem is not None or (scope.cancelled_caught and version is None):
        why = problem.message if problem is not None else f"no answer in {settings.limits.probe_bound:g} s"
        raise Broken(f"{path} ({source}) cannot be a worker: {why} Choose another interpreter with --python")
    return f"Python {version}, {path} ({source}), ready in {took * 1000:.0f} ms"
