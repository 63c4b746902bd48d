"""The agent as a whole when a card's driver reports an error, and when that is long ago."""

import json
from pathlib import Path

from deviceplugin.claims import whole_amount
from fracgpu import names
from kube.client import KubeClient
from kube.kinds import EVENTS, NODES
from kube.objects import decode_object
from simulator.apiserver import ApiServer
from simulator.cards import write_cards_file
from tests.support.node import Node, a_node
from tests.support.waiting import until


async def memory(node: Node) -> int | None:
    body = await node.client.get_object(NODES, node.name)
    return whole_amount(body["status"]["allocatable"].get(names.GPU_MEM, ""))


async def told(node: Node) -> list[tuple[str, str]]:
    """Reason and text of the events on the node."""
    events = await node.client.list(EVENTS, namespace="default")
    found = [decode_object(raw) for raw in events.items]
    return [(it["reason"], it["message"]) for it in found if it["involvedObject"]["kind"] == "Node"]


async def test_a_card_with_a_critical_xid_takes_nothing_until_its_time_is_over(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    async with a_node(kube, kubeconfig, health_hold_s=3.0) as node:
        pod = await node.run_pod("here", card=1)
        await node.wait_phase(pod, "Running")
        document = json.loads(node.cards_file.read_text())
        document["cards"][0]["xids"] = [31, 43]  # a program's own faults
        document["cards"][1]["xids"] = [79]
        write_cards_file(node.cards_file, document)

        async def ill() -> bool:
            return await memory(node) == 3 * 24_000

        await until(ill, what="one card's memory is no longer offered")
        await node.wait_message(pod, "XID 79 (GPU has fallen off the bus)")

        async def well() -> bool:
            return await memory(node) == 4 * 24_000

        await until(well, what="the card is offered again")

        async def recovered() -> bool:
            return "CardRecovered" in {reason for reason, _ in await told(node)}

        await until(recovered, what="an event tells of the recovery")
        ((_, text),) = [it for it in await told(node) if it[0] == "CardUnhealthy"]
        assert node.uuid(1) in text
        assert "pods on it: default/here" in text
