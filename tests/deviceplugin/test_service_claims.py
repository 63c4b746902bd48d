"""The node agent with claims, between a simulated kubelet and the embedded API server."""

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.dra.preparer import Preparer
from deviceplugin.dra.server import ClaimName
from fracgpu import names
from kube.client import KubeClient
from kube.kinds import NODES, PODS, RESOURCE_SLICES
from kube.objects import decode_object
from simulator.cards.simulated_cards import cards_document, write_cards_file
from tests.support.claims import a_granted_pod
from tests.support.core import a_need, a_pod_need
from tests.support.gpu import a_gpu_pod
from tests.support.node import Node, a_node
from tests.support.simulated_claims import SimulatedClaims, a_claims_world
from tests.support.waiting import until

Json = dict[str, Any]

NEED = a_pod_need(a_need(3000, name="train"))


@pytest.fixture
async def world(kubeconfig: Path, kube: KubeClient) -> AsyncIterator[SimulatedClaims]:
    async with a_claims_world(kube, kubeconfig) as world:
        world.start_leader("one")
        yield world


async def devices(kube: KubeClient) -> list[str]:
    """Return the devices of all slices."""
    slices: list[Json] = [decode_object(raw) for raw in (await kube.list(RESOURCE_SLICES)).items]
    return [each["name"] for one in slices for each in one["spec"]["devices"]]


async def test_people_find_the_cards_noted_on_the_pod_and_counted_in_the_metrics(
    world: SimulatedClaims,
) -> None:
    async with a_node(world.client, world.kubeconfig, claims=True) as node:
        pod = await world.client.create(PODS, a_granted_pod("one", NEED))
        await node.wait_phase(pod, "Running")
        (card,) = node.cards_of(pod)

        async def noted() -> bool:
            found = await world.client.get_object(PODS, "one", namespace="default")
            note = json.loads(found["metadata"]["annotations"].get(names.WIRED, "{}"))
            return bool(note.get("train") == {"cards": [card], "isolation": "none"})

        async def counted() -> bool:
            lines = (await node.scrape())[1].splitlines()
            return any('pod="one"' in line and card in line for line in lines)

        async def ready() -> bool:
            return (await node.scrape("/readyz"))[0] == 200

        await until(noted, what="the pod says its card")
        await until(counted, what="the metrics have the pod's share")
        await until(ready, what="the agent is ready")
        assert 'fracgpu_deviceplugin_identity{by="claims"} 1.0' in (await node.scrape())[1]


async def test_a_card_that_an_operator_takes_out_of_service_leaves_the_slice_and_comes_back(
    world: SimulatedClaims,
) -> None:
    async with a_node(world.client, world.kubeconfig, claims=True) as node:
        pod = await world.client.create(PODS, a_granted_pod("one", NEED))
        await node.wait_phase(pod, "Running")
        (card,) = node.cards_of(pod)

        async def annotate(uuids: str | None) -> None:
            patch = {"metadata": {"annotations": {names.NODE_OUT_OF_SERVICE: uuids}}}
            await world.client.patch(NODES, node.name, patch)

        async def offered() -> bool:
            return card.lower() in await devices(world.client)

        async def withdrawn() -> bool:
            return not await offered()

        await annotate(card)
        await until(withdrawn, what="the card has left the slice")
        await node.wait_message(pod, f"its card {card} on {node.name} is unhealthy")

        await annotate(None)
        await until(offered, what="the card is in the slice again")


@pytest.mark.parametrize("agent_restarts", [False, True])
async def test_a_container_that_restarts_gets_the_device_file_that_its_card_has_by_now(
    world: SimulatedClaims, *, agent_restarts: bool
) -> None:
    async with a_node(world.client, world.kubeconfig, claims=True, agent=False) as node:

        def number_cards_from(first: int) -> None:
            """Give the cards device files, as the driver numbers them when it is bound."""
            nodes = {
                card.uuid: [f"/dev/card{(first + at) % len(node.cards)}"]
                for at, card in enumerate(node.cards)
            }
            write_cards_file(node.cards_file, cards_document(node.cards, device_nodes=nodes))

        async def restarted() -> tuple[str, ...]:
            await node.kubelet.restart_container(uid, "train")
            return node.kubelet.created_containers()[uid]["train"].device_nodes

        number_cards_from(0)
        node.start_agent()
        await node.wait_slice()
        pod = await world.client.create(PODS, a_granted_pod("one", NEED))
        await node.wait_phase(pod, "Running")
        uid, (card,) = pod["metadata"]["uid"], node.cards_of(pod)
        at = [str(one.uuid) for one in node.cards].index(card)
        assert await restarted() == (f"/dev/card{at}",)

        if agent_restarts:
            await node.kill_agent()
        number_cards_from(1)
        if agent_restarts:
            node.start_agent()

        async def its_own() -> bool:
            return await restarted() == (f"/dev/card{(at + 1) % len(node.cards)}",)

        await until(its_own, what="the container has its own card")


