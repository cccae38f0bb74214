"""What happened: steps by outcome, latencies, and every invariant with how often it was checked and how it failed."""

from __future__ import annotations

from collections import Counter, defaultdict

#: Every invariant that is checked; one that was never checked in a run is shown as such.
INVARIANTS = (
    "one answer to each request",
    "no answer once a cancel was heard",
    "answers within the bound",
    "values are right",
    "state claims are true",
    "no late marker",
    "a stopped run's processes are gone",
    "kept children live as long as their worker",
    "kept children end with their worker",
    "what was not run wrote nothing",
    "back to the start after all sessions closed",
    "the exit is in order",
    "nothing outlives its server",
    "no temporary file left",
    "no bug in the log",
    "memory is flat",
)

SHOWN = 40  # failures printed in full


class Record:
    """Counts of one whole stress test."""

    def __init__(self) -> None:
        self.steps: dict[str, Counter[str]] = defaultdict(Counter)
        self.latencies: dict[str, list[float]] = defaultdict(list)
        self.checks: Counter[str] = Counter()
        self.failures: list[tuple[str, str]] = []
        self.remarks: list[str] = []

    def step(self, name: str, outcome: str) -> None:
        """Count one thing done and how it ended."""
        self.steps[name][outcome] += 1

    def latency(self, name: str, seconds: float) -> None:
        """Keep one latency."""
        self.latencies[name].append(seconds)

    def check(self, invariant: str, truth: object, what: str) -> bool:
        """Count one check of an invariant; `what` is said when it fails."""
        assert invariant in INVARIANTS, invariant
        self.checks[invariant] += 1
        if not truth:
            self.failures.append((invariant, what))
        return bool(truth)

    def table(self) -> str:
        """The summary, without the failures."""
        lines = ["", "steps                              count  outcomes"]
        for name in sorted(self.steps):
            outcomes = self.steps[name]
            told = ", ".join(f"{outcome} {count}" for outcome, count in outcomes.most_common())
            lines.append(f"  {name:32} {outcomes.total():>5}  {told}")
        lines += ["", "latency in ms                      count      p50      p95      max"]
        for name in sorted(self.latencies):
            values = sorted(self.latencies[name])
            shown = [1000 * quantile(values, share) for share in (0.5, 0.95, 1.0)]
            lines.append(f"  {name:32} {len(values):>5} " + " ".join(f"{value:>8.1f}" for value in shown))
        lines += ["", "invariant                                          checks  failures"]
        failed = Counter(invariant for invariant, _ in self.failures)
        for invariant in INVARIANTS:
            mark = "FAILED" if failed[invariant] else "" if self.checks[invariant] else "not checked"
            lines.append(f"  {invariant:48} {self.checks[invariant]:>6}  {failed[invariant]:>8}  {mark}".rstrip())
        return "\n".join([*lines, "", *self.remarks])

    def complaint(self) -> str:
        """Every failure, loudly; empty when there is none."""
        if not self.failures:
            return ""
        shown = [f"  !! {invariant}: {what}" for invariant, what in self.failures[:SHOWN]]
        if len(self.failures) > SHOWN:
            shown.append(f"  !! and {len(self.failures) - SHOWN} more")
        return "\n".join([f"{len(self.failures)} FAILURES", *shown])


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of the sorted values lie."""
    return values[min(len(values) - 1, int(share * len(values)))]
