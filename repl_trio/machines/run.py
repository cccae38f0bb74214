"""A run: one execution of one cell.

```
accepted --launch--> starting --ready--> running --result--> finished
   |                     |                  |--stop--> interrupting --result--> clearing --cleared--> finished
   |                     |                  |                 `--kill--> killing
   `--------failed-------'                  `--died, unfit--> killing --cleared--> finished
```
`stop` is a deadline or a cancel: from there on the answer waits until everything the run started is gone.
"""

from __future__ import annotations

from .table import Machine, Table

ACCEPTED = "accepted"
STARTING = "starting"
RUNNING = "running"
INTERRUPTING = "interrupting"
CLEARING = "clearing"
KILLING = "killing"
FINISHED = "finished"

TABLE: Table = {
    (ACCEPTED, "launch"): STARTING,  # no worker: one is started
    (ACCEPTED, "ready"): RUNNING,  # a worker was there
    (ACCEPTED, "failed"): FINISHED,
    (STARTING, "ready"): RUNNING,
    (STARTING, "failed"): FINISHED,  # no worker came up, or the run was cancelled before it began
    (RUNNING, "result"): FINISHED,
    (RUNNING, "stop"): INTERRUPTING,
    (RUNNING, "unfit"): KILLING,  # the result says that this worker must not run another cell
    (RUNNING, "died"): KILLING,
    (INTERRUPTING, "result"): CLEARING,  # the namespace is kept; what the run started goes
    (INTERRUPTING, "unfit"): KILLING,
    (INTERRUPTING, "died"): KILLING,
    (INTERRUPTING, "kill"): KILLING,  # the ladder's last rung
    (CLEARING, "cleared"): FINISHED,
    (CLEARING, "died"): KILLING,
    (KILLING, "cleared"): FINISHED,
}


def machine() -> Machine:
    """The machine of a new run."""
    return Machine(TABLE, ACCEPTED)
