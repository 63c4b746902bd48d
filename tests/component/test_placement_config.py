"""The key ``placement`` of the ConfigMap."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from component.metrics import ConfigMetrics
from component.placement_config import KEY, parse_strategy, watch_strategy
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy
from kube.access import connect
from kube.kinds import CONFIGMAPS
from simulator.apiserver.server import ApiServer
from tests.support.waiting import until


@pytest.mark.parametrize("strategy", Strategy)
def test_every_strategy_has_a_name(strategy: Strategy) -> None:
    assert parse_strategy(f"strategy: {strategy.value}\n") is strategy


def test_what_is_not_said_is_the_default() -> None:
    assert parse_strategy("") is DEFAULT_STRATEGY


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "strategy: packed",
            "packed; want one of pack, spread, .*; did you mean pack",
        ),
        ("strategy: 3", "strategy is 3; want one of"),
        ("strategy: [pack]", "want one of"),
        ("strategy:", "strategy is None"),
        ("Strategy: pack", "Strategy is not a key here; did you mean strategy"),
        ("pack", "want a mapping"),
        ("strategy: pack\nstrategy: spread", "appears twice"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_strategy(text)


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
