"""Which of two processes of one clock tick is the later one, where the pids begin again."""

from __future__ import annotations

from pathlib import Path

import pytest

GUARDIAN = Path(__file__).parents[2] / "guardian"


@pytest.mark.parametrize(
    ("circle", "after", "pid", "later"),
    [
        (32_768, 100, 101, True),
        (32_768, 100, 100, False),
        (32_768, 100, 99, False),
        (32_768, 32_760, 305, True),
        (32_768, 305, 32_760, False),
        (4_194_304, 4_194_300, 301, True),
        (4_194_304, 40_000, 60_000, True),
        (4_194_304, 60_000, 40_000, False),
    ],
)
def test_within_a_tick_the_pid_decides(
    monkeypatch: pytest.MonkeyPatch, circle: int, after: int, pid: int, *, later: bool
) -> None:
    monkeypatch.syspath_prepend(GUARDIAN)
    import guardian_kernel as kernel

    monkeypatch.setattr(kernel, "pid_circle", lambda: circle)
    process = kernel.Process(pid, [b"S", b"1", b"1", *[b"0"] * 16, b"7000"])
    assert kernel.Moment(7000, after).before(process) is later


def test_the_circle_is_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(GUARDIAN)
    import guardian_kernel as kernel

    limit = Path("/proc/sys/kernel/pid_max")
    assert kernel.pid_circle() == (int(limit.read_text()) if limit.exists() else kernel.PID_CIRCLE)
