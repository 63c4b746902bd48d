"""A new leader marks every pod that waits before it gives any card away."""

import asyncio

from fracgpu import names
from fracgpu.state.assignment import write_assignment
from scheduler.fence import Fence
from tests.scheduler.world import World, silence
from tests.support.core import on
from tests.support.objects import a_pod


def a_fence(world: World, *, limit_s: float = 75.0) -> Fence:
    return Fence(
        world.pods,
        world.marker,
        world.clock,
        on_bound=world.assumptions.count_bound,
        limit_s=limit_s,
    )


async def test_every_pod_that_waits_for_a_share_is_marked_and_no_other() -> None:
    world = World()
    for name in ("one", "two", "bound", "going"):
        world.create(name)
    await world.bind("bound")
    world.see("bound")
    world.api.pods["going"]["metadata"]["deletionTimestamp"] = "2026-01-05T12:00:00Z"
    world.see("going")
    world.api.put(a_pod("plain"))
    world.see("plain")
    fence = a_fence(world)
    assert fence.why_not() == "pods that wait are not marked yet"

    await fence.mark_pending()

    assert fence.why_not() is None
    assert sorted(world.api.patches) == ["one", "two"]


async def test_until_all_are_marked_nothing_is_answered() -> None:
    world = World()
    world.create("one")
    world.api.patch_raises = silence()
    fence = a_fence(world)
    async with asyncio.TaskGroup() as group:
        rising = group.create_task(fence.mark_pending())
        for _ in range(20):
            await world.clock.wait_for_sleepers(1)
            assert fence.why_not() == "1 pods that wait are not marked yet"
            await world.clock.advance(1)
        world.api.patch_raises = None
        await world.clock.advance(1)
        await rising

    assert fence.why_not() is None
    assert world.count("fracgpu_scheduler_pods_marked_total") == 1


async def test_a_pod_that_cannot_be_marked_holds_nobody_up_for_ever() -> None:
    world = World()
    world.create("one")
    world.api.patch_raises = silence()
    fence = a_fence(world, limit_s=10)
    async with asyncio.TaskGroup() as group:
        rising = group.create_task(fence.mark_pending())
        while not rising.done():
            await world.clock.advance(1)

    assert fence.why_not() is None
    assert world.clock.monotonic() < 15


async def test_a_pod_that_went_meanwhile_needs_no_mark() -> None:
    world = World()
    world.create("one")
    world.delete("one", seen=False)
    fence = a_fence(world)

    await fence.mark_pending()

    assert fence.why_not() is None


async def test_a_binding_that_lands_before_the_mark_counts_before_anything_is_placed() -> None:
    world = World()
    before = world.create("one", mib=20_000)
    world.create("two", mib=20_000)
    # It was held up on its way: it lands after our list, and our watch has not brought it yet.
    holds = on("GPU-n-0", 20_000, container="train")
    world.api.land(
        {
            "metadata": {"annotations": {names.ASSIGNMENT: write_assignment(holds)}},
            "target": {"name": "n"},
        },
        before.record.name,
    )

    await a_fence(world).mark_pending()

    assert world.held() == 20_000


async def test_many_pods_that_cannot_be_marked_hold_nobody_up_longer_than_one() -> None:
    world = World()
    for at in range(200):
        world.create(f"p{at}", mib=1)
    world.api.patch_raises = silence()
    world.api.before_patch = lambda: world.clock.sleep(4)
    fence = a_fence(world, limit_s=10)
    async with asyncio.TaskGroup() as group:
        rising = group.create_task(fence.mark_pending())
        while not rising.done():
            await world.clock.advance(1)

    assert fence.why_not() is None
    assert world.clock.monotonic() < 20
