"""The report: one table for people, one JSON document for programs, both from the same rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.figures import FIGURES, SERVER, Figure, Floor, Sample, Summary, Target, summarise

Recorded = Mapping[tuple[str, str], Sequence[Sample]]
"""The samples of all rounds by (figure, side)."""

HEADINGS = ("figure", "median", "p95", "", "floor", "median", "p95", "ratio", "p95 ratio", "target", "")
TARGET_TEXT = {"p95_ratio": "p95 ratio", "added": "more than floor"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and whether it was met; a figure that could not be measured, or was blocked, does not meet it."""

    target: Target
    met: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside one of its floors. Summaries are in the figure's unit; None where a side has no such figure."""

    figure: Figure
    floor: Floor
    own: Summary | None
    other: Summary | None
    verdicts: tuple[Verdict, ...]

    @property
    def ratio(self) -> float | None:
        """Median of the server divided by the floor's; None when one is missing, or blocked and so without an end."""
        if self.own is None or self.other is None or self.own.blocked:
            return None
        return self.own.median / self.other.median

    @property
    def p95_ratio(self) -> float | None:
        """The same of the 95th percentiles."""
        if self.own is None or self.other is None or self.own.blocked:
            return None
        return self.own.p95 / self.other.p95

    @property
    def added(self) -> float | None:
        """What the median of the server has more than the floor's."""
        if self.own is None or self.other is None or self.own.blocked:
            return None
        return self.own.median - self.other.median

    def reached(self, target: Target) -> float | None:
        """What a target bounds."""
        if target.of in ("ratio", "p95_ratio", "added"):
            found: float | None = getattr(self, target.of)
            return found
        return getattr(self.own, target.of) if self.own is not None else None


def rows(recorded: Recorded, *, with_targets: bool, figures: Sequence[Figure] = FIGURES) -> list[Row]:
    """Every figure with every floor, in the order of `figures`; verdicts only for our own server."""
    found = []
    for figure in figures:
        own = _summary(figure, recorded, SERVER)
        for floor in figure.floors:
            other = _summary(figure, recorded, floor.side)
            row = Row(figure, floor, own, other, ())
            targets = floor.targets if with_targets else ()
            verdicts = tuple(Verdict(target, _met(row, target)) for target in targets)
            found.append(Row(figure, floor, own, other, verdicts))
    return found


def _summary(figure: Figure, recorded: Recorded, side: str) -> Summary | None:
    summary = summarise(recorded.get((figure.key, side), ()))
    if summary is None:
        return None
    return Summary(
        median=figure.scaled(summary.median),
        p95=figure.scaled(summary.p95),
        least=figure.scaled(summary.least),
        most=figure.scaled(summary.most),
        blocked=summary.blocked,
        rounds=summary.rounds,
    )


def _met(row: Row, target: Target) -> bool:
    reached = row.reached(target)
    return reached is not None and reached <= target.limit and not (row.own and row.own.blocked)


def document(about: dict[str, Any], found: Sequence[Row], failures: Sequence[str]) -> dict[str, Any]:
    """The JSON form: `about`, `failures`, and `figures` by key, each with its summary and a list of floors."""
    figures: dict[str, Any] = {}
    for row in found:
        entry = figures.setdefault(
            row.figure.key,
            {"title": row.figure.title, "unit": row.figure.unit, "server": row.own and asdict(row.own), "floors": []},
        )
        entry["floors"].append(
            {
                "name": row.floor.side,
                "floor": row.other and asdict(row.other),
                "ratio": row.ratio,
                "p95_ratio": row.p95_ratio,
                "added": row.added,
                "targets": [{**asdict(verdict.target), "met": verdict.met} for verdict in row.verdicts],
            }
        )
    return {**about, "figures": figures, "failures": list(failures)}


def table(found: Sequence[Row], probe: str) -> str:
    """The rows as aligned columns; a figure with several floors is named once."""
    lines: list[tuple[str, ...]] = [HEADINGS]
    last = None
    for row in found:
        lines.extend(_cells(row, probe, repeated=row.figure is last))
        last = row.figure
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    numbers = (1, 2, 5, 6, 7, 8)
    padded = [
        text.rjust(width) if column in numbers else text.ljust(width)
        for column, (text, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def _cells(row: Row, probe: str, *, repeated: bool) -> Iterator[tuple[str, ...]]:
    """One line of the table, and one more for every further target."""
    own = ("", "", "", "") if repeated else (row.figure.title.format(probe=probe), *_measured(row.own), row.figure.unit)
    beside = (row.floor.side, *_measured(row.other), _times(row.ratio), _times(row.p95_ratio))
    targets = [_judged(verdict, row.figure.unit) for verdict in row.verdicts] or [("", "")]
    yield (*own, *beside, *targets[0])
    for further in targets[1:]:
        yield (*("",) * 9, *further)


def _measured(summary: Summary | None) -> tuple[str, str]:
    if summary is None:
        return "-", "-"
    if summary.blocked:
        return "blocked", f">= {_number(summary.median)}"
    return _number(summary.median), _number(summary.p95)


def _number(value: float) -> str:
    """Three digits that matter, without an exponent."""
    for digits, least in ((0, 100.0), (1, 10.0), (2, 1.0)):
        if value >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.3f}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _judged(verdict: Verdict, unit: str) -> tuple[str, str]:
    of, limit = verdict.target.of, f"{verdict.target.limit:g}"
    if of not in ("ratio", "p95_ratio"):
        limit += f" {unit}"
    return f"{TARGET_TEXT.get(of, of)} <= {limit}", "pass" if verdict.met else "FAIL"
