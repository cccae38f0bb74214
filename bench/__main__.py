"""The command: measure one server, print the table, and write the JSON where it was asked for.

Exit 0 when all was measured, 1 when the server cannot be measured, when a figure of our own server is missing, or with
--check when it misses a target. A peer's missing figures are "-" and no failure.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import broker, floors, guardian, output
from bench.client import Client
from bench.figures import FIGURES, SERVER, TWO_HOP, Figure, Sample
from bench.measures import PLAN, Effort, Measure, Plan, Side
from bench.process import MeasureError
from bench.report import document, rows, table
from bench.surface import find_surface

#: What clients launch.
OWN_SERVER = (str(Path(__file__).resolve().parent.parent / "scripts" / "run"),)


class Bench:
    """The recorded samples of both sides, and what went wrong; a measure that failed once is not tried again."""

    def __init__(self, server: Side, two_hop: Side, effort: Effort, plan: Plan = PLAN) -> None:
        self.recorded: dict[tuple[str, str], list[Sample]] = {}
        self.failures: list[str] = []
        self._sides = (server, two_hop)
        self._effort = effort
        self._plan = plan
        self._failed: set[tuple[Measure, Side]] = set()

    def run(self) -> None:
        """All rounds. Within one, each figure's floors are measured right after the figure itself."""
        server, two_hop = self._sides
        try:
            for number in range(1, self._effort.rounds + 1):
                print(f"round {number} of {self._effort.rounds}", file=sys.stderr, flush=True)
                for on_server, on_two_hop, around in self._plan:
                    for measure, side in ((on_server, server), (on_two_hop, two_hop), (around, server)):
                        if measure is not None and (measure, side) not in self._failed:
                            self._measure(measure, side)
                self._cool()
        finally:
            self._cool()

    def left_behind(self) -> dict[str, int]:
        """How many processes outlived each side at its orderly ends."""
        return {side.name: side.left_behind for side in self._sides}

    def _measure(self, measure: Measure, side: Side) -> None:
        try:
            for key, sample in measure(side, self._effort).items():
                self.recorded.setdefault(key, []).append(sample)
        except MeasureError as error:
            # The kept process may still owe an answer, which the next measure would take for a late one of its own.
            side.cool()
            self._failed.add((measure, side))
            self.failures.append(f"{measure.__name__} on the {side.name}: {error}")
            print(f"bench: {self.failures[-1]}", file=sys.stderr, flush=True)

    def _cool(self) -> None:
        # Start and memory are measured with no warm process beside them: shared pages would lower the PSS.
        for side in self._sides:
            side.cool()


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _end_on_signal)
    command = options.server or OWN_SERVER
    # Servers start in an empty folder: no project file may steer them, and they may write what they like.
    with tempfile.TemporaryDirectory(prefix="bench-") as cwd:
        try:
            server, name = _first_look(SERVER, command, cwd, options)
            two_hop, _ = _first_look(TWO_HOP, floors.two_hop(floors.server_python(command)), cwd, None)
        except MeasureError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        bench = Bench(server, two_hop, _effort(options), _group(options)[0])
        load = os.getloadavg()[0]
        bench.run()
    return _report(bench, {**_about(server, options), "server": name, "load_before": load}, options)


def _report(bench: Bench, about: dict[str, Any], options: argparse.Namespace) -> int:
    """Print and write what was found; the exit status."""
    own = options.server is None or options.targets
    found = rows(bench.recorded, with_targets=own, figures=_group(options)[1])
    print(f"{about['command']}  ({about['server']}), Python {about['python']}, {about['cpus']} CPUs")
    print(f"{about['rounds']} rounds, {about['calls']} calls a round, load before {about['load_before']:.2f}")
    print(table(found, about["probe"]), flush=True)
    if options.guardian:
        print(guardian.spans(found), flush=True)
    if options.broker:
        print(broker.differences(found), flush=True)
    for side, left in bench.left_behind().items():
        if left:
            print(f"processes that outlived the {side} and were killed: {left}")
    if options.json is not None:
        text = json.dumps(document({**about, "left_behind": bench.left_behind()}, found, bench.failures), indent=1)
        if options.json == "-":
            print(text)
        else:
            Path(options.json).write_text(text + "\n")
    missed = any(not verdict.met for row in found for verdict in row.verdicts)
    return int(own and (bool(bench.failures) or (options.check and missed)))


def _group(options: argparse.Namespace) -> tuple[Plan, tuple[Figure, ...]]:
    """What is measured, and what is reported of it."""
    if options.guardian:
        return guardian.PLAN, guardian.FIGURES
    if options.broker:
        return broker.PLAN, broker.FIGURES
    return (output.PLAN, output.FIGURES) if options.output else (PLAN, FIGURES)


def _first_look(name: str, command: tuple[str, ...], cwd: str, options: argparse.Namespace | None) -> tuple[Side, str]:
    """Start a server once to learn its tools, which also warms the file cache; the side, and who it says it is."""
    with Client(command, cwd) as client:
        client.initialize()
        tool, argument = (options.tool, options.argument) if options is not None else (None, None)
        surface = find_surface(client, tool, argument)
        says = f"{client.server.get('name', '?')} {client.server.get('version', '?')}"
    return Side(name, command, surface, cwd), says


def _about(server: Side, options: argparse.Namespace) -> dict[str, Any]:
    effort, surface = _effort(options), server.surface
    return {
        "command": shlex.join(server.command),
        "tool": surface.tool,
        "argument": surface.argument,
        "probe": surface.probe,
        "rounds": effort.rounds,
        "calls": effort.calls,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
    }


def _command(text: str) -> tuple[str, ...]:
    """The command with paths to existing files made absolute: the server does not start in the caller's folder."""
    words = shlex.split(text)
    if not words:
        raise argparse.ArgumentTypeError("an empty command")
    return tuple(os.path.abspath(word) if os.sep in word and os.path.isfile(word) else word for word in words)


def _effort(options: argparse.Namespace) -> Effort:
    rounds, calls, sleep, idle = (3, 100, 0.4, 0.5) if options.quick else (9, 1000, 1.0, 1.0)
    return Effort(options.rounds or rounds, options.calls or calls, sleep, idle)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measure a Python MCP server beside its floors; one table, and JSON."
    )
    parser.add_argument(
        "--server", type=_command, metavar="COMMAND", help="another server's command line (default: our own)"
    )
    parser.add_argument("--tool", metavar="NAME", help="its tool that runs code (default: found in tools/list)")
    parser.add_argument(
        "--argument",
        metavar="NAME",
        help="the parameter of that tool that holds the code; inside another one as OUTER.NAME",
    )
    parser.add_argument("--targets", action="store_true", help="judge the server of --server by our targets")
    parser.add_argument("--check", action="store_true", help="exit 1 when our own server misses a target")
    groups = parser.add_mutually_exclusive_group()
    groups.add_argument("--output", action="store_true", help="measure floods of output instead of everything else")
    groups.add_argument("--guardian", action="store_true", help="measure our guardians instead of everything else")
    groups.add_argument(
        "--broker", action="store_true", help="measure calls to other servers instead of everything else"
    )
    parser.add_argument("--rounds", type=_count, metavar="N", help="interleaved rounds (9; with --quick 3)")
    parser.add_argument("--calls", type=_count, metavar="N", help="calls a round where calls are cheap (1000; 100)")
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds and calls, shorter sleeps: no figures to quote"
    )
    parser.add_argument("--json", metavar="FILE", help='write JSON to FILE, with "-" after the table')
    return parser


def _end_on_signal(number: int, frame: object) -> None:
    # As an exception, so that every process is ended on the way out.
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
