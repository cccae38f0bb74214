"""What is measured: every figure, the floors it stands beside, and the targets of our own server."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SERVER = "server"
TWO_HOP = "two-hop floor"
PASS = "python -c pass"
TRIO = "import trio"
TWO_HOP_PING = "its ping, no cell"
SPINNER = "other process spins"
BARE = "bare pipe reader"

P95_CALLS = 20
"""A round of fewer values has no 95th percentile of its own: the values of all rounds are taken together."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one round gave, in seconds or bytes. `blocked`: an answer waited for the cell; the value is how long."""

    values: tuple[float, ...]
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """The median of the rounds' medians, the 95th percentile found alike, and the least and the most of all values, in
    the unit of the samples."""

    median: float
    p95: float
    least: float
    most: float
    blocked: bool
    rounds: int


@dataclass(frozen=True, slots=True)
class Target:
    """An upper bound: of the ratio of medians, of that of 95th percentiles, or in the figure's unit of the median, the
    95th percentile, the most of all values, or what the median has more than the floor's."""

    of: Literal["ratio", "p95_ratio", "median", "p95", "most", "added"]
    limit: float


@dataclass(frozen=True, slots=True)
class Floor:
    """One comparison of a figure: the side it is measured on, and what our own server has to keep."""

    side: str
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the report. Samples of unit "ms" are seconds, of "MB" (10^6 bytes) bytes, of "%" shares of one."""

    key: str
    title: str
    unit: Literal["ms", "MB", "%"]
    floors: tuple[Floor, ...]

    def scaled(self, value: float) -> float:
        """A sample's value in the unit of the figure."""
        return value * {"ms": 1e3, "MB": 1e-6, "%": 100.0}[self.unit]


def _ratio(limit: float) -> tuple[Target, ...]:
    return (Target("ratio", limit),)


FIGURES = (
    Figure("initialize", "start -> initialize answer", "ms", (Floor(PASS, _ratio(2.5)), Floor(TRIO), Floor(TWO_HOP))),
    Figure("start_to_cell", "start -> first cell result", "ms", (Floor(TWO_HOP, _ratio(3.5)),)),
    Figure("first_cell", "first cell, idle server", "ms", (Floor(TWO_HOP),)),
    Figure("warm_cell", "warm 1+1", "ms", (Floor(TWO_HOP, _ratio(2.5)),)),
    Figure("reset", "reset, then 1+1", "ms", (Floor(TWO_HOP),)),
    Figure("print_1mb", "1 MB in one print", "ms", (Floor(TWO_HOP),)),
    Figure("print_lines", "1 MB in 10,000 prints", "ms", (Floor(TWO_HOP),)),
    Figure("probe_sleeping", "{probe}, cell sleeps", "ms", (Floor(TWO_HOP_PING),)),
    Figure(
        "probe_spinning",
        "{probe}, cell spins",
        "ms",
        (Floor(SPINNER, (Target("median", 2.0), Target("p95_ratio", 5.0))),),
    ),
    Figure("rss_idle", "RSS of the tree, before a cell", "MB", (Floor(TRIO, _ratio(1.4)),)),
    Figure("pss_idle", "PSS of the tree, before a cell", "MB", (Floor(TRIO),)),
    Figure("rss_used", "RSS of the tree, after a cell", "MB", (Floor(TWO_HOP),)),
    Figure("pss_used", "PSS of the tree, after a cell", "MB", (Floor(TWO_HOP, (Target("median", 40.0),)),)),
)


def summarise(samples: Sequence[Sample]) -> Summary | None:
    """One figure over all rounds; None without a sample."""
    if not samples:
        return None
    medians = [statistics.median(sample.values) for sample in samples]
    if min(len(sample.values) for sample in samples) >= P95_CALLS:
        p95 = statistics.median(percentile95(sample.values) for sample in samples)
    else:
        p95 = percentile95([value for sample in samples for value in sample.values])
    every = [value for sample in samples for value in sample.values]
    blocked = any(sample.blocked for sample in samples)
    return Summary(statistics.median(medians), p95, min(every), max(every), blocked, len(samples))


def percentile95(values: Sequence[float]) -> float:
    """The smallest value that at least 95 % of the values do not exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]
