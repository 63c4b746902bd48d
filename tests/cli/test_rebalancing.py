"""What the commands read of the rebalancer's: its ConfigMap, the cluster, a candidate file."""

import pytest

from cli.rebalancing import ReadingFailed, read_cluster, read_settings
from component.wiring import Wirings
from fracgpu import names
from fracgpu.disruption.policy import Mode
from fracgpu.request.need import Strategy
from kube.client import KubeClient
from tests.cli.live_cluster import configure
from tests.support.moving import make_cluster
from tests.support.rebalancing import COOL_CARD, HOT_CARD


async def test_the_configmap_is_read_as_the_rebalancer_reads_it(kube: KubeClient) -> None:
    await make_cluster(kube)
    await configure(kube, rebalancer="mode: active", placement="strategy: spread")

    settings = await read_settings(kube, namespace=names.SYSTEM_NAMESPACE)

    assert (settings.policy.mode, settings.strategy) == (Mode.ACTIVE, Strategy.SPREAD)


@pytest.mark.parametrize("keys", [{"rebalancer": "mode: on"}, {"placement": "strategy: sideways"}])
async def test_a_mistake_in_the_configmap_is_named(kube: KubeClient, keys: dict[str, str]) -> None:
    await make_cluster(kube)
    await configure(kube, **keys)

    with pytest.raises(ReadingFailed, match=r"fracgpu-config: (mode|strategy) is .*--config"):
        await read_settings(kube, namespace=names.SYSTEM_NAMESPACE)


async def test_the_cluster_is_read_once(kube: KubeClient) -> None:
    await make_cluster(kube)

    cache = await read_cluster(kube, Wirings(both=True))

    assert set(cache.cards()) == {HOT_CARD, COOL_CARD}
