"""A peer: one entry's connection, from its first use to the end of the entry or of the server.

```
idle --use--> connecting --connected--> ready --lost--> failed --use--> connecting
  |               |  `------failed-------------------->   |
  `---------------+-------stop------> closing --gone--> closed
```
`lost` is the end of the process or of its connection: the next use connects again. `stop` is a changed entry or the end
of the server; whoever uses the entry afterwards does so with another peer.
"""

from __future__ import annotations

from .table import Machine, Table

IDLE = "idle"
CONNECTING = "connecting"
READY = "ready"
FAILED = "failed"
CLOSING = "closing"
CLOSED = "closed"

TABLE: Table = {
    (IDLE, "use"): CONNECTING,
    (IDLE, "stop"): CLOSED,
    (CONNECTING, "connected"): READY,
    (CONNECTING, "failed"): FAILED,
    (CONNECTING, "stop"): CLOSING,
    (READY, "lost"): FAILED,
    (READY, "stop"): CLOSING,
    (FAILED, "use"): CONNECTING,
    (FAILED, "stop"): CLOSED,
    (CLOSING, "stop"): CLOSING,
    (CLOSING, "failed"): CLOSING,  # the connect that the stop came into
    (CLOSING, "lost"): CLOSING,
    (CLOSING, "gone"): CLOSED,
    (CLOSED, "stop"): CLOSED,
}


def machine() -> Machine:
    """The machine of a new peer."""
    return Machine(TABLE, IDLE)
