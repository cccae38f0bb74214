"""Workers whose cells call peers; the test answers their `rpc` frames. Modules about anything else have their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.rpc_driver import RpcDriver
from tests.process.worker_driver import EXTREMES, VERSIONS, interpreter


@pytest.fixture(params=EXTREMES)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RpcDriver]:
    with RpcDriver(interpreter(request.param), tmp_path) as driver:
        driver.ready()
        yield driver


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[RpcDriver]:
    """For what no version does in its own way."""
    with RpcDriver(interpreter(VERSIONS[1]), tmp_path) as driver:
        driver.ready()
        yield driver
