"""A warm card gets new pods last, and a hot one gets none, on a real kube-scheduler."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.disruption.move import Ending
from fracgpu.request.need import Strategy
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import PodInfo
from kube.kinds import NODES, PODS
from process.clock import SystemClock
from rebalancer.moves.cordons import Cordons, DesiredCordons
from tests.fakes.clock import VirtualClock
from tests.support.gpu import a_gpu_pod, a_sharing_node, some_cards
from tests.support.moving import a_rig, add_pod, cordons_of, end_pod, make_cluster
from tests.support.real_scheduler import Harness, real_scheduler
from tests.support.rebalancing import COOL_CARD, HOT_CARD, a_reading
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

COOL = "GPU-m-1"
WARM = frozenset(CardUuid(card) for card in ("GPU-n-0", "GPU-n-1", "GPU-m-0"))


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    nodes = [a_sharing_node(name, cards=some_cards(name, count=2, mib=24_000)) for name in "nm"]
    async with real_scheduler(tmp_path, nodes) as started:
        yield started


async def publish(
    harness: Harness, *, avoid: frozenset[CardUuid], close: frozenset[CardUuid] = frozenset()
) -> None:
    """Write the cordons as the rebalancer does."""
    listing = await harness.client.list(NODES)
    nodes = {node.node: node for node in map(read_node, map(bytes, listing.items))}
    desired = DesiredCordons(
        cordon=close, avoid=avoid, cool=frozenset(), lasting=timedelta(hours=1)
    )
    cordons = Cordons(harness.client, guard=lambda: None)
    assert await cordons.publish(nodes, desired, now=SystemClock().now()) == []


async def placed(harness: Harness, name: str, *, mib: int, strategy: Strategy) -> str:
    """Create a pod, wait until it is bound, and return its card."""
    annotations = {names.PLACEMENT: strategy.value}
    await harness.client.create(PODS, a_gpu_pod(name, mib=mib, annotations=annotations))

    async def bound() -> bool:
        return name in await harness.bound()

    await until(bound, what=f"{name} is bound", limit_s=60)
    return card_of((await harness.bound())[name])


def card_of(pod: PodInfo) -> str:
    ((part,),) = (pod.record.assignment or {}).values()
    return part.card


async def test_a_warm_card_gets_no_pod_while_another_fits_and_gets_it_when_it_alone_fits(
    harness: Harness,
) -> None:
    await publish(harness, avoid=WARM)

    async def known() -> bool:  # the extender sees the annotation a moment later
        card = await placed(harness, "probe", mib=4_000, strategy=Strategy.PACK)
        await harness.client.delete(PODS, "probe", namespace="default", grace_s=0)
        return card == COOL

    await until(known, what="the extender knows which cards are warm", limit_s=60)

    for strategy in Strategy:
        card = await placed(harness, f"small-{strategy.value}", mib=4_000, strategy=strategy)
        assert card == COOL, strategy
    # 4,000 MiB are left of the cool card.
    for strategy in Strategy:
        card = await placed(harness, f"large-{strategy.value}", mib=8_000, strategy=strategy)
        assert card in WARM, strategy
        assert not await harness.failures_of(f"large-{strategy.value}"), "it never waited"

    await publish(harness, avoid=frozenset(), close=WARM)

    async def closed() -> bool:
        await harness.client.create(PODS, a_gpu_pod("late", mib=8_000))

        async def answered() -> bool:
            return "late" in await harness.bound() or bool(await harness.failures_of("late"))

        await until(answered, what="an answer for the pod", limit_s=30)
        refused = "late" not in await harness.bound()
        if not refused:
            await harness.client.delete(PODS, "late", namespace="default", grace_s=0)
        return refused

    await until(closed, what="the hot cards are closed", limit_s=60)


async def test_a_new_pod_does_not_get_the_card_that_a_pod_was_just_moved_off(
    tmp_path: Path,
) -> None:
    async with real_scheduler(tmp_path, []) as harness:
        client = harness.client
        await make_cluster(client, annotations={names.REBALANCE: "evict"})
        # Its clock runs ahead of ours, so that no cordon lapses meanwhile.
        async with a_rig(client, clock=VirtualClock(SystemClock().now())) as rig:
            planned = await rig.tick_until_planned()
            await rig.tick()
            await end_pod(client, "pod-a")
            await add_pod(client, "pod-a", card=COOL_CARD, node="n2", move=planned.id)
            rig.usage.readings[HOT_CARD] = a_reading(0.45)

            async def over() -> bool:
                await rig.tick()
                return rig.record().ending is Ending.RELIEVED

            await until(over, what="the move has relieved the card", limit_s=60)
            assert await cordons_of(client, "n1") == {HOT_CARD: "warm"}

            for strategy in Strategy:
                name = f"next-{strategy.value}"
                assert await placed(harness, name, mib=1_000, strategy=strategy) == COOL_CARD
