"""`repl-trio doctor`: what has to work, tried one by one; a line each, with the fix where something does not."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial

from ..broker.config.entries import FAULT, UNREADABLE, Entry, Fault, Remote, Snapshot
from ..broker.config.registry import Registry
from ..broker.peer.program import find_program
from ..errors import BrokerError
from ..process.stdio import fill_holes
from ..settings import Settings
from .broken import Broken

_PACKAGES = ("trio", "mcp", "prompt_toolkit", "psutil")
_OLDEST = (3, 11)
_OWN_DESCRIPTORS = 32  # of the server itself
_SESSION_DESCRIPTORS = 8  # a worker's five pipes, its guardian's socket, and two that come and go
_REINSTALL = "reinstall repl-trio (in a checkout: remove .venv and run scripts/run)"


def doctor(settings: Settings) -> int:
    """Print one line a check on stdout: `ok NAME: detail` or `FAIL NAME: detail and fix`. Returns 1 if one failed.

    Each check ends by itself within the limits `probe_bound` and `guardian_clean`.
    """
    fill_holes()
    # What a check started ends with its lifeline, so there is nothing to tidy up.
    signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(130))
    failed = False
    for name, check in _checks(settings):
        try:
            detail = check()
        except Broken as error:
            failed = True
            line = f"FAIL {name}: {error}"
        else:
            line = f"ok   {name}: {detail}"
        try:
            os.write(1, f"{line}\n".encode("utf-8", "backslashreplace"))
        except OSError:
            return 1  # nobody reads what is found
    return 1 if failed else 0


def _checks(settings: Settings) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "python", _python
    for package in _PACKAGES:
        yield package, partial(_package, package)
    yield "project", partial(_project, settings)
    yield "open files", partial(_descriptors, settings)
    yield from _servers(settings)
    yield "guardian", partial(_probe, "guardian", settings)
    yield "worker", partial(_probe, "worker", settings)


def _python() -> str:
    version = sys.version.split()[0]
    if sys.version_info[:2] < _OLDEST:
        raise Broken(f"{sys.executable} is Python {version}; the server needs {_OLDEST[0]}.{_OLDEST[1]} or newer")
    return f"{version} ({sys.executable})"


def _package(name: str) -> str:
    try:
        importlib.import_module(name)
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "importable, version unknown"
    except Exception as error:  # noqa: BLE001 - a broken package may raise anything while it is imported
        raise Broken(f"cannot be imported ({type(error).__name__}: {error}); {_REINSTALL}") from None


def _project(settings: Settings) -> str:
    if not os.access(settings.project, os.R_OK | os.X_OK):
        raise Broken(f"{settings.project} cannot be entered; give another one with --project-root")
    writable = (
        "" if os.access(settings.project, os.W_OK) else " (not writable, which cells may need and the server does not)"
    )
    return f"{settings.project}{writable}"


def _descriptors(settings: Settings) -> str:
    import resource

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return "not limited"
    room = (allowed - _OWN_DESCRIPTORS) // _SESSION_DESCRIPTORS
    if room < 1:
        raise Broken(f"{allowed} are allowed, too few for one session; raise it with `ulimit -n`")
    enough = min(room, settings.limits.sessions)
    return f"{allowed} are allowed, enough for {enough} of {settings.limits.sessions} sessions"


def _servers(settings: Settings) -> Iterator[tuple[str, Callable[[], str]]]:
    """The project's MCP servers as `mcp` in a cell would find them: a check for each. Nothing is started."""
    given = settings.environment
    registry = Registry(settings.project, given, scopes=settings.scopes, config=settings.config, limits=settings.limits)
    snapshot = registry.look()
    if snapshot.blocked is not None:
        yield "servers", partial(str, snapshot.blocked)
    for unread in snapshot.faults:
        yield "servers", partial(_broken, str(unread))
    for name, entry in sorted(snapshot.entries.items()):
        yield f"server {name}", partial(_server, entry, given.get("PATH", os.defpath))
    if snapshot == Snapshot({}, version=snapshot.version):
        yield "servers", partial(str, "none are configured")


def _server(entry: Entry | Fault, path: str) -> str:
    if isinstance(entry, Fault):
        words = f"{entry} ({entry.scope} scope)"
        return _broken(words) if entry.rule in (FAULT, UNREADABLE) else f"not used: {words}"
    if isinstance(entry.target, Remote):
        return f"listed in the {entry.scope} scope; {entry.target.kind} servers cannot be reached in this version"
    try:
        return f"{find_program(entry.name, entry.target, path)} ({entry.scope} scope)"
    except BrokerError as error:
        return _broken(error.message.removeprefix(f"{entry.name}: "))


def _broken(words: str) -> str:
    raise Broken(words)


def _probe(name: str, settings: Settings) -> str:
    """A check of the module that needs trio: a doctor that dies of a missing package is none."""
    try:
        from . import probes
    except ImportError as error:
        raise Broken(f"not tried, because the runtime cannot be imported ({error}); {_REINSTALL}") from None
    return probes.guardian(settings) if name == "guardian" else probes.worker(settings)
