"""What the commands read of the rebalancer's: its ConfigMap, the cluster, a candidate file."""

from pathlib import Path

import pytest

from cli.rebalancing import ReadingFailed, read_cluster, read_policy_file, read_settings
from fracgpu import names
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.request.need import DEFAULT_STRATEGY, Strategy
from kube.client import KubeClient
from kube.kinds import CONFIGMAPS
from tests.support.moving import make_cluster
from tests.support.rebalancing import COOL_CARD, HOT_CARD


async def configure(kube: KubeClient, **keys: str) -> None:
    body = {
        "metadata": {"name": names.CONFIG_MAP, "namespace": names.SYSTEM_NAMESPACE},
        "data": keys,
    }
    await kube.create(CONFIGMAPS, body)


async def test_without_a_configmap_the_defaults_hold(kube: KubeClient) -> None:
    settings = await read_settings(kube, namespace=names.SYSTEM_NAMESPACE)

    assert (settings.policy, settings.strategy) == (RebalancerPolicy(), DEFAULT_STRATEGY)
    assert "there is no ConfigMap fracgpu-system/fracgpu-config" in settings.source


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

    cache = await read_cluster(kube, by_claims=True)

    assert set(cache.cards()) == {HOT_CARD, COOL_CARD}


def test_a_candidate_file_is_a_policy_or_named_with_its_mistake(tmp_path: Path) -> None:
    file = tmp_path / "candidate.yaml"
    with pytest.raises(ReadingFailed, match=r"--config .*candidate.yaml: .*No such file"):
        read_policy_file(file)
    file.write_text("hotRatio: 80")
    with pytest.raises(ReadingFailed, match="hotRatio is 80"):
        read_policy_file(file)
    file.write_text("aggressiveness: 4")
    assert read_policy_file(file).aggressiveness == 4
