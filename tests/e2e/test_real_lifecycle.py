"""A real kubelet: rejected pods are deleted, and a restart keeps the pods of closed cards."""

from typing import Any, Final

import pytest

from fracgpu import names
from kube.kinds import EVENTS, NODES
from kube.objects import decode_object
from tests.support.gpu import some_cards
from tests.support.real_node import NODE, RealNode, a_real_node
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

Json = dict[str, Any]

CARD_MIB: Final = 24_000
OWNER: Final = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "train",
    "uid": "0f7d1b0a-0000-4000-8000-000000000000",
    "controller": True,
}


async def test_pods_that_kubelet_refused_are_cleaned_up_when_an_owner_replaces_them() -> None:
    cards = some_cards(NODE, count=2, mib=CARD_MIB)
    async with a_real_node(cards=cards) as node:
        await node.wait_counted(slots=64, mib=2 * CARD_MIB)
        await node.agent.kill()
        owned, bare = await node.bind_pod(0, owners=[OWNER]), await node.bind_pod(1)
        uids = [pod["metadata"]["uid"] for pod in (owned, bare)]

        async def refused() -> bool:
            pods = await node.pods()
            states = [pods[uid].get("status", {}) for uid in uids]
            return [state.get("reason") for state in states] == ["UnexpectedAdmissionError"] * 2

        await until(refused, what="kubelet refuses both pods", limit_s=120)
        await node.agent.start()

        async def gone() -> bool:
            return uids[0] not in await node.pods()

        await until(gone, what="the pod with an owner is gone", limit_s=60)
        assert uids[1] in await node.pods()
        events: list[str] = []

        async def reported() -> bool:
            found = [decode_object(raw) for raw in (await node.client.list(EVENTS)).items]
            events[:] = [
                event["involvedObject"]["uid"]
                for event in found
                if event["reason"] == "RefusedPodRemoved"
            ]
            return bool(events)

        # The agent writes the Event after the deletion that the test has just seen.
        await until(reported, what="the removal is reported", limit_s=60)
        assert events == [uids[0]]


async def test_a_restarted_kubelet_keeps_the_pods_of_cards_that_take_nothing_new() -> None:
    async with a_real_node(cards=some_cards(NODE, count=2, mib=CARD_MIB)) as node:
        await node.wait_counted(slots=64, mib=2 * CARD_MIB)
        pods = [await node.bind_pod(card) for card in (0, 1)]
        uids = [pod["metadata"]["uid"] for pod in pods]
        await node.wait_running(uids)
        out = {names.NODE_OUT_OF_SERVICE: ",".join(card.uuid for card in node.cards)}
        await node.client.patch(NODES, NODE, {"metadata": {"annotations": out}})
        # Only what the pods hold is left, so kube-scheduler finds nothing free.
        await node.wait_counted(slots=0, mib=2 * 500)
        before = await heartbeat(node)

        await node.restart_kubelet()

        async def reported() -> bool:
            return await heartbeat(node) != before

        await until(reported, what="kubelet reports again", limit_s=400)
        await node.wait_running(uids)
        found = await node.pods()
        assert [found[uid]["status"]["phase"] for uid in uids] == ["Running"] * 2
        restarts = [state["restartCount"] for uid in uids for state in container_states(found[uid])]
        assert restarts == [0, 0]


def container_states(pod: Json) -> list[Json]:
    return list(pod["status"]["containerStatuses"])


async def heartbeat(node: RealNode) -> str:
    conditions = (await node.node())["status"]["conditions"]
    (ready,) = [condition for condition in conditions if condition["type"] == "Ready"]
    return str(ready["lastHeartbeatTime"])
