"""The way from sessions to the brokers. Nothing of the broker is loaded before the first question.

The one place that imports the rest of the broker, in a thread: a server that never reaches a peer does not pay for
forty modules, and the loop of one that does goes on meanwhile.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from ..errors import BrokerError
from ..process.named import named
from ..process.root import RootWatch
from ..settings import Settings
from ..values import AskClient, Origin

if TYPE_CHECKING:
    from types import ModuleType

    from .brokers import Brokers
    from .config.registry import Registry


class Reach:
    """What sessions ask (`values.CallTool`). `open_reach` makes and owns one.

    The brokers are opened by the first question, in a task below this one's nursery, and closed with it. `client`:
    whom peers may ask; who has one sets it before the first question.
    """

    def __init__(self, settings: Settings, watch: RootWatch, nursery: trio.Nursery) -> None:
        self.client: AskClient | None = None
        self._settings = settings
        self._watch = watch
        self._nursery = nursery
        self._module: ModuleType | None = None
        self._brokers: Brokers | None = None
        self._registries: dict[str, Registry] = {}
        self._opening = trio.Lock()
        self._leave = trio.Event()
        self._left = trio.Event()
        self._left.set()

    async def perform(self, op: str, params: dict[str, object], origin: Origin) -> object:
        """The JSON value that answers one operation of a cell. Raises `BrokerError`."""
        if self._brokers is None:
            await self._open()
        if self._brokers is None or self._leave.is_set():
            raise BrokerError("CALL_CANCELLED", "The server is going away; not sent.")
        return await self._brokers.perform(op, params, origin)

    def health(self, project: str) -> dict[str, object]:
        """Every entry of a project's registry as it was last seen. Starts nothing and waits for nothing."""
        if self._module is None:
            self._module = _load()
        health: dict[str, object] = self._module.health(self._settings, project, self._registries, self._brokers)
        return health

    async def prepare(self) -> None:
        """Load the broker's own modules ahead of need; nothing is started."""
        if self._module is not None:
            return
        try:
            self._module = await trio.to_thread.run_sync(_load, abandon_on_cancel=True)
        except RuntimeError:
            # No thread: the user's processes are at their bound. Then the loop stands still for that moment.
            self._module = _load()

    async def shutdown(self) -> None:
        """End all peers, in the time that workers get. Questions are refused from here on."""
        self._leave.set()
        await self._left.wait()

    async def _open(self) -> None:
        async with self._opening:
            if self._brokers is None and not self._leave.is_set():
                await self.prepare()
                await self._nursery.start(self._own, name=named("owns the peers"))

    async def _own(self, task_status: trio.TaskStatus[None]) -> None:
        assert self._module is not None
        self._left = trio.Event()
        try:
            opened = self._module.open_brokers(self._settings, self._watch, self._registries, self.client)
            async with opened as brokers:
                self._brokers = brokers
                task_status.started()
                await self._leave.wait()
        finally:
            self._left.set()


def _load() -> ModuleType:
    return importlib.import_module(f"{__package__}.brokers")


@asynccontextmanager
async def open_reach(settings: Settings, watch: RootWatch) -> AsyncIterator[Reach]:
    """Own the way to the peers: after the context none is left. Leaving ends them within `shutdown_bound`."""
    async with trio.open_nursery() as nursery:
        reach = Reach(settings, watch, nursery)
        try:
            yield reach
        finally:
            with trio.move_on_after(settings.limits.shutdown_bound, shield=True):
                await reach.shutdown()
            nursery.cancel_scope.cancel()
