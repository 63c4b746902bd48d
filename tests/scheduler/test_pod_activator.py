"""What time alone opens is told to kube-scheduler: the pods that now fit are marked."""

import json
from datetime import timedelta

from tests.scheduler.world import World, silence


def cordon(world: World, *cards: str, seconds: float) -> None:
    until = (world.clock.now() + timedelta(seconds=seconds)).isoformat()
    entries = {card: {"until": until, "reason": "hot"} for card in cards}
    world.annotate_node({"cordons": json.dumps(entries)})


async def woken(world: World, *, after: float = 0) -> list[str]:
    """The pods that were marked when this time had passed."""
    before = len(world.api.patches)
    await world.clock.advance(after)
    await world.waker.once()
    return world.api.patches[before:]


async def test_a_cordon_that_lapses_wakes_the_pods_that_fit_by_then_and_no_others() -> None:
    world = World(cards=1)
    cordon(world, "GPU-n-0", seconds=60)
    world.create("fits", mib=24_000)
    world.create("too-large", mib=25_000)
    assert await woken(world) == []
    assert await woken(world, after=59) == []

    assert await woken(world, after=2) == ["fits"]
    assert await woken(world, after=60) == []


async def test_an_assumption_that_is_dropped_wakes_the_pods_that_waited_for_its_room() -> None:
    world = World(cards=1)
    world.create("lost", mib=20_000)
    world.create("other", mib=20_000)
    world.api.bind_raises = silence()
    await world.bind("lost")
    assert await woken(world) == []
    world.delete("lost", seen=False)

    await world.clock.advance(11)
    await world.assumptions.settle()

    # That the first is gone the informer has not heard yet; to mark it changes nothing.
    assert await woken(world) == ["lost", "other"]


async def test_what_lapses_where_no_waiting_pod_fits_wakes_nobody() -> None:
    world = World("n", "m", cards=1)
    cordon(world, "GPU-n-0", seconds=10)
    world.create("filler", mib=24_000)
    await world.bind("filler", node="m")
    world.see("filler")
    world.create("large", mib=24_001)
    await woken(world)

    assert await woken(world, after=11) == []


async def test_of_many_pods_some_are_looked_at_in_each_tick_the_important_first() -> None:
    world = World(cards=1)
    cordon(world, "GPU-n-0", seconds=10)
    for number in range(60):
        world.create(f"p{number}", mib=1000, priority=number)
    await woken(world)

    first = await woken(world, after=11)
    second = await woken(world)

    assert first == [f"p{number}" for number in range(59, 9, -1)]
    assert sorted(second) == sorted(f"p{number}" for number in range(10))


async def test_who_no_longer_leads_or_is_not_heard_wakes_nobody() -> None:
    world = World(cards=1)
    cordon(world, "GPU-n-0", seconds=10)
    world.create("p")
    await woken(world)
    world.leads = False
    assert await woken(world, after=11) == []

    world.leads = True
    cordon(world, "GPU-n-0", seconds=10)
    await woken(world)
    world.api.patch_raises = silence()
    assert await woken(world, after=11) == ["p"]
    assert world.count("fracgpu_scheduler_pods_marked_total") == 0
