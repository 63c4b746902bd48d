"""The real kube-scheduler calls our extender, and every pod gets a specific card."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from fracgpu import names
from fracgpu.cards.card import Health
from kube.kinds import PODS
from tests.support.gpu import a_gpu_pod, a_sharing_node, register, some_cards
from tests.support.real_scheduler import Harness, real_scheduler
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

NODES = ("gpu-1", "gpu-2", "gpu-3")
CARD_MIB = 24_000


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    nodes = [a_sharing_node(name, cards=some_cards(name, mib=CARD_MIB)) for name in NODES]
    async with real_scheduler(tmp_path, nodes) as started:
        yield started


async def test_all_requests_of_kube_scheduler_share_one_connection(tmp_path: Path) -> None:
    nodes = [a_sharing_node(name, cards=some_cards(name, mib=CARD_MIB)) for name in NODES]
    async with real_scheduler(tmp_path, nodes, mutual_tls=True) as harness:
        async with asyncio.TaskGroup() as group:  # at once, so that it binds several at once
            for number in range(100):
                pod = a_gpu_pod(f"p{number}", mib=1000)
                group.create_task(harness.client.create(PODS, pod), name=f"create {number}")

        await harness.until_bound(100)
        assert len(harness.callers()) == 1  # over HTTP/1.1 one for each request under way


async def test_an_event_of_failed_scheduling_has_few_reasons_the_commonest_first_within_1_kb(
    harness: Harness,
) -> None:
    # Nodes with different numbers of cards in each state: 36 different lists of reasons.
    for n in range(36):
        name = f"gpu-node-{n}.eu-central-1.compute.internal"
        cards = tuple(
            replace(
                card,
                health=Health.UNHEALTHY if card.index < n % 6 else Health.HEALTHY,
                model="NVIDIA H100" if card.index < n // 6 + n % 6 else card.model,
            )
            for card in some_cards(name, count=10, mib=800)
        )
        await register(harness.client, a_sharing_node(name, cards=cards))
    mib = CARD_MIB // 6  # within every node's sum, and more than any of the new cards has
    fillers = [f"filler-{n}" for n in range(12)]
    for name in fillers:
        await harness.client.create(PODS, a_gpu_pod(name, mib=CARD_MIB - 800))

    await harness.until_bound(fillers)
    await harness.client.create(PODS, a_gpu_pod("p", mib=mib, annotations={names.MODEL: "*A30*"}))

    async def refused() -> bool:
        return bool(await harness.failures_of("p"))

    await until(refused, what="an event of kube-scheduler", limit_s=60)
    (message, *_) = await harness.failures_of("p")
    counts = [
        int(count) for count in re.findall(r"(\d+) (?:too|wrong|unhealthy|no shared)", message)
    ]
    assert message.startswith("0/39 nodes are available: ")
    assert 2 <= len(counts) <= 6, message
    assert counts == sorted(counts, reverse=True)
    assert len(message.encode()) <= 1_024
