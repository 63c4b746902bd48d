"""The wiring by claims on a simulated cluster: our controller and agent, nothing else of ours.

kube-scheduler, its controllers and kubelet are simulated; what they do with claims is compared with
real ones in the contract tests.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from fracgpu import names
from fracgpu.cards.annotations import write_cordons
from fracgpu.cards.card import Cordon
from fracgpu.device_claims.devices import device_name
from fracgpu.device_claims.selectors import listed_cards
from fracgpu.k8s.container import ContainerKind
from fracgpu.state.move_object import MovePhase, MoveStatus
from kube.client import KubeClient
from kube.kinds import MOVES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from kube.objects import decode_object
from process.clock import SystemClock
from simulator.apiserver.server import ApiServer
from simulator.demo.definitions import install_definitions
from tests.support.api_gate import ApiGate, claiming
from tests.support.claims import a_claiming_pod, a_granted_pod
from tests.support.claims_agent import claims_agent
from tests.support.core import a_need, a_pod_need
from tests.support.device_claims import a_device_claim, a_pod_with_claim, a_request
from tests.support.gpu import some_cards
from tests.support.moves import move_body, move_of, status_body
from tests.support.node import a_node
from tests.support.simulated_claims import SimulatedClaims, a_claims_world
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
async def world(kubeconfig: Path, kube: KubeClient) -> AsyncIterator[SimulatedClaims]:
    async with a_claims_world(kube, kubeconfig) as world:
        yield world


async def add_nodes(world: SimulatedClaims, count: int) -> None:
    """Add nodes, each with four cards."""
    for number in range(count):
        await world.add_node(f"n{number}", some_cards(f"n{number}", count=4, mib=24_000))


async def test_a_burst_is_placed_whole_although_leaders_are_killed_and_the_api_is_interrupted(
    api: ApiServer, world: SimulatedClaims
) -> None:
    draw = random.Random(7)  # noqa: S311 - when somebody is killed
    await add_nodes(world, 4)
    world.start_leader("one")
    world.start_leader("two")
    pods = [a_claiming_pod(f"p{number:03}", 8_000) for number in range(60)]  # there is room for 48

    async with asyncio.TaskGroup() as group:
        group.create_task(create_all(world, pods))
        made = 0
        for name in ("one", "two", "one"):
            made += draw.randrange(3, 12)
            await until(lambda: has_claims(world, made), what=f"{made} claims")  # noqa: B023
            api.compact()  # whoever watches must list again
            api.store.end_subscriptions()
            await world.kill(name)
            world.start_leader(name)
            assert await world.overbooked() == []

    await until(lambda: has_claims(world, 60), what="a claim of each pod")
    await world.until_bound(48)
    assert await world.overbooked() == []
    claims = await world.claims()
    assert len({claim.name for claim in claims}) == 60
    await world.delete_all()


async def test_each_pod_has_one_claim_although_answers_are_errors_or_lost(
    api: ApiServer, world: SimulatedClaims, tmp_path: Path
) -> None:
    await add_nodes(world, 2)
    gate = ApiGate(api.url, ca_file=None)
    async with gate.open():
        kubeconfig = tmp_path / "through-the-gate"
        text = api.kubeconfig(kubeconfig).read_text()
        kubeconfig.write_text(text.replace(api.url, gate.url))
        busy = {"reason": "TooManyRequests", "code": 429, "details": {"retryAfterSeconds": 1}}
        taken = {"reason": "AlreadyExists", "code": 409}
        gate.refuse(claiming, (429, busy), (409, taken), (500, {"code": 500}), (429, busy))
        gate.set_trap(claiming)  # it is written, and nobody is told
        world.start_leader("one", kubeconfig=kubeconfig)

        await create_all(world, [a_claiming_pod(f"p{number}", 8_000) for number in range(12)])
        await world.until_bound(12)

        assert gate.sprung.is_set()
        assert [write.status for write in gate.writes if claiming(write)].count(429) == 2
    assert len(await world.claims()) == 12
    assert await world.overbooked() == []


async def create_all(world: SimulatedClaims, pods: list[dict[str, object]]) -> None:
    for pod in pods:
        await world.client.create(PODS, pod)


async def has_claims(world: SimulatedClaims, count: int) -> bool:
    return len(await world.claims()) >= count


async def test_every_container_gets_the_cards_that_its_pod_was_granted(
    world: SimulatedClaims,
) -> None:
    need = a_pod_need(
        a_need(800, name="load", kind=ContainerKind.INIT),
        a_need(1600, name="one", cores=50),
        a_need(2400, name="two", cards=2),
    )
    cards = some_cards("gpu-1", count=4, mib=8_000)
    world.start_leader("one")
    async with a_node(world.client, world.kubeconfig, cards=cards, claims=True) as node:
        seen: set[str] = set()
        for number in range(3):
            pod = await world.client.create(PODS, a_granted_pod(f"p{number}", need, inits=["load"]))
            await node.wait_phase(pod, "Running")

            (claim,) = [one for one in await world.claims() if one.holder == pod["metadata"]["uid"]]
            wanted: dict[str, set[str]] = {}
            for device in claim.devices:
                wanted.setdefault(device.request, set()).add(device.device)
            got = {
                container: {card.lower() for card in found}
                for container, found in node.kubelet.cards_of(pod["metadata"]["uid"]).items()
            }
            assert got == wanted
            assert {name: len(found) for name, found in got.items()} == {
                "load": 1, "one": 1, "two": 2,
            }  # fmt: skip
            created = node.kubelet.created_containers()[pod["metadata"]["uid"]]
            assert created["two"].env[names.ENV_MEM_MIB] == "2400,2400"
            assert claim.name not in seen
            seen.add(claim.name)
            await world.client.delete(PODS, f"p{number}", namespace="default")
            await until(lambda: no_claims(world), what="the claim is gone")
        assert not list(node.folders.cdi.glob("*.json"))


async def no_claims(world: SimulatedClaims) -> bool:
    return not await world.claims()


async def test_a_claim_by_somebody_else_starts_no_container(world: SimulatedClaims) -> None:
    cards = some_cards("gpu-1", count=1, mib=8_000)
    async with a_node(world.client, world.kubeconfig, cards=cards, claims=True) as node:
        body = a_claiming_pod("p", 1000)
        name = body["spec"]["resourceClaims"][0]["resourceClaimName"]
        theirs = {
            "metadata": {"name": name},
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": "train",
                            "exactly": {
                                "deviceClassName": names.DEVICE_CLASS,
                                "capacity": {"requests": {"memory": "7000Mi"}},
                            },
                        }
                    ]
                }
            },
        }
        await world.client.create(RESOURCE_CLAIMS, theirs, namespace="default")
        pod = await world.client.create(PODS, body)

        await node.wait_message(pod, "someone made it under that name before")

        assert (await world.bound())["p"] == "gpu-1"
        assert not node.kubelet.created_containers()


async def test_open_claims_and_those_of_users_never_get_a_closed_card(
    world: SimulatedClaims,
) -> None:
    """What a taint means to a real kube-scheduler is in ``tests/contracts``."""
    cards = some_cards("n1", count=3, mib=8_000)
    await install_definitions(world.client)
    await world.add_node("n1", cards)
    cordoned, reserved, free = (card.uuid for card in cards)
    later = SystemClock().now() + timedelta(hours=1)
    async with claims_agent(world.client, "n1", cards, slots=100):
        cordon = write_cordons([Cordon(card=cordoned, until=later, reason="hot")])
        notes = {"metadata": {"annotations": {names.NODE_CORDONS: cordon}}}
        await world.client.patch(NODES, "n1", notes)
        move = move_of(target=("n1", reserved), source=("n9", "GPU-9"), reserved_until=later)
        await world.client.create(MOVES, move_body(move))
        status = status_body(MoveStatus(phase=MovePhase.SURGING, reserved_until=later))
        await world.client.patch(MOVES, move.name, status, subresource="status")

        async def tainted() -> int:
            listed = (await world.client.list(RESOURCE_SLICES)).items
            slices = [decode_object(bytes(raw))["spec"] for raw in listed]
            return sum(bool(each.get("taints")) for one in slices for each in one["devices"])

        await until(lambda: has(tainted, 2), what="two taints")
        world.start_leader("one")
        for number in range(25):
            request = a_request("r", "80Mi", device_class=names.DEVICE_CLASS)
            claim = a_device_claim(f"c{number}", request)
            await world.client.create(RESOURCE_CLAIMS, claim, namespace="default")
            user = a_pod_with_claim(f"u{number}", f"c{number}", "r")
            await world.client.create(PODS, user, namespace="default")
            await world.client.create(PODS, a_claiming_pod(f"p{number}", 80))
        await world.until_bound(50)

        used = {one.device for claim in await world.claims() for one in claim.devices}
        assert used == {device_name(free)}

        undo = {"metadata": {"annotations": {names.NODE_CORDONS: None}}}
        await world.client.patch(NODES, "n1", undo)
        await world.client.delete(MOVES, move.name)
        await until(lambda: has(tainted, 0), what="no taint")


async def has(counted: Callable[[], Awaitable[int]], wanted: int) -> bool:
    return await counted() == wanted


async def test_a_pod_that_fits_nowhere_is_told_why_and_is_bound_when_a_node_joins(
    world: SimulatedClaims,
) -> None:
    await world.add_node("small", some_cards("small", count=2, mib=8_000))
    world.start_leader("one")
    await world.client.create(PODS, a_claiming_pod("p", 20_000))

    async def told() -> bool:
        ours = await world.events("WaitingForCard", pod="p")
        return bool(ours and await world.events("FailedScheduling", pod="p"))

    await until(told, what="Events that say why, by us and by kube-scheduler")
    (event, *_) = await world.events("WaitingForCard", pod="p")
    assert "waiting for a card: node(s) without a fitting card" in event["message"]
    (raw,) = (await world.client.list(RESOURCE_CLAIMS)).items
    assert b"firstAvailable" not in bytes(raw)  # Karpenter rejects it, and Kueue defers it
    assert b"distinctAttribute" not in bytes(raw)
    (claim,) = await world.claims()
    assert claim.open
    (pod,) = await world.pods()
    condition = pod["status"]["conditions"][0]
    assert (condition["reason"], condition["status"]) == ("Unschedulable", "False")

    await world.add_node("large", some_cards("large", count=1, mib=40_000))

    await world.until_bound(1)
    assert await world.bound() == {"p": "large"}


async def test_a_shortlist_names_cards_that_the_scheduler_takes(world: SimulatedClaims) -> None:
    await world.add_node("n", some_cards("n", count=4, mib=8_000))
    world.start_leader("one")
    await world.client.create(PODS, a_claiming_pod("p", 2_000))
    await world.until_bound(1)

    (claim,) = await world.claims()
    body = await world.client.get_object(RESOURCE_CLAIMS, claim.name, namespace="default")
    (selector,) = body["spec"]["devices"]["requests"][0]["exactly"]["selectors"]
    listed = [card.lower() for card in listed_cards(selector["cel"]["expression"])]
    assert claim.devices[0].device in listed
