"""The whole agent while a card's driver reports an error, and after it has expired."""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path

from fracgpu import names
from fracgpu.k8s.quantity import whole_amount
from kube.client import KubeClient
from kube.kinds import EVENTS, NODES
from kube.objects import decode_object
from simulator.apiserver.server import ApiServer
from simulator.cards.processes import SimulatedProcess
from simulator.cards.simulated_cards import open_cards, write_cards_file
from tests.support.node import Node, a_node
from tests.support.waiting import until


async def memory(node: Node) -> int | None:
    body = await node.client.get_object(NODES, node.name)
    return whole_amount(body["status"]["allocatable"].get(names.GPU_MEM, ""))


async def node_events(node: Node) -> list[tuple[str, str]]:
    """Return reason and text of the events on the node."""
    events = await node.client.list(EVENTS, namespace="default")
    found = [decode_object(raw) for raw in events.items]
    return [
        (item["reason"], item["message"])
        for item in found
        if item["involvedObject"]["kind"] == "Node"
    ]


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

        async def unhealthy() -> bool:
            return await memory(node) == 3 * 24_000

        await until(unhealthy, what="one card's memory is no longer offered")
        await node.wait_message(pod, "XID 79 (GPU has fallen off the bus)")

        async def healthy() -> bool:
            return await memory(node) == 4 * 24_000

        await until(healthy, what="the card is offered again")

        async def recovered() -> bool:
            return "CardRecovered" in {reason for reason, _ in await node_events(node)}

        await until(recovered, what="an event tells of the recovery")
        ((_, text),) = [event for event in await node_events(node) if event[0] == "CardUnhealthy"]
        assert node.uuid(1) in text
        assert "pods on it: default/here" in text


async def test_livez_fails_when_the_reading_of_the_cards_stands_still(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    async with a_node(kube, kubeconfig, nvml_timeout_s=0.2) as node:
        assert await node.scrape("/livez") == (200, "ok\n")
        # A process whose file in /proc never answers: the reading waits for it, and no call of the
        # driver ends it.
        place = node.folders.proc / "4711"
        place.mkdir(parents=True)
        os.mkfifo(place / "stat")
        card = str(node.uuid(0))
        stuck = SimulatedProcess(pid=4711, cards=(card,), used_mib=10, busy_ratio=0.0)
        processes = open_cards(node.cards_file).processes
        await open_cards(node.cards_file).list_cards()
        processes.write(stuck)

        async def dead() -> bool:
            status, text = await node.scrape("/livez")
            return status == 503 and text.startswith("reading the cards has made no progress for ")

        try:
            await until(dead, what="/livez says that the reading stands still", limit_s=30)
        finally:
            processes.remove(4711)
            await asyncio.to_thread(_let_go, place / "stat")

        async def alive() -> bool:
            return (await node.scrape("/livez"))[0] == 200

        await until(alive, what="/livez is content again", limit_s=30)


def _let_go(fifo: Path) -> None:
    """Unblock the readers of *fifo*, with nothing to read."""
    with suppress(OSError):
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
