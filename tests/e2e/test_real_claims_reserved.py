"""Cards that are cordoned, or that a Move reserves, on the stock control plane.

The agents are played: what publishes the slices, and what says their taints, is the agents' own.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from fracgpu import names
from fracgpu.cards.annotations import write_cordons
from fracgpu.cards.card import Card, CardUuid, Cordon
from fracgpu.device_claims.devices import device_name
from fracgpu.device_claims.selectors import shortlist
from fracgpu.state.move_object import MovePhase, MoveStatus
from kube.kinds import (
    DEVICE_CLASSES,
    MOVES,
    NODES,
    PODS,
    REPLICASETS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from simulator.demo.definitions import install_definitions
from tests.support.claims import a_claiming_pod
from tests.support.claims_agent import claims_agent
from tests.support.gpu import Json, some_cards
from tests.support.moves import move_body, move_of, status_body
from tests.support.real_claims import ClaimsCluster, create_all, real_claims
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]

CARDS = {name: some_cards(name, count=3, mib=80_000) for name in ("n1", "n2")}
ALL = [card for cards in CARDS.values() for card in cards]
TRIES: Final = 1_000
MANY: Final = 25  # requests of a claim
MOVE: Final = "move-1"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClaimsCluster]:
    async with real_claims(tmp_path, CARDS) as started, agents(started, CARDS):
        yield started


@asynccontextmanager
async def agents(
    cluster: ClaimsCluster, cards: Mapping[str, Sequence[Card]]
) -> AsyncIterator[None]:
    await install_definitions(cluster.client)
    async with AsyncExitStack() as stack:
        for node, here in cards.items():
            agent = claims_agent(cluster.client, node, here, slots=TRIES)
            await stack.enter_async_context(agent)
        yield


async def cordon(cluster: ClaimsCluster, card: str, *, lasting_s: float = 3600) -> None:
    later = datetime.now(tz=UTC) + timedelta(seconds=lasting_s)  # noqa: TID251 - the agent's clock
    text = write_cordons([Cordon(card=CardUuid(card), until=later, reason="hot")])
    patch = {"metadata": {"annotations": {names.NODE_CORDONS: text}}}
    await cluster.client.patch(NODES, node_of(card), patch)


def node_of(card: str) -> str:
    return card.split("-")[1]


async def reserve(cluster: ClaimsCluster, card: str, *, owner: str) -> None:
    later = datetime.now(tz=UTC) + timedelta(hours=1)  # noqa: TID251 - kube-scheduler's clock
    move = move_of(
        MOVE,
        owner_uid=owner,
        mib=4_000,
        source=("n9", "GPU-n9-0"),
        target=(node_of(card), card),
        reserved_until=later,
    )
    await cluster.client.create(MOVES, move_body(move))
    status = MoveStatus(phase=MovePhase.SURGING, reserved_until=later)
    await cluster.client.patch(MOVES, MOVE, status_body(status), subresource="status")


async def taints(cluster: ClaimsCluster) -> Mapping[str, list[str]]:
    """Return the keys of the taints of each device that has some."""
    listed = await cluster.client.list(RESOURCE_SLICES)
    slices = [msgspec.json.decode(bytes(raw)) for raw in listed.items]
    return {
        device["name"]: [taint["key"] for taint in device["taints"]]
        for each in slices
        for device in each["spec"]["devices"]
        if device.get("taints")
    }


async def until_tainted(cluster: ClaimsCluster, wanted: Mapping[str, list[str]]) -> None:
    async def are() -> bool:
        return await taints(cluster) == wanted

    await until(are, what=f"the taints are {wanted}")


def a_claim(name: str, requests: int, **exactly: Any) -> Json:
    """Return a claim, each of whose requests kube-scheduler allocates by itself."""
    amounts = {"requests": {"memory": "1Mi"}}
    wanted = {"deviceClassName": names.DEVICE_CLASS, "capacity": amounts} | exactly
    found = [{"name": f"r{number}", "exactly": wanted} for number in range(requests)]
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": found}}}


def a_user_of(claim: str) -> Json:
    return {
        "metadata": {"name": claim, "namespace": "default"},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/app:1",
                    "resources": {"claims": [{"name": "gpu"}]},
                }
            ],
        },
    }


def listing(*cards: str) -> Json:
    expression = shortlist([CardUuid(card) for card in cards])
    return {
        "deviceClassName": names.DEVICE_CLASS_PLACED,
        "selectors": [{"cel": {"expression": expression}}],
    }


async def an_owner(cluster: ClaimsCluster) -> str:
    """Create a ReplicaSet without a pod; returns its UID."""
    pod = a_claiming_pod("replacement", 4_000)
    metadata = {"labels": {"app": "web"}, "annotations": pod["metadata"]["annotations"]}
    body = {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": metadata, "spec": pod["spec"]},
        },
    }
    created = await cluster.client.create(REPLICASETS, body, namespace="default")
    return str(created["metadata"]["uid"])


async def let_replace(cluster: ClaimsCluster) -> None:
    """Let the ReplicaSet make its pod."""
    scale = {"spec": {"replicas": 1}}
    await cluster.client.patch(REPLICASETS, "web", scale, namespace="default")


async def try_often(cluster: ClaimsCluster) -> int:
    """Have a thousand requests allocated: users' own, of another class, and lists of ours.

    The lists name the closed cards too. Returns the number of pods.
    """
    client = cluster.client
    await client.create(DEVICE_CLASSES, {"metadata": {"name": "other"}, "spec": {}})
    lists = listing(*(card.uuid for card in ALL))
    kinds: Sequence[Json] = ({}, {"deviceClassName": "other"}, lists, {})
    bodies = [a_claim(f"c{number}", MANY, **kinds[number % 4]) for number in range(TRIES // MANY)]
    for body in bodies:
        await client.create(RESOURCE_CLAIMS, body, namespace="default")
    before = len(await cluster.bound())
    await create_all(client, [a_user_of(body["metadata"]["name"]) for body in bodies])
    await cluster.until_bound(before + len(bodies), limit_s=240)
    return len(bodies)


async def devices_of(cluster: ClaimsCluster) -> Counter[str]:
    """Return how often each device was allocated."""
    return Counter(one.device for claim in await cluster.claims() for one in claim.devices)


async def test_no_foreign_or_open_claim_gets_a_closed_card_in_a_thousand_tries(
    cluster: ClaimsCluster,
) -> None:
    client = cluster.client
    await client.create(RESOURCE_CLAIMS, a_claim("before", 1), namespace="default")
    await client.create(PODS, a_user_of("before"))
    await cluster.until_bound(1)
    (first,) = await devices_of(cluster)
    closed = next(card.uuid for card in ALL if device_name(card.uuid) == first)
    target = next(card.uuid for card in ALL if card.uuid != closed)
    await cordon(cluster, closed)
    await reserve(cluster, target, owner=await an_owner(cluster))
    cordoned, reserved = device_name(closed), device_name(target)
    taints = {cordoned: [names.CORDONED_TAINT], reserved: [names.RESERVED_TAINT]}
    await until_tainted(cluster, taints)

    bound = 1 + await try_often(cluster)
    counted = await devices_of(cluster)
    assert counted.total() == 1 + TRIES
    assert (counted[cordoned], counted[reserved]) == (1, 0)  # one pod was there before

    async with cluster.controller():
        # Of the controller's own claims only the replacement's lists the reserved card.
        await create_all(client, [a_claiming_pod(f"p{number}", 4_000) for number in range(8)])
        await cluster.until_bound(bound + 8)
        assert (await devices_of(cluster))[reserved] == 0
        await let_replace(cluster)
        await cluster.until_bound(bound + 9)

    counted = await devices_of(cluster)
    assert (counted[cordoned], counted[reserved]) == (1, 1)
    (claim,) = [one for one in await cluster.claims() if one.move]
    assert (claim.move, [one.device for one in claim.devices]) == (MOVE, [reserved])
    # The card takes claims again once its replacement is there, and nobody was evicted.
    await until_tainted(cluster, {cordoned: [names.CORDONED_TAINT]})
    assert not [pod for pod in await cluster.pods() if pod["metadata"].get("deletionTimestamp")]
    assert await cluster.overbooked() == []


async def test_an_open_claim_waits_for_a_closed_card_until_it_is_opened(
    tmp_path: Path,
) -> None:
    cards = {"n1": some_cards("n1", count=1, mib=8_000)}
    async with real_claims(tmp_path, cards) as cluster, agents(cluster, cards):
        (card,) = cards["n1"]
        await cordon(cluster, card.uuid, lasting_s=30)
        await until_tainted(cluster, {device_name(card.uuid): [names.CORDONED_TAINT]})
        async with cluster.controller():
            await cluster.client.create(PODS, a_claiming_pod("p", 4_000))

            async def refused() -> bool:
                return bool(await cluster.events_of("p", "FailedScheduling"))

            await until(refused, what="kube-scheduler refuses the card", limit_s=25)
            await cluster.until_bound(1)  # the cordon has lapsed, and its taint with it
