"""Placements that count although no informer has shown them yet."""

import asyncio

import pytest

from kube.errors import Conflict, KubeError
from tests.scheduler.world import World, refusal, silence


async def unconfirmed(*, answer_lost: bool = True, mib: int = 1000) -> World:
    """A world in which one Binding was sent and no answer came."""
    world = World()
    world.create(mib=mib)
    if answer_lost:
        world.api.answer_lost = True
    else:
        world.api.bind_raises = silence()
    await world.bind()
    world.api.answer_lost, world.api.bind_raises = False, None
    world.api.gets = 0
    return world


async def settle_after(world: World, seconds: float) -> None:
    await world.clock.advance(seconds)
    await world.assumptions.settle()


async def test_nothing_is_looked_up_before_its_time() -> None:
    world = await unconfirmed()
    await settle_after(world, 9)

    assert world.api.gets == 0


async def test_a_pod_found_bound_goes_on_counting_however_late_the_informer_is() -> None:
    world = await unconfirmed()
    for _ in range(30):
        await settle_after(world, 11)
        assert world.held() == 1000

    world.see("p")
    assert world.held() == 1000
    assert world.ledger.assumed == {}


async def test_a_pod_found_unbound_is_marked_so_that_its_binding_cannot_land_and_is_free() -> None:
    world = await unconfirmed(answer_lost=False)
    (lost,) = world.api.bindings
    await settle_after(world, 11)

    assert (world.held(), world.api.patches) == (0, ["p"])
    with pytest.raises(Conflict, match="resourceVersion"):
        await world.api.bind(lost, namespace="default", name="p")
    assert world.count("fracgpu_scheduler_assumptions_lapsed_total") == 0


async def test_a_pod_that_is_bound_while_it_is_marked_goes_on_counting() -> None:
    world = await unconfirmed(answer_lost=False)
    (lost,) = world.api.bindings
    world.api.after_get = lambda: world.api.land(lost, "p")
    await settle_after(world, 11)

    assert (world.held(), world.api.patches) == (1000, ["p"])


async def test_a_pod_found_unbound_that_cannot_be_marked_lapses_in_the_end() -> None:
    world = await unconfirmed(answer_lost=False)
    world.api.patch_raises = refusal()
    await settle_after(world, 11)
    assert world.held() == 1000  # the write may still be under way

    await settle_after(world, 50)
    assert world.held() == 0
    assert world.count("fracgpu_scheduler_assumptions_lapsed_total") == 1


@pytest.mark.parametrize("error", [silence(), TimeoutError()])
async def test_while_the_api_server_is_silent_nothing_lapses(
    error: KubeError | TimeoutError,
) -> None:
    world = await unconfirmed()
    world.api.get_raises = error
    for _ in range(20):
        await settle_after(world, 30)
        assert world.held() == 1000


async def test_a_pod_found_gone_is_free() -> None:
    world = await unconfirmed()
    world.delete(seen=False)
    await settle_after(world, 11)

    assert world.held() == 0
    assert world.ledger.assumed == {}


async def test_a_pod_found_replaced_is_free() -> None:
    world = await unconfirmed()
    world.delete(seen=False)
    world.create(mib=7)
    await settle_after(world, 11)

    assert world.held() == 0


async def test_a_pod_found_ended_is_free() -> None:
    world = await unconfirmed()
    world.api.pods["p"]["status"] = {"phase": "Failed"}
    await settle_after(world, 11)

    assert world.held() == 0


async def test_what_the_informer_confirmed_is_not_looked_up() -> None:
    world = await unconfirmed()
    world.see("p")
    await settle_after(world, 11)

    assert world.api.gets == 0
    assert world.held() == 1000


async def test_the_loop_settles_about_once_a_second() -> None:
    world = await unconfirmed()
    world.delete(seen=False)

    async with asyncio.TaskGroup() as group:
        loop = group.create_task(world.assumptions.expire(), name="look after")
        await world.clock.advance(12)
        loop.cancel()

    assert world.held() == 0
