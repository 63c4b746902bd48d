"""Stock kube-scheduler allocates cards from the claims that our controller makes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kube.kinds import PODS
from tests.support.claims import a_claiming_node, a_claiming_pod
from tests.support.gpu import some_cards
from tests.support.real_claims import (
    ClaimsCluster,
    create_all,
    delete_pod,
    publish,
    real_claims,
)
from tests.support.replicas import replica
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CARDS = {name: some_cards(name, count=4, mib=24_000) for name in ("n1", "n2", "n3", "n4", "n5")}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClaimsCluster]:
    async with real_claims(tmp_path, CARDS) as started:
        yield started


async def test_a_pod_gets_one_of_the_cards_that_we_list(cluster: ClaimsCluster) -> None:
    async with cluster.controller():
        await cluster.client.create(PODS, a_claiming_pod("p", 6000, cores=30))
        await cluster.until_bound(1)

        (claim,) = await cluster.claims()
        node = (await cluster.bound())["p"]
        (device,) = claim.devices
        (request,) = claim.requests
        assert (device.node, device.amounts.mib, device.amounts.cores) == (node, 6000, 30)
        assert len(request.cards) == 4
        assert device.device in [card.lower() for card in request.cards]

        await delete_pod(cluster.client, "p")

        async def none_left() -> bool:
            return not await cluster.claims()

        await until(none_left, what="its claim is gone")


async def test_where_no_card_fits_the_claim_is_open_and_a_new_node_takes_the_pod(
    cluster: ClaimsCluster,
) -> None:
    async with cluster.controller():
        await cluster.client.create(PODS, a_claiming_pod("p", 40_000))

        async def told() -> bool:
            return bool(await cluster.events_of("p", "WaitingForCard"))

        await until(told, what="an Event that says why", limit_s=20)
        (event,) = await cluster.events_of("p", "WaitingForCard")
        assert (
            "waiting for a card: node(s) without a fitting card (5 too little free"
            in (event["message"])
        )

        async def unschedulable() -> bool:
            return bool(await cluster.events_of("p", "FailedScheduling"))

        await until(unschedulable, what="kube-scheduler says so, for autoscalers", limit_s=20)
        (claim,) = await cluster.claims()
        assert claim.open
        large = some_cards("large", count=1, mib=80_000)
        await publish(cluster.client, a_claiming_node("large", large), large)
        await cluster.until_bound(1, limit_s=20)
        assert (await cluster.bound())["p"] == "large"


async def test_a_burst_is_placed_although_the_leader_is_killed_in_it(tmp_path: Path) -> None:
    cards = {f"n{n:02}": some_cards(f"n{n:02}", count=8, mib=24_000) for n in range(20)}
    flags = ("--lease-duration-s=3", "--bind-timeout-s=0.9")
    async with (
        real_claims(tmp_path, cards) as cluster,
        replica("first", cluster.kubeconfig, tmp_path, *flags) as first,
    ):
        await until(first.ready, what="the first replica is ready")
        async with replica("second", cluster.kubeconfig, tmp_path, *flags) as second:
            await until(second.ready, what="the second replica is ready")
            # Three to a card, which leaves 20 of 500 without one.
            pods = [a_claiming_pod(f"p{n:03}", 8_000) for n in range(500)]
            async with asyncio.TaskGroup() as group:
                group.create_task(create_all(cluster.client, pods), name="burst")

                async def half_way() -> bool:
                    return len(await cluster.claims()) > 150

                await until(half_way, what="some claims are made")
                await first.process.kill()

            async def all_have_claims() -> bool:
                return len(await cluster.claims()) == 500

            await until(all_have_claims, what="a claim for each pod", limit_s=30)
            await cluster.until_bound(480, limit_s=120)
            assert await cluster.overbooked() == []
            for pod in await cluster.pods():
                await delete_pod(cluster.client, pod["metadata"]["name"])

            async def none_left() -> bool:
                return not await cluster.claims()

            await until(none_left, what="no claim is left", limit_s=120)
