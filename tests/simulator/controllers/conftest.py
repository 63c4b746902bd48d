"""Controllers that run, and a stand-in for kubelets that do what the test says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from process.clock import SystemClock
from simulator.controllers import run_controllers
from tests.simulator.controllers.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kube.client import KubeClient


@pytest.fixture
async def world(kube: KubeClient) -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(run_controllers(kube, SystemClock()), name="controllers")
        yield World(kube)
        running.cancel()
