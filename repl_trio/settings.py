"""argv and environment -> one frozen `Settings`. Nobody else reads `os.environ`.

`argparse` costs 9 ms, nearly half of what an opening exchange may take, so it is imported only when there is something
to parse: a bare `repl-trio` or `repl-trio serve` is understood without it.
"""

from __future__ import annotations

import os
import sys

from . import __version__
from .limits import Limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import NoReturn

COMMANDS = ("serve", "console", "exec", "doctor")
SCOPES = ("project", "user", "local")
LOG_LEVELS = ("debug", "info", "warning", "error")


class Settings:
    """What one process of the product was asked to do. Not changed after `parse`.

    `project` is the canonical launch directory (or `--project-root`); `python` the interpreter given with `--python`;
    `environment` the user's, handed to workers as it is; `arguments` what follows `exec`; `memory_mib` the bound on a
    worker's resident memory, 0 for none; `config` the file with peers that stands for the project's own; `scopes` which
    peers may be used at all, of `SCOPES`; `journal` the file that remembers calls to them, None for memory alone.
    """

    __slots__ = (
        "arguments",
        "command",
        "config",
        "environment",
        "journal",
        "limits",
        "log_file",
        "log_level",
        "memory_mib",
        "project",
        "python",
        "scopes",
    )

    def __init__(self, command: str) -> None:
        self.command = command
        self.arguments: tuple[str, ...] = ()
        self.config: str | None = None
        self.environment: dict[str, str] = dict(os.environ)
        self.journal: str | None = None
        self.limits = Limits()
        self.log_file: str | None = None
        self.log_level = "warning"
        self.memory_mib = self.limits.memory_mib
        self.project = _launch_directory()
        self.python: str | None = None
        self.scopes: tuple[str, ...] = ("project",)


def _launch_directory() -> str:
    try:
        return os.path.realpath(os.getcwd())
    except FileNotFoundError:
        raise SystemExit("repl-trio: the working directory no longer exists; start it in one that does") from None


def parse(argv: Sequence[str], *, terminal: bool) -> Settings:
    """The settings of a command line (without the program's name).

    `terminal` tells whether stdin is one, which decides between `console` and `serve` when no command is given. A wrong
    command line ends the process with status 2 and one sentence on stderr, as `argparse` does.
    """
    default = "console" if terminal else "serve"
    if not argv:
        return Settings(default)
    if list(argv) == ["serve"]:
        return Settings("serve")
    return _parse(argv, default)


def _parse(argv: Sequence[str], default: str) -> Settings:
    parser = _parser()
    # What follows `exec FILE` belongs to the file: argparse must not look at it.
    split = _exec_split(argv)
    options = {option for action in parser._actions for option in action.option_strings}
    for text in argv[:split]:
        # Before argparse, which would take the value of a misspelt option for a command and complain about that.
        if text.startswith("-") and text.partition("=")[0] not in options:
            _refuse_unknown(parser, text, options)
    known = parser.parse_args(argv[:split])
    settings = Settings(known.command or default)
    if settings.command == "exec":
        settings.arguments = tuple(argv[split:])
        if not settings.arguments:
            parser.error("exec takes a file: repl-trio exec FILE [ARG ...]")
    if known.project_root is not None:
        settings.project = os.path.realpath(known.project_root)
        if not os.path.isdir(settings.project):
            parser.error(f"--project-root: {known.project_root} is no directory")
    settings.python = known.python
    settings.scopes = known.mcp_scope
    if known.config is not None:
        # Whether it can be read is found out at its use: a broken registry never stops the start.
        settings.config = os.path.abspath(known.config)
        if "project" not in settings.scopes:
            parser.error("--config stands for the project's file, which --mcp-scope leaves out")
    if known.journal is not None:
        # Whether it can be written is found out at its use, and calls alone fail then.
        settings.journal = os.path.abspath(known.journal)
    settings.log_file = known.log_file
    if known.log_file is not None:
        try:
            with open(known.log_file, "a"):
                pass
        except OSError as error:
            parser.error(f"--log-file: {known.log_file} cannot be written ({error.strerror})")
    settings.log_level = known.log_level
    try:
        settings.limits = Limits.overridden(dict(_pair(text) for text in known.limit))
    except ValueError as error:
        parser.error(f"--limit: {error}")
    settings.memory_mib = settings.limits.memory_mib if known.max_memory_mib is None else known.max_memory_mib
    return settings


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


def _mebibytes(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        import argparse

        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of mebibytes; 0 means no bound")
    return int(text)


def _scopes(text: str) -> tuple[str, ...]:
    """`none`, `all`, or some of `SCOPES` with commas between them."""
    if text in ("none", "all"):
        return SCOPES if text == "all" else ()
    given = text.split(",")
    if unknown := [scope for scope in given if scope not in SCOPES]:
        import argparse

        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no scope; known: none, all, {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in given)


def _exec_split(argv: Sequence[str]) -> int:
    """Where the arguments of `exec` begin: behind the first `exec` that is no option's value."""
    index = 0
    while index < len(argv):
        if argv[index] == "exec":
            return index + 1
        # Every long option without `=` takes one value, but for these two.
        takes_value = argv[index].startswith("--") and "=" not in argv[index] and argv[index] not in _FLAGS
        index += 2 if takes_value else 1
    return len(argv)


_FLAGS = ("--help", "--version")


def _parser() -> argparse.ArgumentParser:
    import argparse

    parser = argparse.ArgumentParser(
        prog="repl-trio",
        description="A persistent Python REPL for coding agents, served over stdio MCP. "
        "Runs code with your own rights: crash isolation, no sandbox.",
        epilog="Without a command: console on a terminal, serve otherwise.",
        allow_abbrev=False,
    )
    parser.add_argument("command", nargs="?", choices=COMMANDS, help="what to do; exec FILE [ARG ...] runs a file")
    parser.add_argument("--python", metavar="PATH", help="the workers' interpreter (3.10 or newer)")
    parser.add_argument("--project-root", metavar="PATH", help="project directory (default: the launch directory)")
    parser.add_argument("--config", metavar="PATH", help="file with MCP servers instead of the project's .mcp.json")
    parser.add_argument(
        "--mcp-scope",
        metavar="SCOPES",
        type=_scopes,
        default=("project",),
        help="whose MCP servers cells may reach: none, all, or some of project,user,local (default: project)",
    )
    parser.add_argument("--journal", metavar="PATH", help="file that remembers calls to MCP servers across restarts")
    parser.add_argument(
        "--max-memory-mib",
        metavar="N",
        type=_mebibytes,
        help="resident memory of a worker (default: 2048, 0: no bound)",
    )
    parser.add_argument(
        "--limit", metavar="NAME=VALUE", action="append", default=[], help="override one number of limits.py"
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="warning", help="default: warning")
    parser.add_argument("--log-file", metavar="PATH", help="log there instead of stderr")
    parser.add_argument("--version", action="version", version=f"repl-trio {__version__}")
    return parser


def _refuse_unknown(parser: argparse.ArgumentParser, unknown: str, options: set[str]) -> NoReturn:
    import difflib

    near = difflib.get_close_matches(unknown.partition("=")[0], options, 1, 0.5)
    hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(options))}"
    parser.error(f"unknown option {unknown}{hint}")


def stdin_is_terminal() -> bool:
    """Whether a person sits at the other end of stdin; a closed stdin is no terminal."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
