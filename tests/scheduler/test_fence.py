"""A new leader marks the pods whose Bindings may be under way before it assigns any card."""

import asyncio
import json

from fracgpu import names
from fracgpu.state.allocation import write_assignment
from tests.scheduler.harness import Harness, silence
from tests.support.core import on
from tests.support.objects import a_pod


async def test_without_a_record_every_pod_that_waits_for_a_share_is_marked_and_no_other() -> None:
    cluster = Harness()
    for name in ("one", "two", "bound", "going"):
        cluster.create(name)
    await cluster.bind("bound")
    cluster.see("bound")
    cluster.api.pods["going"]["metadata"]["deletionTimestamp"] = "2026-01-05T12:00:00Z"
    cluster.see("going")
    cluster.api.put(a_pod("plain"))
    cluster.see("plain")
    fence = cluster.fence()
    assert fence.why_not() == "pending pods are not marked yet"

    await fence.mark_pending()

    assert fence.why_not() is None
    assert sorted(cluster.api.patches) == ["one", "two"]


async def test_of_many_pods_that_wait_only_those_on_the_record_are_marked() -> None:
    cluster = Harness()
    for at in range(50):
        cluster.create(f"p{at}")
    uids = [cluster.args(name).uid for name in ("p7", "p8")]
    text = json.dumps({"term": "lease/4", "pods": [*uids, "gone"]})
    cluster.record.inherit({names.BINDINGS_UNDER_WAY: text}, term="lease/4")

    await cluster.fence().mark_pending()

    assert sorted(cluster.api.patches) == ["p7", "p8"]
    assert not cluster.record.concerns(uids[0])


async def test_what_could_not_be_marked_stays_on_the_record_for_the_next_leader() -> None:
    cluster = Harness()
    cluster.create("one")
    uid = cluster.args("one").uid
    cluster.api.patch_raises = silence()
    fence = cluster.fence(limit_s=1)
    async with asyncio.TaskGroup() as group:
        rising = group.create_task(fence.mark_pending())
        while not rising.done():
            await cluster.clock.advance(1)

    (text,) = cluster.record.annotations(term="lease/5").values()
    assert json.loads(text or "") == {"term": "lease/5", "pods": [uid]}


async def test_very_many_pods_are_looked_at_in_pieces() -> None:
    cluster = Harness()
    cluster.create("bound")
    await cluster.bind("bound")
    cluster.see("bound")
    (bound,) = cluster.bound_pods.pods()
    fence = cluster.fence(lambda: [bound] * 5_000)
    async with asyncio.TaskGroup() as group:
        rising = group.create_task(fence.mark_pending())
        await asyncio.sleep(0)
        assert not rising.done()
        assert fence.why_not() == "pending pods are not marked yet"

    assert fence.why_not() is None


async def test_until_all_are_marked_nothing_is_answered() -> None:
    cluster = Harness()
    cluster.create("one")
    cluster.api.patch_raises = silence()
    fence = cluster.fence()
    async with asyncio.TaskGroup() as group:
        rising = group.create_task(fence.mark_pending())
        for _ in range(20):
            await cluster.clock.wait_for_sleepers(1)
            assert fence.why_not() == "1 pending pods are not marked yet"
            await cluster.clock.advance(1)
        cluster.api.patch_raises = None
        await cluster.clock.advance(1)
        await rising

    assert fence.why_not() is None
    assert cluster.count("fracgpu_scheduler_pods_marked_total") == 1


async def test_pods_are_woken_once_all_are_marked() -> None:
    cluster = Harness()
    cluster.create("one")
    fence = cluster.fence()
    woken: list[str | None] = []

    async def wake() -> None:
        woken.append(fence.why_not())

    async with asyncio.TaskGroup() as group:
        group.create_task(fence.once_up(wake)())
        await asyncio.sleep(0)
        assert woken == []
        await fence.mark_pending()

    assert woken == [None]


async def test_a_pod_that_went_meanwhile_needs_no_mark() -> None:
    cluster = Harness()
    cluster.create("one")
    cluster.delete("one", observed=False)
    fence = cluster.fence()

    await fence.mark_pending()

    assert fence.why_not() is None


async def test_a_binding_that_lands_before_the_mark_counts_before_anything_is_placed() -> None:
    cluster = Harness()
    before = cluster.create("one", mib=20_000)
    cluster.create("two", mib=20_000)
    # It was delayed: it takes effect after our list, and our watch has not shown it yet.
    holds = on("GPU-n-0", 20_000, container="train")
    cluster.api.land(
        {
            "metadata": {"annotations": {names.ASSIGNMENT: write_assignment(holds)}},
            "target": {"name": "n"},
        },
        before.record.name,
    )

    await cluster.fence().mark_pending()

    assert cluster.held() == 20_000


async def test_many_pods_that_cannot_be_marked_hold_nobody_up_longer_than_one() -> None:
    cluster = Harness()
    for at in range(200):
        cluster.create(f"p{at}", mib=1)
    cluster.api.patch_raises = silence()
    cluster.api.before_patch = lambda: cluster.clock.sleep(4)
    fence = cluster.fence(limit_s=10)
    async with asyncio.TaskGroup() as group:
        rising = group.create_task(fence.mark_pending())
        while not rising.done():
            await cluster.clock.advance(1)

    assert fence.why_not() is None
    assert cluster.clock.monotonic() < 20