async def test_an_agent_that_makes_a_mistake_about_a_claim_ends_with_1(
    world: SimulatedClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mistake(_: Preparer, claim: ClaimName) -> None:
        raise KeyError(claim.uid)

    monkeypatch.setattr(Preparer, "prepare", mistake)
    async with a_node(world.client, world.kubeconfig, claims=True) as node:
        assert node.agent is not None

        await world.client.create(PODS, a_granted_pod("one", NEED))

        async with asyncio.timeout(60):
            assert await node.agent == 1


async def test_a_node_that_stops_sharing_has_no_slice_and_no_specs(world: SimulatedClaims) -> None:
    kube = world.client
    async with a_node(kube, world.kubeconfig, claims=True) as node:
        pod = await kube.create(PODS, a_granted_pod("stays", NEED))
        await node.wait_phase(pod, "Running")

        async def none_offered() -> bool:
            return not await devices(kube)

        await kube.patch(NODES, node.name, {"metadata": {"labels": {names.SHARE_LABEL: None}}})
        await until(none_offered, what="the slice is gone")
        await node.stop_agent()

        found = await kube.get_object(NODES, node.name)
        assert names.NODE_CARDS not in found["metadata"].get("annotations", {})
        assert list(node.folders.cdi.glob("*fracgpu*")) == []


async def test_a_new_node_loses_its_startup_taint_once_its_slice_is_there(
    world: SimulatedClaims,
) -> None:
    taint = {"key": names.STARTUP_TAINT, "effect": "NoSchedule"}

    async with a_node(
        world.client, world.kubeconfig, name="new", claims=True, taints=(taint,)
    ) as node:

        async def started() -> bool:
            found = await world.client.get_object(NODES, "new")
            return not found["spec"].get("taints")

        await until(started, what="the start-up taint is gone")
        assert names.GPU_MEM not in (await world.client.get_object(NODES, "new"))["status"].get(
            "capacity", {}
        )
        assert len(await devices(world.client)) == len(node.cards)


async def test_an_agent_waits_for_one_of_the_other_wiring_before_it_offers_a_card(
    world: SimulatedClaims,
) -> None:
    async with a_node(world.client, world.kubeconfig, claims=True, agent=False) as node:
        other = os.open(node.folders.device_plugins, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(other, fcntl.LOCK_EX)
            node.start_agent()

            async def ready() -> bool:
                return (await node.scrape("/readyz"))[0] == HTTPStatus.OK

            await until(ready, what="the agent is ready to follow")
            assert await devices(world.client) == []
        finally:
            os.close(other)
        await node.wait_slice()


async def wait_not_ready(node: Node, why: str) -> None:
    async def said() -> bool:
        return why in (await node.scrape("/readyz"))[1]

    await until(said, what=f"the agent says: {why}")


async def test_while_a_pod_holds_a_card_by_slots_no_card_is_offered_to_claims(
    world: SimulatedClaims,
) -> None:
    kube = world.client
    async with a_node(kube, world.kubeconfig, claims=True, agent=False) as node:
        assigned = json.dumps({"train": [{"card": node.uuid(0), "mib": 1000}]})
        old = a_gpu_pod("old", mib=1000, annotations={names.ASSIGNMENT: assigned})
        old["spec"]["nodeName"] = node.name
        await kube.create(PODS, old, namespace="default")
        node.start_agent()

        await wait_not_ready(node, "pods of wiring devicePlugin still hold cards: default/old")
        assert await devices(kube) == []

        await kube.delete(PODS, "old", namespace="default", grace_s=0)
        await node.wait_slice()


async def test_while_a_pod_holds_a_card_by_a_claim_no_slot_is_offered(
    kubeconfig: Path, kube: KubeClient
) -> None:
    async with a_node(kube, kubeconfig, agent=False) as node:
        await kube.create(PODS, a_granted_pod("claimed", NEED, nodeName=node.name))
        node.start_agent()

        await wait_not_ready(node, "pods of wiring claims still hold cards: default/claimed")
        found = await kube.get_object(NODES, node.name)
        assert names.GPU_SLOT not in found["status"].get("allocatable", {})

        await kube.delete(PODS, "claimed", namespace="default", grace_s=0)
        await node.wait_counted()
