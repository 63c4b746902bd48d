"""A real kubelet and the stock kube-scheduler: each container gets the card its claim was given."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from typing import Any, Final

import pytest

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.device_claims.devices import device_name
from fracgpu.k8s.container import ContainerKind
from kube.kinds import RESOURCE_CLAIMS
from simulator.cards.simulated_cards import cards_document, write_cards_file
from tests.e2e.test_real_runtime import let_the_runtime_miss_changes
from tests.support.claimed_node import (
    a_claimed_node,
    a_claimed_pod,
    claim_for,
    listed_cards,
    run,
    wait_bound,
    wait_message,
    wait_runs,
    wait_slice,
)
from tests.support.core import a_need, a_pod_need
from tests.support.gpu import some_cards
from tests.support.node import messages
from tests.support.processes import Child
from tests.support.real_node import MARK, NODE, RealNode, a_container, a_real_pod
from tests.support.waiting import until_true

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

Json = dict[str, Any]

MIB: Final = 8000
SLICE_BACK_S: Final = 5.0
AGENT_STARTS_S: Final = 15.0


async def test_two_pods_on_one_claim_are_refused_one_card() -> None:
    cards = some_cards(NODE, count=1, mib=MIB)
    need = a_pod_need(a_need(1000, name="train"))
    listed = {"train": [cards[0].uuid]}
    async with a_claimed_node(cards=cards) as node:
        # Both are there before the claim is prepared.
        node.agent.send(signal.SIGSTOP)
        first = await node.create(a_claimed_pod(node, need))
        thief = await node.create(_on_the_claim_of(first, a_claimed_pod(node, need)))
        await node.client.create(RESOURCE_CLAIMS, claim_for(first, need, listed))
        await wait_bound(node, [first, thief])
        node.agent.send(signal.SIGCONT)
        await wait_message(node, first, "is reserved for 2 pods")
        assert not [*node.sights(first), *node.sights(thief)]

        # The second one comes once it is prepared, and kubelet does not ask again.
        pod = await run(node, need, listed)
        late = await node.create(_on_the_claim_of(pod, a_claimed_pod(node, need)))
        await wait_message(node, late, "has the card of another pod, whose claim it names")
        assert node.sights(late) == []
        assert len(node.sights(pod)) == 1


def _on_the_claim_of(pod: Json, thief: Json) -> Json:
    thief["spec"]["resourceClaims"] = pod["spec"]["resourceClaims"]
    return thief


async def test_every_container_of_a_pod_gets_its_own_cards() -> None:
    cards = some_cards(NODE, count=4, mib=MIB)
    need = a_pod_need(
        a_need(800, name="load", kind=ContainerKind.INIT),
        a_need(1600, name="one", cores=50),
        a_need(2400, name="two", cards=2),
    )
    first, second, third, fourth = (card.uuid for card in cards)
    listed = {"load": [fourth], "one": [first], "two": [second, third]}
    listed_all = (first, second, third, fourth)
    async with a_claimed_node(cards=cards) as node:
        pod = await run(node, need, listed, inits=["load"])

        seen = {sight.container: sight for sight in node.sights(pod)}
        assert seen["load"].devices == node.expected([(fourth, 800)])
        assert seen["one"].devices == node.expected([(first, 1600)])
        assert seen["two"].devices == node.expected([(second, 2400), (third, 2400)])
        assert seen["two"].env[names.ENV_VISIBLE_DEVICES] == f"{second},{third}"
        assert seen["two"].env[names.ENV_MEM_MIB] == "2400,2400"
        # Kubelet lists all cards of a pod's claim for each of its containers.
        assert (await listed_cards(node, pod))["two"] == {device_name(each) for each in listed_all}

        await node.delete([pod])
        await node.wait_gone([pod])
        await until_true(
            lambda: not list(node.cdi_dir.glob("*.json")), what="its specs are removed", limit_s=30
        )


async def test_a_users_own_claim_with_alternatives_gets_a_card_too() -> None:
    cards = some_cards(NODE, count=2, mib=MIB)
    async with a_claimed_node(cards=cards) as node:
        memory = {"capacity": {"requests": {"memory": "3000Mi"}}}
        alternative = {"name": "card0", "deviceClassName": names.DEVICE_CLASS, **memory}
        await node.client.create(
            RESOURCE_CLAIMS,
            {
                "metadata": {"name": "mine", "namespace": "default"},
                "spec": {
                    "devices": {"requests": [{"name": "c0", "firstAvailable": [alternative]}]}
                },
            },
        )
        container = a_container("main", mib=0, slots=0)
        container["resources"] = {"claims": [{"name": "cards", "request": "c0"}]}
        body = a_real_pod([container], reports=node.reports)
        del body["spec"]["schedulerName"]
        body["spec"]["resourceClaims"] = [{"name": "cards", "resourceClaimName": "mine"}]

        pod = await node.create(body)
        await wait_runs(node, pod)

        (sight,) = node.sights(pod)
        assert sight.env[names.ENV_MEM_MIB] == "3000"
        assert len(sight.devices) == 1


async def test_kubelet_and_agent_restart_and_running_pods_do_not_notice() -> None:
    cards = some_cards(NODE, count=2, mib=MIB)
    need = a_pod_need(a_need(1000, name="train"))
    async with a_claimed_node(cards=cards) as node:
        pod = await run(node, need, {"train": [cards[0].uuid]})
        shells = node.shells(pod)

        await node.restart_kubelet()
        await _rewritten(node)
        await run(node, need, {"train": [cards[0].uuid]})

        await node.restart_agent()
        later = await run(node, need, {"train": [cards[1].uuid]})
        assert node.sights(later)[0].devices == node.expected([(cards[1].uuid, 1000)])

        assert node.shells(pod) == shells
        assert len(node.sights(pod)) == 1
        generation = (await wait_slice(node))["spec"]["pool"]["generation"]
        await node.delete([pod, later])
        await node.wait_gone([pod, later])
        again = await run(node, need, {"train": [cards[1].uuid]})
        assert len(node.sights(again)) == 1
        assert (await wait_slice(node))["spec"]["pool"]["generation"] == generation


@pytest.mark.parametrize("misses", [False, True], ids=["", "the runtime misses the change"])
async def test_a_container_restarts_on_its_own_card_after_the_cards_changed_their_device_files(
    *, misses: bool
) -> None:
    cards = some_cards(NODE, count=2, mib=MIB)
    need = a_pod_need(a_need(1000, name="train"))
    async with a_claimed_node(cards=cards) as node:
        pod = await run(node, need, {"train": [cards[0].uuid]})
        read_again = let_the_runtime_miss_changes(node) if misses else lambda: None
        document = cards_document(cards, device_nodes=_files_in_order(node, *reversed(cards)))
        write_cards_file(node.root / "cards.json", document)
        await until_true(
            lambda: any(each.get("event") == "spec_renewed" for each in node.log_events()),
            what="the spec is written again",
            limit_s=60,
        )

        (shell,) = node.shells(pod)
        os.kill(shell, signal.SIGKILL)
        if misses:
            await wait_message(node, pod, "no such file")
            assert len(node.sights(pod)) == 1
            read_again()
        await until_true(
            lambda: len(node.sights(pod)) > 1, what="the container runs again", limit_s=240
        )

        assert {tuple(sight.devices.values()) for sight in node.sights(pod)} == {
            tuple(node.expected([(card.uuid, 1000)]).values()) for card in cards
        }


def _files_in_order(node: RealNode, *cards: Card) -> dict[CardUuid, Sequence[str]]:
    """Return the node's device files, given to the cards in this order."""
    return {
        card.uuid: [f"{MARK}{card.index}={node.root}/cards/card{at}"]
        for at, card in enumerate(cards)
    }


