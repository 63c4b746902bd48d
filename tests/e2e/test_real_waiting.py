"""A pending pod is retried as soon as its reason is gone, on the real kube-scheduler.

kube-scheduler tries a pod that an extender refused again only after some event of the cluster, or
after five minutes; nothing else happens in this cluster that would be one.
"""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from fracgpu import names
from kube.kinds import NODES, PODS
from process.clock import SystemClock
from tests.support.gpu import a_gpu_pod, a_sharing_node, some_cards
from tests.support.real_scheduler import Harness, real_scheduler
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MARKS = "fracgpu_scheduler_pods_marked_total"


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    node = a_sharing_node("n", cards=some_cards("n", count=1))
    async with real_scheduler(tmp_path, [node]) as started:
        yield started


async def bound(harness: Harness, name: str) -> bool:
    return name in await harness.bound()


async def refused(harness: Harness, name: str) -> bool:
    return bool(await harness.failures_of(name))


async def test_a_cordon_that_lapses_makes_kube_scheduler_look_again(harness: Harness) -> None:
    until_when = SystemClock().now() + timedelta(seconds=30)
    entries = {"GPU-n-0": {"until": until_when.isoformat(), "reason": "hot"}}
    notes = {names.NODE_CORDONS: json.dumps(entries)}
    await harness.client.patch(NODES, "n", {"metadata": {"annotations": notes}})

    async def closed() -> bool:
        await harness.client.create(PODS, a_gpu_pod("probe", mib=20_000))
        await until(lambda: either(harness, "probe"), what="an answer for the probe", limit_s=30)
        answer = not await bound(harness, "probe")
        await harness.client.delete(PODS, "probe", namespace="default", grace_s=0)
        return answer

    await until(closed, what="the extender knows of the cordon", limit_s=25)
    await harness.client.create(PODS, a_gpu_pod("p", mib=20_000))
    await until(lambda: refused(harness, "p"), what="the pod is refused", limit_s=25)
    assert SystemClock().now() < until_when, "the machine was too slow for this test"
    assert not await bound(harness, "p")
    # Far less than the five minutes after which kube-scheduler would look by itself.
    await until(lambda: bound(harness, "p"), what="the pod takes the card", limit_s=90)

    assert SystemClock().now() > until_when
    assert await harness.metric(MARKS) == 1


async def either(harness: Harness, name: str) -> bool:
    return await bound(harness, name) or await refused(harness, name)
