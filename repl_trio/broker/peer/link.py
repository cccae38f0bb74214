"""The connection to a stdio peer: its process, owned by a guardian, and its three pipes.

stdout is read by the SDK client through `Inbound`, stdin written through `Outbound`, stderr drained at all times and
its end kept. That the peer has ended is told by the guardian's exit record: the end of its stdout can come much later,
when a child of it holds the pipe.
"""

from __future__ import annotations

import logging
import os
import signal
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from ...limits import Limits
from ...process.guard import Guard, open_guard
from ...process.named import named
from ...process.piped import PipedStart, start_piped
from ...process.pipes import PipeReader, PipeWriter
from ...process.root import RootWatch
from ...values import AskClient
from ..config.entries import RECURSION, Entry, Stdio
from ..redaction import RedactedTail, Redaction
from .intake import Intake
from .program import find_program
from .sdk import Sdk
from .streams import Inbound, Outbound

#: What a peer inherits of the server's environment: what programs need to find their files, their user and their
#: language. Everything else is the entry's to name: tokens that the server's environment happens to hold are no peer's.
INHERITED = (
    "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ",
    "USER", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME",
)  # fmt: skip

_log = logging.getLogger("repl_trio.broker")

_TRACEBACK = 20_000
"""characters of one in the log."""
_READ_OUT = 5.0
"""seconds. For what an ended peer has left in its pipe, a mebibyte at most, to be handed over."""
_LAST_WORDS = 2.0
"""seconds. Between the end of a peer's stdout and its exit record, which says how it ended."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What every peer of a broker stands on. `client`: whom peers may ask, None for nobody."""

    watch: RootWatch
    environment: Mapping[str, str]
    project: str
    limits: Limits
    redaction: Redaction
    client: AskClient | None = None


def peer_environment(environment: Mapping[str, str], target: Stdio) -> dict[str, str]:
    """The whole environment of a stdio peer."""
    inherited = {name: environment[name] for name in INHERITED if name in environment}
    return {**inherited, **dict(target.env), RECURSION[0]: RECURSION[1]}


