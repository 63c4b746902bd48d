"""Stock kube-scheduler allocates cards from the claims that our controller makes."""

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from fracgpu.cards.card import CardUuid
from fracgpu.device_claims.claim import DeviceClaim
from fracgpu.device_claims.claims import claim_of
from fracgpu.device_claims.devices import device_name
from fracgpu.state.pod_info import decode_pod_info
from kube.errors import Invalid
from kube.kinds import PODS, RESOURCE_CLAIMS
from tests.support.claims import a_claiming_pod, claim_name
from tests.support.gpu import some_cards
from tests.support.real_claims import (
    RealClaims,
    create_all,
    delete_pod,
    real_claims,
)
from tests.support.replicas import replica
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CARDS = {name: some_cards(name, count=4, mib=24_000) for name in ("n1", "n2", "n3", "n4", "n5")}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealClaims]:
    async with real_claims(tmp_path, CARDS) as started:
        yield started


async def test_a_pod_gets_one_of_the_cards_that_we_list(cluster: RealClaims) -> None:
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
        await check_that_nobody_resizes(cluster, claim)

        await delete_pod(cluster.client, "p")

        async def none_left() -> bool:
            return not await cluster.claims()

        await until(none_left, what="its claim is gone")


async def check_that_nobody_resizes(cluster: RealClaims, claim: DeviceClaim) -> None:
    """A running pod keeps what it was allocated: not even whoever may write all can change it."""
    stored = await cluster.client.get_object(RESOURCE_CLAIMS, claim.name, namespace="default")
    more, given = copy.deepcopy(stored), copy.deepcopy(stored)
    (request,) = more["spec"]["devices"]["requests"]
    request["exactly"]["capacity"]["requests"]["memory"] = "7000Mi"
    with pytest.raises(Invalid, match="immutable"):
        await cluster.client.replace(RESOURCE_CLAIMS, more)
    (result,) = given["status"]["allocation"]["devices"]["results"]
    result["consumedCapacity"]["memory"] = "7000Mi"
    with pytest.raises(Invalid, match="immutable"):
        await cluster.client.replace(RESOURCE_CLAIMS, given, subresource="status")


async def test_an_open_claim_leaves_out_thousands_of_cards_that_are_kept_for_others(
    cluster: RealClaims,
) -> None:
    left = CARDS["n4"][2].uuid
    others = {card.uuid for cards in CARDS.values() for card in cards} - {left}
    far = {CardUuid(f"GPU-00000000-0000-0000-0000-{number:012}") for number in range(6_800)}
    name = claim_name("p")
    created = await cluster.client.create(PODS, a_claiming_pod("p", 6000, claim=name))
    pod = decode_pod_info(msgspec.json.encode(created))
    assert pod.need is not None

    claim = claim_of(pod.record, name, pod.need, None, kept=others | far)
    await cluster.client.create(RESOURCE_CLAIMS, claim)
    await cluster.until_bound(1)

    (device,) = (await cluster.claims())[0].devices
    assert device.device == device_name(left)


async def test_a_burst_is_placed_although_the_leader_is_killed_in_it(tmp_path: Path) -> None:
    cards = {f"n{n:02}": some_cards(f"n{n:02}", count=8, mib=24_000) for n in range(20)}
    # With the lease as it is deployed: a shorter one is lost where the machine is busy.
    async with (
        real_claims(tmp_path, cards) as cluster,
        replica("first", cluster.kubeconfig, tmp_path) as first,
    ):
        await until(first.ready, what="the first replica is ready")
        async with replica("second", cluster.kubeconfig, tmp_path) as second:
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

            await until(all_have_claims, what="a claim for each pod", limit_s=120)
            await cluster.until_bound(480, limit_s=120)
            assert await cluster.overbooked() == []
            for pod in await cluster.pods():
                await delete_pod(cluster.client, pod["metadata"]["name"])

            async def none_left() -> bool:
                return not await cluster.claims()

            await until(none_left, what="no claim is left", limit_s=120)
