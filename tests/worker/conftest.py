"""The tests here call the worker's code in the tests' own process."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def same_signals_afterwards() -> Iterator[None]:
    """Undo what `worker/border.py` does on purpose: between two cells, a worker holds alarms and the like back."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
