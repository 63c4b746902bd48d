"""The key ``placement`` of the ConfigMap."""

import asyncio
from pathlib import Path

from prometheus_client import CollectorRegistry

from component.metrics import ConfigMetrics
from component.placement_config import KEY, watch_strategy
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy
from kube.access import connect
from kube.kinds import CONFIGMAPS
from simulator.apiserver.server import ApiServer
from tests.support.waiting import until


async def test_the_strategy_is_the_default_until_the_administrator_says_another(
    tmp_path: Path,
) -> None:
    async with (
        ApiServer.start() as api,
        connect(api.kubeconfig(tmp_path / "kubeconfig")) as client,
        asyncio.TaskGroup() as group,
    ):
        metrics = ConfigMetrics("scheduler", CollectorRegistry())
        watcher = watch_strategy(client, name="fracgpu", namespace="default", metrics=metrics)
        running = group.create_task(watcher.run())
        await watcher.wait_synced()
        without_config_map = watcher.value

        async def spreads() -> bool:
            return watcher.value is Strategy.SPREAD

        async def is_default() -> bool:
            return watcher.value is DEFAULT_STRATEGY

        body = {"metadata": {"name": "fracgpu", "namespace": "default"}}

        await client.create(CONFIGMAPS, {**body, "data": {KEY: "strategy: spread"}})
        await until(spreads, what="the edit is read")
        await client.replace(CONFIGMAPS, {**body, "data": {}})
        await until(is_default, what="the key is gone")
        running.cancel()

    assert without_config_map is DEFAULT_STRATEGY