class Link:
    """One process and its pipes.

    `over` is set when the connection is of no more use, `why` then says so in words; also by `leave`, which asks for
    the end in order. Whoever opened it ends it.
    """

    def __init__(self, start: PipedStart, guard: Guard, ground: Ground) -> None:
        self.guard = guard
        self.over = trio.Event()
        self.why = ""
        self._limits = ground.limits
        self._redaction = ground.redaction
        self._stdin = PipeWriter(start.stdin, unread=ground.limits.peer_unread_bytes)
        self._stdout = PipeReader(start.stdout)
        self._stderr = PipeReader(start.stderr)
        self._tail = RedactedTail(ground.redaction, ground.limits.peer_stderr_bytes)
        self._intake = Intake(ground.limits)
        self._inbound: Inbound | None = None
        self._orderly = False
        self._grace = ground.limits.peer_grace
        self._kill = ground.limits.peer_kill
        self._waiting = trio.CancelScope()

    def streams(self, sdk: Sdk) -> tuple[Inbound, Outbound]:
        """The ends for the SDK client; once."""
        self._inbound = Inbound(sdk, self._stdout, self._intake, self._watch_junk, self._at_end, self._on_bug)
        if self.over.is_set():
            self._inbound.finish()
        return self._inbound, Outbound(sdk, self._stdin)

    def lose(self, why: str) -> None:
        """The connection is broken; the first reason counts."""
        if not self.over.is_set():
            self.why = why
            self.over.set()
            self._stdout.close()

    def leave(self) -> None:
        """Ask for an orderly end: the peer's stdin is closed, and it gets its time."""
        if not self.over.is_set():
            self._orderly = True
            self.over.set()

    def hurry(self) -> None:
        """The server itself is ending: the peer gets the time that workers get."""
        self._grace = self._limits.shutdown_term
        self._kill = self._limits.shutdown_kill - self._limits.shutdown_term
        self._waiting.deadline = min(self._waiting.deadline, trio.current_time() + self._grace)

    @property
    def usable(self) -> bool:
        """Whether a request may be sent, as far as anybody knows: what has ended may still have something to say."""
        return not self.over.is_set() and not self.guard.exited.is_set()

    async def settled(self) -> None:
        """When the peer's stdin has broken, wait the moment until it is known why."""
        if self._stdin.broken.is_set():
            await self.over.wait()

    def said(self) -> str:
        """What the peer wrote where no message was, redacted and shortened, as sentences; "" for nothing."""
        words = []
        junk = self._redaction.text(self._intake.junk.decode("utf-8", "replace")).strip()
        if junk:
            words.append(f"What it printed to stdout is no MCP: {junk[:200]!r}.")
        stderr = self.stderr().strip()
        if stderr:
            words.append(f"Its stderr ends with:\n{_last_lines(stderr, self._limits.peer_words)}")
        return " ".join(words)

    def stderr(self) -> str:
        """The end of what the peer wrote to stderr, redacted."""
        self._tail.feed(b"".join(self._stderr.drain()))
        return self._tail.text()

    @property
    def bound(self) -> float:
        """seconds. The longest that `stop` takes."""
        return self._limits.peer_grace + self._limits.peer_kill + self._limits.guardian_ack

    # -- tasks -------------------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Own the writing of stdin."""
        await self._stdin.run()

    async def keep_stderr(self) -> None:
        """Read stderr until its end: a peer must never wait for a reader of its log."""
        while chunk := await self._stderr.receive():
            self._tail.feed(chunk)

    async def watch_exit(self) -> None:
        """The peer's end, as the guardian tells it: hand over what is left in its pipe, then the connection is over."""
        await self.guard.exited.wait()
        self._stdin.fail()  # a child of it may hold the other end: what nobody will answer must not leave
        left = b"".join(self._stdout.drain())
        if self._inbound is not None:
            self._inbound.finish(left)
            self._stdout.close()
            # The last answer may stand behind thousands of other messages.
            with trio.move_on_after(_READ_OUT):
                await self._inbound.emptied.wait()
        self.lose(self.ending())

    async def watch_stdin(self) -> None:
        """A peer that takes no more requests is of no use. Of one that has ended, `watch_exit` takes care."""
        await self._stdin.broken.wait()
        with trio.move_on_after(_LAST_WORDS):
            await self.guard.exited.wait()
        if not self.guard.exited.is_set():
            self.lose("does not read its stdin any more")

    def ending(self) -> str:
        """How the process ended; "" while it lives."""
        guard = self.guard
        if guard.error is not None:
            return f"could not be started ({guard.error})"
        if not guard.exited.is_set():
            return ""
        code = guard.exit_code
        if code is None:
            return "was ended with its guardian, which was killed"
        return f"ended with exit status {code}" if code >= 0 else f"was ended by {_signal_name(-code)}"

    def _watch_junk(self) -> None:
        if self._intake.flooded:
            limit = f"limit peer_junk_bytes, {self._limits.peer_junk_bytes}"
            self.lose(f"prints what is no MCP to its stdout ({limit})")

    def _on_bug(self) -> None:
        told = self._redaction.head(traceback.format_exc(), _TRACEBACK)
        _log.error("bug over what process %s sent\n%s", self.guard.child_pid, told)
        self.lose("sent something over which repl-trio has a bug, see its log")

    async def _at_end(self) -> None:
        """stdout has ended: its reason is known a moment later."""
        with trio.move_on_after(_LAST_WORDS):
            await self.guard.exited.wait()
        self.lose(self.ending() or "closed its stdout")

    # -- the end -----------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End the process: its stdin closes, SIGTERM after the grace, then the guardian kills all of it.

        A connection that broke gets no grace: what broke it once would do so again. Bounded; the caller shields.
        """
        self._stdin.close()
        if not self._orderly:
            return
        with trio.move_on_after(self._grace) as self._waiting:
            await self.guard.exited.wait()
        if not self.guard.exited.is_set():
            await self.guard.signal(signal.SIGTERM, "tree")
            with trio.move_on_after(self._kill) as self._waiting:
                await self.guard.exited.wait()

    async def drop_stdout(self) -> None:
        """Nobody reads messages any more: let the peer write what it has to, so that it can end."""
        while await self._stdout.receive():
            pass

    def close(self) -> None:
        """Close our ends of the pipes."""
        self._stdin.close()
        self._stdout.close()
        self._stderr.close()


@asynccontextmanager
async def open_stdio_link(entry: Entry, ground: Ground) -> AsyncIterator[Link]:
    """Own the process of a stdio entry: after the context nothing of it is left.

    Raises `BrokerError` when its program is not there and `OSError` when no process can be started. Leaving ends it, in
    order after `Link.leave`, at once otherwise; shielded, bounded by `peer_grace`, `peer_kill` and `guardian_clean`.
    """
    target = entry.target
    assert isinstance(target, Stdio)
    env = peer_environment(ground.environment, target)
    program = find_program(entry.name, target, env.get("PATH", os.defpath))
    start = start_piped(ground.watch.root, [program, *target.args], env, target.cwd, ground.limits)
    adopted = False
    try:
        async with open_guard(start.guardian, ground.watch, ground.limits) as guard:
            adopted = True
            link = Link(start, guard, ground)
            try:
                async with _at_work(link, entry.name):
                    yield link
            finally:
                link.close()
    finally:
        if not adopted:
            start.close()  # cancelled while the guardian was being forked: nobody has adopted the pipes


@asynccontextmanager
async def _at_work(link: Link, name: str) -> AsyncIterator[None]:
    """Own the tasks of a link and its end."""
    async with trio.open_nursery() as nursery:
        peer = f"peer {name!r}"
        nursery.start_soon(link.write, name=named(f"writes to {peer}"))
        nursery.start_soon(link.keep_stderr, name=named(f"keeps the stderr of {peer}"))
        nursery.start_soon(link.watch_exit, name=named(f"hears of the end of {peer}"))
        nursery.start_soon(link.watch_stdin, name=named(f"watches whether {peer} reads"))
        try:
            yield
        finally:
            with trio.CancelScope(shield=True) as ending:
                ending.deadline = trio.current_time() + link.bound
                nursery.start_soon(link.drop_stdout, name=named(f"drops what {peer} still says"))
                await link.stop()
            nursery.cancel_scope.cancel()


def _last_lines(text: str, size: int) -> str:
    """At most the last `size` characters: whole lines, unless the last alone is longer; no blanks after them."""
    shown = text[-size:]
    if len(text) > size and text[-size - 1] != "\n":
        shown = shown.partition("\n")[2] or shown
    return "\n".join(line.rstrip() for line in shown.split("\n"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