async def _rewritten(node: RealNode) -> None:
    """Wait until the agent has written the slice that kubelet deletes when it starts."""

    def writes() -> int:
        return sum(event.get("event") == "slice_written" for event in node.log_events())

    await until_true(lambda: writes() > 1, what="the slice is written again", limit_s=60)
    await wait_slice(node, limit_s=SLICE_BACK_S)


async def test_an_agent_that_was_away_a_minute_publishes_its_cards_again() -> None:
    cards = some_cards(NODE, count=1, mib=MIB)
    need = a_pod_need(a_need(1000, name="train"))
    async with a_claimed_node(cards=cards) as node:
        pod = await run(node, need, {"train": [cards[0].uuid]})
        await node.agent.kill()

        await wait_slice(node, cards=[], limit_s=60)  # kubelet removes it after half a minute
        shells = node.shells(pod)
        await node.agent.start()
        began_s = time.monotonic()
        await wait_slice(node)

        assert time.monotonic() - began_s < AGENT_STARTS_S + SLICE_BACK_S
        assert node.shells(pod) == shells
        await run(node, need, {"train": [cards[0].uuid]})


async def test_with_surge_the_next_agent_serves_before_the_first_one_ends() -> None:
    cards = some_cards(NODE, count=1, mib=MIB)
    need = a_pod_need(a_need(100, name="train"))
    async with a_claimed_node(cards=cards) as node:
        first = node.agent
        following = Child(first.command, log=node.root / "following.log")
        pods = [await run(node, need, {"train": [cards[0].uuid]})]
        try:
            await following.start()
            await until_true(
                lambda: "plugin_registered" in following.log.read_text(),
                what="kubelet knows the next agent",
                limit_s=60,
            )

            async with asyncio.TaskGroup() as group:
                group.create_task(first.end(), name="end_first")
                pods += [await run(node, need, {"train": [cards[0].uuid]}) for _ in range(3)]
            node.agent = following
            pods.append(await run(node, need, {"train": [cards[0].uuid]}))
            await wait_slice(node)
        finally:
            await following.kill()

        assert all(len(node.sights(pod)) == 1 for pod in pods)
        said = [text for pod in pods for text in await messages(node.client, pod)]
        assert not [text for text in said if "prepare" in text]
