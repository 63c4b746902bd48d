"""The whole agent while a card's driver reports an error, and after it has expired."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from kube.client import KubeClient
from simulator.apiserver.server import ApiServer
from simulator.cards.processes import SimulatedProcess
from simulator.cards.simulated_cards import open_cards
from tests.support.node import a_node
from tests.support.waiting import until


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
            await until(dead, what="/livez says that the reading stands still")
        finally:
            processes.remove(4711)
            await asyncio.to_thread(_let_go, place / "stat")

        async def alive() -> bool:
            return (await node.scrape("/livez"))[0] == 200

        await until(alive, what="/livez is content again")


def _let_go(fifo: Path) -> None:
    """Unblock the readers of *fifo*, with nothing to read."""
    with suppress(OSError):
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
