"""A peer for tests: an MCP server on stdio, by hand and with the standard library alone.

    python peer.py [--era both|legacy|modern|mute] [--log FILE] [start options] [catalogue options]

The first request decides the era, as in real servers; `legacy` knows no `server/discover`, `modern` refuses
`initialize`, `mute` ignores everything before `initialize`. `--log` appends one JSON line for each message that arrives
and for each process start, so that a test can count arrivals.

Start options misbehave before or instead of a handshake: `--before TEXT` prints lines, `--junk BYTES` writes so many
bytes without a newline, `--stderr TEXT`, `--stderr-flood BYTES`, `--exit CODE`, `--silent` never answers, `--deaf`
never reads, `--stubborn` ignores SIGTERM and stays after the end of stdin, `--children N` forks children that stay,
`--strict` ends itself at any first request but `initialize`, `--graceful` stays until SIGTERM and notes that it came.
Catalogue options: `--pages N`, `--cursor repeat|endless|error|refused|death|silent`, `--tools FILE` (definitions served
as they are, in pages), `--ttl MS`, `--instructions TEXT`. What the tools do is in `tools.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.peers.catalogue import Listing
from tests.peers.tools import TOOLS, Call, Failure

MODERN = "2026-07-28"
HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
META = "io.modelcontextprotocol/"
Message = dict[str, Any]


class Peer:
    """The connection to one client."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.era = ""
        self.ready = False
        self.calls: dict[object, Call] = {}
        self.answers: dict[object, Message] = {}
        self.answered = threading.Condition()
        self.capabilities: Message = {}
        self.asked = 0
        self.subscriptions: list[object] = []
        self.listing = Listing(options)
        self._writing = threading.Lock()
        self._logging = threading.Lock()

    # -- both directions ---------------------------------------------------------------------------------------

    def log(self, **entry: object) -> None:
        """Note something for the test."""
        if self.options.log:
            with self._logging, open(self.options.log, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def send(self, message: Message) -> None:
        """One message as one line."""
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def write(self, line: bytes) -> None:
        """Raw bytes to stdout, whole."""
        with self._writing:
            view = memoryview(line)
            while view:
                view = view[os.write(1, view) :]

    def notify(self, method: str, params: Message) -> None:
        self.send({"method": method, "params": params})

    def begin_ask(self, method: str, params: Message) -> str:
        """A request to the client; its id."""
        with self.answered:
            self.asked += 1
            number = f"peer-{self.asked}"
        self.send({"id": number, "method": method, "params": params})
        return number

    def ask(self, method: str, params: Message) -> Message:
        """A request to the client; its whole answer."""
        number = self.begin_ask(method, params)
        with self.answered:
            self.answered.wait_for(lambda: number in self.answers, 30)
            return self.answers.pop(number)

    def serve(self) -> None:
        """Answer until the end of stdin."""
        for line in sys.stdin.buffer:
            message = json.loads(line)
            self.log(got=message.get("method", "answer"), id=message.get("id"), params=message.get("params"))
            if "method" not in message:
                self.log(answer=message)
                with self.answered:
                    self.answers[message.get("id")] = message
                    self.answered.notify_all()
            elif "id" in message:
                self.request(message)
            else:
                self.notified(message)

    # -- requests ----------------------------------------------------------------------------------------------

    def request(self, message: Message) -> None:
        method, params, number = message["method"], message.get("params") or {}, message["id"]
        if self.options.silent or (self.options.era == "mute" and not self.era and method != "initialize"):
            return
        if self.options.strict and not self.era and method != "initialize":
            os._exit(1)
        try:
            self.decide(method, params)
            if method == "tools/call":
                return self.call(number, params)
            result = self.result(method, params, number)
        except Failure as failure:
            return self.send({"id": number, "error": failure.error})
        if result is not None:
            self.send({"id": number, "result": self.stamped(result)})
        return None

    def decide(self, method: str, params: Message) -> None:
        """The era of this connection, by its first request that can tell."""
        enveloped = META + "protocolVersion" in (params.get("_meta") or {})
        if self.era == "modern" and method == "initialize":
            raise Failure(-32022, "this connection is modern", {"supported": [MODERN], "requested": "?"})
        if self.era:
            return
        if enveloped and self.options.era in ("both", "modern"):
            self.era = "modern"
        elif method == "initialize" and self.options.era == "modern":
            raise Failure(-32022, "modern only", {"supported": [MODERN], "requested": "?"})
        elif method == "initialize":
            self.era = "legacy"
        else:
            raise Failure(-32601, f"not before initialize: {method}")

    def stamped(self, result: Message) -> Message:
        return {"resultType": "complete", **result} if self.era == "modern" else result

    def result(self, method: str, params: Message, number: object) -> Message | None:
        about = {"name": "fixture", "version": "1"}
        capabilities: Message = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
        told = {"instructions": self.options.instructions} if self.options.instructions else {}
        if method == "initialize":
            self.capabilities = params.get("capabilities") or {}
            asked = params.get("protocolVersion")
            version = asked if asked in HANDSHAKE else HANDSHAKE[-1]
            return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": about, **told}
        if method == "server/discover" and self.era == "modern":
            cache: Message = {"ttlMs": 0, "cacheScope": "private"}
            meta: Message = {"_meta": {META + "serverInfo": about}}
            return {"supportedVersions": [MODERN], "capabilities": capabilities, **told, **cache, **meta}
        if method == "subscriptions/listen" and self.era == "modern":
            self.subscriptions.append(number)
            meta = {META + "subscriptionId": number}
            self.notify(
                "notifications/subscriptions/acknowledged", {"notifications": {"toolsListChanged": True}, "_meta": meta}
            )
            return None
        if method == "tools/list":
            return self.listing.page(params.get("cursor"), modern=self.era == "modern")
        return self.rest(method, params)

    def rest(self, method: str, params: Message) -> Message:
        """Resources and prompts."""
        if method == "ping":
            return {}
        if method == "resources/list":
            return {
                "resources": [{"uri": "test://one", "name": "one", "extra": None}],
                "ttlMs": 0,
                "cacheScope": "private",
            }
        if self.options.bare:
            # Offered all the same, as some servers do.
            raise Failure(-32601, f"no method {method}")
        if method == "resources/templates/list":
            return {"resourceTemplates": [], "ttlMs": 0, "cacheScope": "private"}
        if method == "resources/read":
            if params.get("uri") != "test://one":
                raise Failure(-32002, "Resource not found", {"uri": params.get("uri")})
            content = {"uri": "test://one", "mimeType": "text/plain", "text": "first\nsecond", "odd": 1}
            return {"contents": [content], "ttlMs": 0, "cacheScope": "private"}
        if method == "prompts/list":
            return {
                "prompts": [{"name": "greet", "arguments": [{"name": "who", "required": True}]}],
                "ttlMs": 0,
                "cacheScope": "private",
            }
        if method == "prompts/get":
            who = (params.get("arguments") or {}).get("who")
            return {"messages": [{"role": "user", "content": {"type": "text", "text": f"hello {who}"}}]}
        raise Failure(-32601, f"no method {method}")

    def call(self, number: object, params: Message) -> None:
        """Start one call in a thread of its own."""
        tool = TOOLS.get(params.get("name", ""))
        if tool is None:
            raise Failure(-32602, f"Unknown tool: {params.get('name')}")
        call = self.calls[number] = Call(self, number, params)

        def run() -> None:
            try:
                result = tool.act(call)
            except Failure as failure:
                self.send({"id": number, "error": failure.error})
            else:
                # As the protocol asks: a cancelled request is not answered, unless the tool insists.
                if result is not None and (call.insists or not call.cancelled.is_set()):
                    self.send({"id": number, "result": self.stamped(result)})
            finally:
                del self.calls[number]

        threading.Thread(target=run, daemon=True).start()

    def notified(self, message: Message) -> None:
        if message["method"] == "notifications/cancelled":
            call = self.calls.get((message.get("params") or {}).get("requestId"))
            if call is not None:
                call.cancelled.set()

    def leave(self, _number: int, _frame: object) -> None:
        """Note a signal and end."""
        self.log(terminated=True)
        os._exit(0)

    def changed(self) -> None:
        """Tell that the list of tools is another one now."""
        if self.era == "legacy":
            return self.send({"method": "notifications/tools/list_changed"})
        for number in self.subscriptions:
            self.notify("notifications/tools/list_changed", {"_meta": {META + "subscriptionId": number}})
        return None


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=["both", "legacy", "modern", "mute"], default="both")
    for name in ("--log", "--tools", "--before", "--stderr", "--tag", "--instructions"):
        parser.add_argument(name)
    for name in ("--junk", "--stderr-flood", "--children", "--exit", "--ttl"):
        parser.add_argument(name, type=int)
    parser.add_argument("--pages", type=int, default=1)
    parser.add_argument("--cursor", choices=["repeat", "endless", "error", "refused", "death", "silent"])
    for name in ("--silent", "--deaf", "--stubborn", "--strict", "--graceful", "--bare"):
        parser.add_argument(name, action="store_true")
    return parser.parse_args()


def misbehave(given: argparse.Namespace) -> None:
    """What was asked for before the first message."""
    if given.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(given.children or 0):
        if os.fork() == 0:
            os.setsid()
            while True:
                time.sleep(60)
    if given.stderr:
        print(given.stderr, file=sys.stderr, flush=True)
    if given.stderr_flood:
        sys.stderr.write(("x" * 99 + "\n") * (given.stderr_flood // 100))
        sys.stderr.flush()
    if given.before is not None:
        os.write(1, given.before.encode() + b"\n\n")
    for _ in range((given.junk or 0) // 10_000):
        os.write(1, b"junk " * 2_000)
    if given.exit is not None:
        sys.exit(given.exit)
    while given.deaf:
        time.sleep(60)


if __name__ == "__main__":
    chosen = options()
    peer = Peer(chosen)
    if chosen.graceful:
        signal.signal(signal.SIGTERM, peer.leave)
    peer.log(started=os.getpid())
    misbehave(chosen)
    peer.serve()
    while chosen.stubborn or chosen.graceful:
        time.sleep(60)
