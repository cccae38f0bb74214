"""The command: play the test, print the summary, and exit 1 when an invariant did not hold."""

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import trio

from stress import kernel
from stress.record import Record
from stress.rounds import play


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/stress", description="The cancellation stress test, over real stdio."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, about (60)")
    parser.add_argument("--seed", type=int, help="which choice of steps (a random one, printed)")
    parser.add_argument("--sessions", type=int, default=8, help="sessions of one server in parallel, at most 32 (8)")
    options = parser.parse_args(arguments)
    if not 1 <= options.sessions <= 32 or options.seconds <= 0:
        parser.error("1 to 32 sessions, and more than 0 seconds")
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    if not kernel.adopt_orphans():
        print("stress: needs Linux, where nothing can hide from a child subreaper", file=sys.stderr)
        return 2
    print(f"stress: seed {seed}, {options.sessions} sessions, {options.seconds:g} s", flush=True)
    record = Record()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="repl-trio-stress-") as folder:
        trio.run(play, Path(folder), record, seed, options.seconds, options.sessions)
    print(record.table())
    print(f"{time.monotonic() - began:.0f} s; again with --seed {seed}")
    complaint = record.complaint()
    print(complaint or "all invariants hold")
    return 1 if complaint else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
