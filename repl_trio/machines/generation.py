"""A generation: one worker life of a session.

```
launching --ready--> idle --execute--> busy --done--> idle
    |                  |                 |
    `--died, stop------+-----------------+--> stopping --clean--> gone
```
`died` is the guardian's exit record or the end of the link; `stop` is a reset, a close, a shutdown or a kill. `clean`
is the guardian's last record: nothing that the worker started is left.
"""

from __future__ import annotations

from .table import Machine, Table

LAUNCHING = "launching"
IDLE = "idle"
BUSY = "busy"
STOPPING = "stopping"
GONE = "gone"

TABLE: Table = {
    (LAUNCHING, "ready"): IDLE,
    (LAUNCHING, "died"): STOPPING,
    (LAUNCHING, "stop"): STOPPING,
    (LAUNCHING, "clean"): GONE,  # the program could not be executed at all
    (IDLE, "execute"): BUSY,
    (IDLE, "died"): STOPPING,
    (IDLE, "stop"): STOPPING,
    (IDLE, "clean"): GONE,
    (BUSY, "done"): IDLE,
    (BUSY, "died"): STOPPING,
    (BUSY, "stop"): STOPPING,
    (BUSY, "clean"): GONE,
    (STOPPING, "died"): STOPPING,
    (STOPPING, "stop"): STOPPING,
    (STOPPING, "done"): STOPPING,  # a last result that arrives while the worker is being ended
    (STOPPING, "clean"): GONE,
    (GONE, "died"): GONE,
    (GONE, "stop"): GONE,
    (GONE, "clean"): GONE,
}


def machine() -> Machine:
    """The machine of a new generation."""
    return Machine(TABLE, LAUNCHING)


def alive(machine: Machine) -> bool:
    """Whether the generation can run a cell now or after its current one."""
    return machine.state in (IDLE, BUSY)
