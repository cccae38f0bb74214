"""The front of `mcp`: the other MCP servers of the project, from inside a cell. The work is loaded on first use.

Every question is an `rpc` of the run that asks (`rpc`); whether it may be asked, and the answer, are the server's.
"""

from __future__ import annotations

from .isolation import isolated_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .envelope import Envelope, Facts, Listing, Told
    from .stubs import Stub
    from .turn import Turn

_ENVELOPE = "_repl_trio.worker.envelope"
_CLASSES = ("Error", "ToolError", "Envelope")
_NONE_CONFIGURED = (
    "no MCP servers are configured for this project. They go into .mcp.json in its folder:\n"
    '  {"mcpServers": {"git": {"command": "uvx", "args": ["mcp-server-git"]}}}\n'
    "then mcp.refresh(); mcp.explain(name) tells why one is not reachable"
)
_HOW = (
    "mcp.help(server) lists tools, mcp.help(server, tool) tells all of one, mcp.search(words) finds one;\n"
    "mcp.call(server, tool, name=value) calls it, mcp.stub(server) has them as Python functions; more: help(mcp)"
)


class Peers:
    """The other MCP servers of this project. They start when they are first needed.

        mcp                                         # which there are
        mcp.help("git");  mcp.help("git", "git_log")          # tools; one tool with its arguments
        r = mcp.call("git", "git_log", repo_path=".")         # blocks; the complete result, a dict
        r.text, r.data, r["content"], "structuredContent" in r, r.json(), r.blobs
        git = mcp.stub("git");  git.git_log(repo_path=".")    # tools as Python functions; also mcp.git.git_log(...)
        import asyncio                                        # many at once:
        rs = await asyncio.gather(*(mcp.acall("git", "git_show", repo_path=".", revision=x) for x in revisions))

    Errors are ordinary exceptions: mcp.ToolError (the tool says no; `.result` is its complete answer) is an mcp.Error,
    as is everything else that leaves a call without a result; `.code` and `.sent` ("no", "done", "unknown") say what
    happened. A call whose outcome is unknown is never sent again by itself. mcp.explain(server) tells why one cannot be
    used, mcp.journal() what has been called, and mcp.refresh() reads .mcp.json again.

    Usable from the cell and what has its context: tasks, asyncio.to_thread. Not from plain threads, forked processes
    and code of earlier cells.
    """

    __slots__ = ("_turn",)

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    # -- calling -----------------------------------------------------------------------------------------------

    def call(
        self,
        /,
        server: str,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        **named: Any,
    ) -> Envelope:
        """Call a tool and wait for its complete result: a dict with .text, .data and .json().

            mcp.call("files", "read_file", path="notes.txt").text
            mcp.call("db", "query", {"timeout": 5, "sql": "..."})   # as a dict: names that collide with ours

        timeout  seconds (120, unless the server's entry says otherwise)

        Arguments are checked against the tool's schema before anything is sent. Many schemas allow names that they do
        not list, so a misspelt one may pass; the functions of `stub` refuse it.

        Raises mcp.ToolError when the tool reports an error, mcp.Error for everything else. In an async cell it blocks
        the loop: use `await mcp.acall(...)`.
        """
        params = _call(server, tool, arguments, named, timeout)
        return _checked(self._turn.exchange().ask("call", params), server, tool)

    async def acall(
        self,
        /,
        server: str,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        **named: Any,
    ) -> Envelope:
        """`call` for asyncio: other tasks go on meanwhile. Cancelling the task cancels the call at its server.

            a, b = await asyncio.gather(mcp.acall("x", "one"), mcp.acall("x", "two", n=2))

        Hundreds may be started at once; a bounded number of them run at the same time.
        """
        params = _call(server, tool, arguments, named, timeout)
        return _checked(await self._turn.exchange().ask_async("call", params), server, tool)

    def stub(self, server: str) -> Stub:
        """The tools of a server as Python functions with signatures and docstrings, from their schemas.

        git = mcp.stub("git")
        git                                    # their signatures
        git.git_log(repo_path=".", max_count=3)
        await git.git_log.acall(repo_path=".")
        """
        found = self._ask("tools", server=_name(server, "server"))
        stubs = isolated_import("_repl_trio.worker.stubs")
        return stubs.Stub(self, server, found["tools"], found["invalid"], found["note"])  # type: ignore[no-any-return]

    def text(self, envelope: dict[str, Any]) -> str:
        """The text of a result's text blocks, joined by newlines."""
        return isolated_import(_ENVELOPE).text_of(envelope)  # type: ignore[no-any-return]

    # -- what there is -----------------------------------------------------------------------------------------

    def servers(self) -> Facts:
        """Name -> state (and number of tools, or the reason why it is not reachable) of each. Starts none. A dict."""
        return _by_name(self._ask("servers"))

    def list_tools(self, server: str) -> Listing:
        """The tools of a server, definitions complete as it sent them. `.invalid` tells of those that are no use."""
        found = self._ask("tools", server=_name(server, "server"))
        line = isolated_import(_ENVELOPE).line
        lines = [line(tool, "name") for tool in found["tools"]]
        return isolated_import(_ENVELOPE).Listing(found["tools"], lines, found["invalid"], found["note"])  # type: ignore[no-any-return]

    def help(self, server: str | None = None, tool: str | None = None) -> Told:
        """What there is, in words: all servers (starts none); the tools of one; one tool with its arguments."""
        asked = {"server": _name_or_none(server, "server"), "tool": _name_or_none(tool, "tool")}
        return isolated_import(_ENVELOPE).Told(self._ask("help", **asked))  # type: ignore[no-any-return]

    def search(self, words: str) -> Listing:
        """Tools whose name or description has these words, among the servers that have been used. Best first.

        `.note` names the servers that were not searched, because nothing has used them yet.
        """
        found = self._ask("search", words=_name(words, "words"))
        lines = [f"{match['server']}: {match['line']}" for match in found["matches"]]
        note = [*([] if lines else ["no tool has all these words"]), *([found["note"]] if found["note"] else [])]
        return isolated_import(_ENVELOPE).Listing(found["matches"], lines, note="\n".join(note) or None)  # type: ignore[no-any-return]

    def refresh(self, server: str | None = None) -> Facts:
        """Read the configuration and the servers' lists of tools anew on next use. Gives what `servers()` gives."""
        return _by_name(self._ask("refresh", server=_name_or_none(server, "server")))

    def explain(self, server: str, tool: str | None = None) -> Facts:
        """Why a server or a tool can be reached or not: where it is configured, its state, its last words. A dict."""
        found = self._ask("explain", server=_name(server, "server"), tool=_name_or_none(tool, "tool"))
        return isolated_import(_ENVELOPE).Facts(found)  # type: ignore[no-any-return]

    def journal(self) -> Listing:
        """The newest calls and what became of them, oldest first; without their arguments and results.

        A list of dicts. `status`: completed, tool_error, dispatched (not over yet), or outcome_unknown (it may have
        had its effect). `started`, `finished`: seconds since the epoch.
        """
        found = self._ask("journal")
        lines = map(isolated_import(_ENVELOPE).record_line, found)
        return isolated_import(_ENVELOPE).Listing(found, list(lines))  # type: ignore[no-any-return]

    # -- resources and prompts ---------------------------------------------------------------------------------

    def list_resources(self, server: str) -> Listing:
        """The resources of a server; `.templates` has those whose address is to be completed."""
        found = self._ask("resources", server=_name(server, "server"))
        line = isolated_import(_ENVELOPE).line
        lines = [line(one, "uri") for one in found["resources"]]
        lines += [line(one, "uriTemplate") for one in found["templates"]]
        listing: Listing = isolated_import(_ENVELOPE).Listing(found["resources"], lines)
        listing.templates = found["templates"]
        return listing

    def read_resource(self, server: str, uri: str) -> Envelope:
        """The complete contents of a resource, a dict with .text and .blobs."""
        answer = self._ask("read_resource", server=_name(server, "server"), uri=_name(uri, "uri"))
        return isolated_import(_ENVELOPE).Envelope(answer)  # type: ignore[no-any-return]

    def list_prompts(self, server: str) -> Listing:
        """The prompts of a server, with their arguments."""
        found = self._ask("prompts", server=_name(server, "server"))
        lines = map(isolated_import(_ENVELOPE).prompt_line, found)
        return isolated_import(_ENVELOPE).Listing(found, list(lines))  # type: ignore[no-any-return]

    def get_prompt(self, server: str, name: str, /, arguments: dict[str, str] | None = None, **named: str) -> Envelope:
        """A prompt filled in, complete: a dict with .text. Its arguments are strings, by name or as a dict.

        mcp.get_prompt("shop", "greet", name="Ann").text
        """
        given = _given(arguments, named)
        for key, value in given.items():
            _name(value, f"the argument {key!r} of a prompt")
        asked = {"server": _name(server, "server"), "name": _name(name, "name"), "arguments": given}
        return isolated_import(_ENVELOPE).Envelope(self._ask("get_prompt", **asked))  # type: ignore[no-any-return]

    # -- as an object ------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        try:
            found = self._ask("servers")
        except isolated_import(_ENVELOPE).Error as error:
            return f"<mcp: {error}>"
        words = isolated_import(_ENVELOPE).words
        lines = [f"  {one['name']}: {words(one)}" for one in found["servers"]]
        note = [found["note"]] if found["note"] else []
        # Without servers the note tells all: none are configured, or a file that cannot be read.
        return "\n".join(["MCP servers:", *lines, *note, _HOW] if lines else note or [_NONE_CONFIGURED])

    def __getattr__(self, name: str) -> Stub:
        """A server whose name is an identifier, or becomes one by underscores: its `stub`. And the classes."""
        if name in _CLASSES:
            return getattr(isolated_import(_ENVELOPE), name)  # type: ignore[no-any-return]
        if name.startswith("_"):
            raise AttributeError(name)
        stub: Stub | None = self._turn.stubs.get(name)
        if stub is None:
            stub = self._turn.stubs[name] = self.stub(self._server_named(name))
        return stub

    def __dir__(self) -> list[str]:
        names = {*_CLASSES, *(name for name in dir(type(self)) if not name.startswith("_"))}
        try:
            names.update(filter(str.isidentifier, map(_identifier(), self.servers())))
        except isolated_import(_ENVELOPE).Error:
            # Completion outside a run: the methods alone.
            return sorted(names)
        return sorted(names)

    def _server_named(self, name: str) -> str:
        names = list(self.servers())
        named = _identifier()
        fitting = [server for server in names if server == name] or [one for one in names if named(one) == name]
        if len(fitting) == 1:
            return fitting[0]
        known = ", ".join(names) or "none"
        raise AttributeError(f"mcp has no attribute {name!r}, and no server of that name alone; servers: {known}")

    def _ask(self, op: str, **params: Any) -> Any:
        return self._turn.exchange().ask(op, params)


