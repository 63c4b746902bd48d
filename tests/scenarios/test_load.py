"""Heat and foreign memory, from the processes on a card to the decisions and the commands."""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from fracgpu.cards.annotations import read_foreign, read_heat
from fracgpu.state.allocation import read_assignment
from kube.kinds import NODES, PODS
from process.clock import SystemClock
from simulator.cards.processes import ProcessFolder, SimulatedProcess
from simulator.demo.rig import Rig, RigSettings, open_rig
from simulator.demo.workload import NAMESPACE
from tests.support.processes import output_of
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

CLOCK = SystemClock()
ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def a_rig() -> AsyncIterator[tuple[Rig, ProcessFolder]]:
    """Run one node with three cards, and the processes on them."""
    # Sockets are in it, so its path must be short.
    with tempfile.TemporaryDirectory(prefix="fg-", dir="/tmp") as folder:
        settings = RigSettings(nodes=1, cards_per_node=3)
        async with open_rig(settings, Path(folder), CLOCK) as rig:

            async def ready() -> bool:
                return not await rig.waiting_for()

            await until(ready, what="every role is ready", limit_s=90)
            yield rig, ProcessFolder(Path(folder) / "n0" / "processes")


async def notes_of(rig: Rig) -> dict[str, str]:
    (node,) = rig.kubelets
    body = await rig.kube.get_object(NODES, node)
    return dict(body["metadata"].get("annotations", {}))


async def ask(rig: Rig, *words: str) -> str:
    """Run a command; return its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", *words, "--kubeconfig", str(rig.kubeconfig)),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    out, _ = await output_of(process, limit_s=60)
    return out.decode()


async def cards_shown(rig: Rig) -> dict[str, dict[str, Any]]:
    response = json.loads(await ask(rig, "cards", "--json"))
    return {card["uuid"]: card for node in response["nodes"] for card in node["cards"]}


async def submit(rig: Rig, name: str, **annotations: str) -> None:
    notes = {f"{names.PREFIX}{key}": value for key, value in annotations.items()}
    container = {"name": "main", "image": "registry.example/main:1"}
    spec = {"schedulerName": names.SCHEDULER_NAME, "containers": [container]}
    body = {"metadata": {"name": name, "annotations": notes}, "spec": spec}
    await rig.kube.create(PODS, body, namespace=NAMESPACE)


async def card_of(rig: Rig, name: str) -> str:
    """Wait until the pod is bound; return its card."""
    found = ""

    async def bound() -> bool:
        nonlocal found
        body = await rig.kube.get_object(PODS, name, namespace=NAMESPACE)
        text = body["metadata"]["annotations"].get(names.ASSIGNMENT)
        if text:
            found = str(read_assignment(text)["main"][0].card)
        return bool(text)

    await until(bound, what=f"{name} is bound", limit_s=60)
    return found


async def test_outsiders_memory_is_not_free_and_load_aware_takes_the_cool_card() -> None:
    async with a_rig() as (rig, processes):
        unloaded = await cards_shown(rig)
        first, second, third = unloaded
        capacity_mib = unloaded[first]["capacityMib"]
        # Two programs of no pod: one fills a card, the other keeps one half busy:
        # not so busy that the rebalancer would set it aside.
        filler = SimulatedProcess(
            pid=4711, cards=(first,), used_mib=capacity_mib - 2000, busy_ratio=0.0
        )
        worker = SimulatedProcess(pid=4712, cards=(second,), used_mib=0, busy_ratio=0.5)
        for process in (filler, worker):
            processes.write(process)

        async def published() -> bool:
            notes = await notes_of(rig)
            heat = read_heat(notes.get(names.NODE_HEAT, ""))
            foreign = read_foreign(notes.get(names.NODE_FOREIGN, ""))
            return (
                {uuid for uuid, ratio in heat.items() if ratio > 0.3} == {second}
                and heat.keys() == {first, second, third}
                and set(foreign) == {first}
            )

        await until(published, what="the node says what runs on its cards", limit_s=60)

        shown = await cards_shown(rig)
        assert 0 < capacity_mib - shown[first]["foreignMib"] <= 2000
        assert shown[first]["freeMib"] == capacity_mib - shown[first]["foreignMib"]
        assert shown[second]["heat"] > 0.3 > shown[third]["heat"]
        head, *rows = (await ask(rig, "cards")).splitlines()
        assert "BUSY" in head
        assert f"(+{shown[first]['foreignMib']} foreign)" in rows[0]

        # The cool and empty card, although the busy one is as empty.
        await submit(rig, "cool", fraction="0.9", placement="load-aware")
        assert await card_of(rig, "cool") == third
        # Only the busy card is left for this one, and for the next there is none.
        await submit(rig, "warm", fraction="0.9", placement="load-aware")
        assert await card_of(rig, "warm") == second
        await submit(rig, "waits", fraction="0.9")

        async def explained() -> bool:
            output = await ask(rig, "explain", f"{NAMESPACE}/waits")
            return f"({shown[first]['foreignMib']} MiB used by other processes)" in output

        await until(explained, what="explain names the memory of other processes", limit_s=60)
        processes.remove(4711)
        assert await card_of(rig, "waits") == first
