"""The ladders: which signal goes where, how long after the first (contract 4.1 and 3.1).

Data only; `session/interrupt.py` climbs. The order of the rungs and what each frees was measured on 32 kinds of cells.

Insisting (SIGURG) lands the interrupt that SIGINT could not: `worker/gate.py` says how. It comes right before the
signal to the run's processes, so that a cell in `os.system` meets it the moment its command has ended. It never comes
close behind SIGINT: the kernel would wake a second thread of the worker for it, which can take both signals before the
main thread is up, and the system call that blocks the main thread would be restarted instead of ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..limits import Limits

SIGINT = 2
SIGKILL = 9
SIGUSR1 = 10
SIGTERM = 15
SIGURG = 23

WORKER = "child"  # the worker alone
RUN = "run"  # what this run started, not what earlier runs left on purpose
TREE = "tree"  # the worker and everything below it


@dataclass(frozen=True, slots=True)
class Rung:
    """One step: `after` seconds from the start of the climb, `signal` goes to `target`."""

    after: float
    name: str
    signal: int
    target: str


def interruption(limits: Limits, *, dump_signal: int = SIGUSR1, insist_signal: int = SIGURG) -> tuple[Rung, ...]:
    """For a timeout or a cancel: as soft as can be, gone at the end. The last rung is a kill."""
    return (
        Rung(0.0, "interrupt", SIGINT, WORKER),
        Rung(limits.ladder_children, "insist", insist_signal, WORKER),
        Rung(limits.ladder_children, "interrupt children", SIGINT, RUN),
        Rung(limits.ladder_again, "interrupt again", SIGINT, WORKER),
        Rung(limits.ladder_again, "interrupt children again", SIGINT, RUN),
        Rung(limits.ladder_again + limits.ladder_children, "insist again", insist_signal, WORKER),
        Rung(limits.ladder_again + limits.ladder_children, "interrupt children once more", SIGINT, RUN),
        Rung(limits.ladder_dump, "dump", dump_signal, WORKER),
        Rung(limits.ladder_term, "terminate", SIGTERM, TREE),
        Rung(limits.ladder_kill, "kill", SIGKILL, TREE),
    )


def shutdown(limits: Limits) -> tuple[Rung, ...]:
    """For the end of the server: the same in 1.2 s, because the client waits for our exit."""
    return (
        Rung(0.0, "interrupt", SIGINT, WORKER),
        Rung(0.0, "interrupt children", SIGINT, RUN),
        Rung(limits.shutdown_term, "terminate", SIGTERM, TREE),
        Rung(limits.shutdown_kill, "kill", SIGKILL, TREE),
    )
