"""Our controllers over the embedded API server, and kubelets played by the test."""

from collections.abc import AsyncIterator

import pytest

from kube.client import KubeClient
from process.clock import SystemClock
from simulator.background import background
from simulator.controllers.manager import run_controllers
from tests.simulator.controllers.harness import Harness


@pytest.fixture
async def harness(kube: KubeClient) -> AsyncIterator[Harness]:
    async with background(run_controllers(kube, SystemClock())):
        yield Harness(kube)
