"""All brokers of a server: one for each project, because projects share neither registry nor credentials nor peers.

The journal, the judge and the SDK are the server's: one of each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ..process.named import named
from ..process.root import RootWatch
from ..settings import Settings
from ..store.journal import open_journal
from ..values import AskClient, Origin
from . import explain
from .broker import Broker
from .calls import Calls
from .config.entries import Snapshot
from .config.registry import Registry
from .peer.connection import Json
from .peer.link import Ground
from .peer.peers import Peers
from .peer.sdk import Loader
from .redaction import Redaction
from .tools.judge import open_judge
from .tools.validation import Validation


class Brokers:
    """What sessions ask (`values.CallTool`). A project's broker is made with its first question."""

    def __init__(
        self,
        settings: Settings,
        watch: RootWatch,
        registries: dict[str, Registry],
        nursery: trio.Nursery,
        calls: Calls,
        client: AskClient | None,
    ) -> None:
        self._settings = settings
        self._watch = watch
        self._registries = registries
        self._nursery = nursery
        self._calls = calls
        self._client = client
        self._loader = Loader()
        self._brokers: dict[str, Broker] = {}

    async def perform(self, op: str, params: dict[str, object], origin: Origin) -> object:
        """The JSON value that answers one operation of a cell. Raises `BrokerError`."""
        if op == "journal":
            await self._calls.journal.load()
            return [record.as_json() for record in self._calls.journal.records()]
        return await self._broker(origin.project).perform(op, params, origin)

    def known(self, project: str, snapshot: Snapshot) -> explain.Known:
        """The peers of a project that were used, by the names of their entries."""
        broker = self._brokers.get(project)
        return broker.known(snapshot) if broker is not None else {}

    @property
    def journal(self) -> str:
        """The state of the journal, in words."""
        return self._calls.journal.state

    async def shutdown(self) -> None:
        """End all peers, in parallel, in the time that workers get."""
        async with trio.open_nursery() as nursery:
            for broker in self._brokers.values():
                nursery.start_soon(broker.peers.shutdown, name=named("ends the peers of a project"))

    def _broker(self, project: str) -> Broker:
        broker = self._brokers.get(project)
        if broker is None:
            settings = self._settings
            registry = registry_of(project, settings, self._registries)
            ground = Ground(self._watch, settings.environment, project, settings.limits, Redaction(), self._client)
            peers = Peers(ground, self._loader, self._nursery)
            broker = self._brokers[project] = Broker(project, registry, peers, self._calls, ground)
        return broker


def registry_of(project: str, settings: Settings, registries: dict[str, Registry]) -> Registry:
    """The registry of a project, made with its first use."""
    registry = registries.get(project)
    if registry is None:
        given = settings.environment
        registry = Registry(project, given, scopes=settings.scopes, config=settings.config, limits=settings.limits)
        registries[project] = registry
    return registry


def health(settings: Settings, project: str, registries: dict[str, Registry], brokers: Brokers | None) -> Json:
    """What `python_health` says about a project's servers, each as it was last seen. Starts nothing, asks nobody."""
    snapshot = registry_of(project, settings, registries).look()
    journal = brokers.journal if brokers is not None else settings.journal or "in memory"
    return {
        "servers": explain.listed(snapshot, brokers.known(project, snapshot) if brokers is not None else {}),
        "note": explain.note(snapshot, project),
        "journal": journal,
    }


@asynccontextmanager
async def open_brokers(
    settings: Settings, watch: RootWatch, registries: dict[str, Registry], client: AskClient | None = None
) -> AsyncIterator[Brokers]:
    """Own every peer and what calls need; after the context none is left. `registries` are those made before.

    Nothing is started, loaded or opened before its first use. Leaving ends the peers within `shutdown_bound`.
    """
    limits = settings.limits
    async with (
        open_journal(settings.journal, limits) as journal,
        open_judge(watch, limits) as judge,
        trio.open_nursery() as nursery,
    ):
        calls = Calls(journal, Validation(limits, judge), limits)
        brokers = Brokers(settings, watch, registries, nursery, calls, client)
        try:
            yield brokers
        finally:
            with trio.move_on_after(limits.shutdown_bound, shield=True):
                await brokers.shutdown()
            nursery.cancel_scope.cancel()
