"""Our controllers over the embedded API server, and kubelets played by the test."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from kube.client import KubeClient
from process.clock import SystemClock
from simulator.controllers.manager import run_controllers
from tests.simulator.controllers.harness import Harness


@pytest.fixture
async def harness(kube: KubeClient) -> AsyncIterator[Harness]:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(run_controllers(kube, SystemClock()), name="controllers")
        yield Harness(kube)
        running.cancel()
