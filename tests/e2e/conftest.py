"""What several modules of tests on a real cluster use."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.real_moves import MovingCluster, a_moving_cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MovingCluster]:
    """One cluster for the module, in which pods are moved: it takes half a minute to start."""
    workdir: Path = tmp_path_factory.mktemp("moves")
    async with a_moving_cluster(workdir) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(started: MovingCluster) -> MovingCluster:
    """Return that cluster as at its start, with a leader."""
    await started.clean()
    await started.leading()
    return started
