"""scripts/bench from outside: it measures a server to the end, judges by its targets, and says why when it cannot."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench import broker, guardian, output
from bench.figures import FIGURES, SERVER, SPINNER, TWO_HOP, Figure, Sample
from bench.report import Row, rows
from bench.surface import shows

ROOT = Path(__file__).parents[2]
TWO_HOP_FLOOR = f"{sys.executable} {ROOT / 'bench/floors/two_hop.py'}"
RUN_SECONDS = 90
END_SECONDS = 15
LATENCIES = {"initialize", "start_to_cell", "first_cell", "warm_cell", "reset", "print_1mb", "print_lines"}
PROBES = {"probe_sleeping", "probe_spinning"}
RSS = {"rss_idle", "rss_used"}
PSS = {"pss_idle", "pss_used"}


def bench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "scripts/bench"), *arguments]
    environment = {**os.environ, "BENCH_PYTHON": sys.executable}
    piped = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=piped, stderr=piped, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            # SIGTERM first: it ends the measured servers, a spinning cell among them.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=END_SECONDS)
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def assert_measured(summary: dict[str, Any]) -> None:
    assert 0 < summary["median"] <= summary["p95"]
    assert summary["rounds"] == 1


def test_the_two_hop_floor_as_the_server_has_every_figure(tmp_path: Path) -> None:
    arguments = ("--quick", "--rounds", "1", "--calls", "20", "--json", "figures.json", "--server", TWO_HOP_FLOOR)
    done = bench(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "figures.json").read_text())
    told = PSS if hasattr(psutil.Process().memory_full_info(), "pss") else set()
    assert report["failures"] == []
    assert report["figures"].keys() == LATENCIES | PROBES | RSS | PSS
    for key in LATENCIES | PROBES | RSS | told:
        figure = report["figures"][key]
        assert_measured(figure["server"])
        # A single-threaded server answers nothing while a cell runs, and has to be told from a slow one.
        assert figure["server"]["blocked"] == (key in PROBES)
        assert figure["floors"]
        for floor in figure["floors"]:
            assert_measured(floor["floor"])
            assert (floor["ratio"] is None) == (key in PROBES)
            assert floor["targets"] == []
        title = figure["title"].format(probe="ping")
        assert sum(line.startswith(title) for line in done.stdout.splitlines()) == 1


@pytest.mark.slow
def test_the_output_group_has_every_figure(tmp_path: Path) -> None:
    done = bench("--output", "--quick", "--rounds", "1", "--calls", "20", "--json", "figures.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "figures.json").read_text())
    assert report["failures"] == []
    assert report["figures"].keys() == {figure.key for figure in output.FIGURES}
    for figure in report["figures"].values():
        assert_measured(figure["server"])


@pytest.mark.skipif(sys.platform != "linux", reason="no root guardian")
def test_the_guardian_group_has_every_figure(tmp_path: Path) -> None:
    done = bench("--guardian", "--quick", "--rounds", "1", "--calls", "20", "--json", "figures.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "figures.json").read_text())
    assert report["failures"] == []
    assert report["left_behind"] == {SERVER: 0, TWO_HOP: 0}
    assert report["figures"].keys() == {figure.key for figure in guardian.FIGURES}
    for key, figure in report["figures"].items():
        summary = figure["server"]
        assert_measured(summary)
        assert 0 < summary["least"] <= summary["median"] <= summary["most"]
        assert all(floor["ratio"] for floor in figure["floors"])
        if key in guardian.ENDS:
            assert f"{figure['title']}: least {summary['least']:.1f}, median" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells what a process has loaded")
def test_the_broker_group_has_every_figure(tmp_path: Path) -> None:
    done = bench("--broker", "--quick", "--rounds", "1", "--calls", "20", "--json", "figures.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "figures.json").read_text())
    assert report["failures"] == []
    assert report["left_behind"] == {SERVER: 0, TWO_HOP: 0}
    assert report["figures"].keys() == {figure.key for figure in broker.FIGURES}
    for figure in report["figures"].values():
        assert_measured(figure["server"])
        assert all(floor["ratio"] for floor in figure["floors"])
    added = report["figures"]["call"]["floors"][0]["added"]
    assert f"mcp.call of an echo: {added:.3f} ms more than SDK client" in done.stdout


def test_a_share_is_judged_in_percent() -> None:
    for share, met in ((0.099, True), (0.101, False)):
        found = rows({("flood_cpu_native", SERVER): [Sample((share,))]}, with_targets=True, figures=output.FIGURES)
        (row,) = (row for row in found if row.figure.key == "flood_cpu_native")
        assert [verdict.met for verdict in row.verdicts] == [met]


def test_a_server_that_ends_is_an_error_that_shows_its_stderr(tmp_path: Path) -> None:
    done = bench("--server", f"{sys.executable} -c 'raise SystemExit(\"no such luck\")'", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "no answer to initialize" in done.stderr
    assert "no such luck" in done.stderr


def judged(key: str, own: Sample, floor: str, other: Sample, figures: Sequence[Figure] = FIGURES) -> list[bool]:
    """Whether each target of one figure was met."""
    found: list[Row] = rows({(key, SERVER): [own], (key, floor): [other]}, with_targets=True, figures=figures)
    (row,) = (row for row in found if row.figure.key == key and row.floor.side == floor)
    return [verdict.met for verdict in row.verdicts]


@pytest.mark.parametrize(("seconds", "met"), [(0.0249, True), (0.0251, False)])
def test_a_ratio_is_judged_by_its_limit(seconds: float, met: bool) -> None:
    assert judged("warm_cell", Sample((seconds,)), TWO_HOP, Sample((0.01,))) == [met]


@pytest.mark.parametrize(("seconds", "met"), [(0.00149, True), (0.00151, False)])
def test_what_is_added_to_a_floor_is_judged_in_the_unit_of_the_figure(seconds: float, met: bool) -> None:
    assert judged("call", Sample((seconds,)), broker.SDK, Sample((0.001,)), broker.FIGURES) == [met]


@pytest.mark.parametrize(
    ("late", "met"), [((0.04, 0.24), [True, True]), ((0.04, 0.26), [True, False]), ((0.06, 0.24), [False, True])]
)
def test_p95_and_the_most_are_judged_apart(late: tuple[float, ...], met: list[bool]) -> None:
    own = Sample((0.001,) * 37 + late[:1] * 2 + late[1:])
    assert judged("import_probe", own, broker.UNUSED, Sample((0.001,)), broker.FIGURES) == met


def test_median_and_p95_are_judged_apart() -> None:
    steady = Sample((0.001,) * 20)
    assert judged("probe_spinning", Sample((0.0019,) * 18 + (0.1,) * 2), SPINNER, steady) == [True, False]
    assert judged("probe_spinning", Sample((0.0021,) * 20), SPINNER, steady) == [False, True]


def test_a_blocked_or_missing_figure_meets_no_target() -> None:
    assert judged("warm_cell", Sample((0.01,), blocked=True), TWO_HOP, Sample((0.01,))) == [False]
    missing = rows({}, with_targets=True)
    assert not any(verdict.met for row in missing for verdict in row.verdicts)


@pytest.mark.parametrize(
    ("result", "right"),
    [
        ({"content": [{"type": "text", "text": "Out[1]: 2"}]}, True),
        ({"content": [{"type": "text", "text": "took 0.2 s, 12 lines"}]}, False),
        ({"content": [{"type": "text", "text": "2"}], "isError": True}, False),
        ({"content": [{"type": "text", "text": "2"}], "structuredContent": {"return_value": "3"}}, False),
    ],
)
def test_only_the_right_answer_counts(result: dict[str, Any], right: bool) -> None:
    assert shows(result, "2") == right
