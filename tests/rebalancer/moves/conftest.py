"""An API server whose time is the test's, so that creation times are those of the rebalancer."""

from collections.abc import AsyncIterator

import pytest

from simulator.apiserver.server import ApiServer
from tests.fakes.clock import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def api(clock: VirtualClock) -> AsyncIterator[ApiServer]:
    async with ApiServer.start(clock=clock) as server:
        yield server
