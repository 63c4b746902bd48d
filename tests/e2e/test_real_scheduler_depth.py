"""Many pods, a leader killed, a node that starts to share, preemption: on a real kube-scheduler."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from kube.kinds import DEPLOYMENTS, NODES, PODS
from tests.support.gpu import a_gpu_pod, a_sharing_node, a_workload, some_cards
from tests.support.real_scheduler import (
    PRIORITY_CLASSES,
    Harness,
    assert_cards_hold,
    real_scheduler,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

CARD_MIB = 24_000


def some_nodes(count: int, *, cards: int = 4) -> list[dict[str, Any]]:
    names_ = [f"gpu-{number}" for number in range(count)]
    return [
        a_sharing_node(name, cards=some_cards(name, count=cards, mib=CARD_MIB)) for name in names_
    ]


async def assert_no_drift(harness: Harness) -> None:
    """The cache is compared twice more, and equals a fold from scratch."""
    before = await harness.metric("fracgpu_scheduler_cache_comparisons_total")

    async def audited() -> bool:
        return await harness.metric("fracgpu_scheduler_cache_comparisons_total") >= before + 2

    await until(audited, what="two audits", limit_s=30)
    assert await harness.metric("fracgpu_scheduler_ledger_drift") == 0


async def test_five_hundred_pods_on_fifty_nodes_although_the_leader_is_killed(
    tmp_path: Path,
) -> None:
    async with real_scheduler(tmp_path, some_nodes(50)) as harness:
        wanted = {f"p{n}": ((7_900, 5_000, 2_900)[n % 3], 1 + (n % 10 == 9)) for n in range(500)}
        for number, (name, (mib, cards)) in enumerate(wanted.items()):
            await harness.client.create(PODS, a_gpu_pod(name, mib=mib, cards=cards))
            if number == 250:
                harness.roles.kill("scheduler")

        bound = await harness.until_bound(len(wanted), limit_s=200)

        assert_cards_hold(bound, wanted, card_mib=CARD_MIB)
        assert harness.roles.starts("scheduler") == 2
        await assert_no_drift(harness)


@pytest.mark.parametrize("send_nodes", [False, True], ids=["names", "nodes"])
async def test_preemption_frees_one_card_and_not_a_sum_over_cards(
    tmp_path: Path, send_nodes: bool
) -> None:
    async with real_scheduler(tmp_path, some_nodes(1), send_nodes=send_nodes) as harness:
        for name, value in (("low", 1), ("high", 1000)):
            await harness.client.create(
                PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}
            )
        # Three to a card, so that any two on different cards free nothing that helps.
        small = [f"small-{n}" for n in range(12)]
        for name in small:
            pod = a_gpu_pod(
                name, mib=8_000, priorityClassName="low", terminationGracePeriodSeconds=0
            )
            await harness.client.create(PODS, pod)
        before = await harness.until_bound(small)

        await harness.client.create(PODS, a_gpu_pod("big", mib=15_000, priorityClassName="high"))

        after = await harness.until_bound(["big"])
        taken = [name for name in small if name not in after]
        assert len(taken) == 2
        (slice_,) = (after["big"].record.assignment or {})["train"]
        for name in taken:
            assert [slice_.card for slice_ in (before[name].record.assignment or {})["train"]] == [
                slice_.card
            ]
        await assert_no_drift(harness)


async def test_two_deployments_that_wait_bind_at_once_when_a_node_starts_to_share(
    tmp_path: Path,
) -> None:
    (node,) = some_nodes(1)
    del node["metadata"]["labels"][names.SHARE_LABEL]
    # In any order, all of them fit: kube-scheduler decides which is first.
    sizes = {"large": 6_000, "small": 1_000}
    async with real_scheduler(tmp_path, [node], controllers=True) as harness:
        for name, mib in sizes.items():
            await harness.client.create(
                DEPLOYMENTS, a_workload("Deployment", name, a_gpu_pod(name, mib=mib), replicas=8)
            )

        async def all_wait() -> bool:
            pods = await harness.pods()
            waits = [await harness.failures_of(name) for name in pods]
            return len(pods) == 16 and all(waits)

        await until(all_wait, what="16 pods refused", limit_s=90)
        assert not await harness.bound()

        label = {"metadata": {"labels": {names.SHARE_LABEL: "true"}}}
        await harness.client.patch(NODES, "gpu-0", label)
        bound = await harness.until_bound(16)
        wanted = {name: (sizes[name.split("-")[0]], 1) for name in bound}
        assert_cards_hold(bound, wanted, card_mib=CARD_MIB)
        assert Counter(name.split("-")[0] for name in bound) == {"large": 8, "small": 8}
        await assert_no_drift(harness)
