"""One small state machine over a table. An event that the table does not know in a state is our own bug and raises."""

from __future__ import annotations

from collections.abc import Mapping

Table = Mapping[tuple[str, str], str]


class ImpossibleEvent(RuntimeError):
    """The table has no such event in this state: two parts of the server disagree about what is going on."""


class Machine:
    """A state that moves by events along one table."""

    __slots__ = ("_table", "state")

    def __init__(self, table: Table, state: str) -> None:
        self._table = table
        self.state = state

    def advance(self, event: str) -> str:
        """Move by `event` and return the new state."""
        try:
            self.state = self._table[self.state, event]
        except KeyError:
            raise ImpossibleEvent(f"{event!r} in state {self.state!r}") from None
        return self.state

    def accepts(self, event: str) -> bool:
        """Whether the table knows `event` in the current state."""
        return (self.state, event) in self._table