def _call(
    server: Any, tool: Any, arguments: dict[str, Any] | None, named: dict[str, Any], timeout: float | None
) -> dict[str, Any]:
    """The params of a `call`. Raises TypeError or ValueError in words."""
    given = _given(arguments, named)
    if timeout is not None:
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
        timeout = float(timeout)
    return {"server": _name(server, "server"), "tool": _name(tool, "tool"), "arguments": given, "timeout": timeout}


def _given(arguments: dict[str, Any] | None, named: dict[str, Any]) -> dict[str, Any]:
    """Arguments as a dict and by name, together. Raises TypeError."""
    if arguments is not None and not isinstance(arguments, dict):
        raise TypeError(f"arguments must be a dict or given by name, not {type(arguments).__name__}")
    twice = sorted(set(arguments or ()) & set(named))
    if twice:
        raise TypeError(f"given twice, in arguments and by name: {', '.join(twice)}")
    return {**(arguments or {}), **named}


def _checked(answer: Any, server: str, tool: str) -> Envelope:
    return isolated_import(_ENVELOPE).checked(answer, server, tool)  # type: ignore[no-any-return]


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    return value


def _name_or_none(value: Any, what: str) -> str | None:
    return None if value is None else _name(value, what)


def _by_name(found: Any) -> Facts:
    states = {one["name"]: {key: value for key, value in one.items() if key != "name"} for one in found["servers"]}
    return isolated_import(_ENVELOPE).Facts(states)  # type: ignore[no-any-return]


def _identifier() -> Callable[[str], str]:
    return isolated_import("_repl_trio.worker.identifiers").identifier  # type: ignore[no-any-return]


# What `help`, a TypeError and a traceback call it and its methods: cells know no other name.
Peers.__module__ = "__main__"
Peers.__name__ = Peers.__qualname__ = "mcp"
for _name_of_method, _method in vars(Peers).items():
    if isinstance(_method, type(_call)):
        _method.__module__ = "__main__"
        _method.__qualname__ = f"mcp.{_name_of_method}"
