"""A mark: no Binding sent before it lands after it."""

import pytest

from fracgpu import names
from kube.errors import Conflict, KubeError
from tests.scheduler.world import World, conflict, silence

BINDING = {"target": {"apiVersion": "v1", "kind": "Node", "name": "n"}}


async def test_a_binding_sent_before_the_mark_does_not_land_after_it() -> None:
    world = World()
    seen = world.create().record
    marked = await world.marker.mark(seen)

    assert marked is not None
    assert (marked.record.uid, marked.record.node) == (seen.uid, "")
    assert marked.annotations[names.TERM].startswith("lease/1 2026-")
    with pytest.raises(Conflict, match="resourceVersion"):
        await world.api.bind(
            BINDING | {"metadata": {"uid": seen.uid, "resourceVersion": seen.resource_version}},
            namespace="default",
            name="p",
        )
    assert world.count("fracgpu_scheduler_pods_marked_total") == 1


async def test_a_pod_that_was_marked_still_says_what_it_asks() -> None:
    world = World()
    before = world.create(mib=1000)
    marked = await world.marker.mark(before.record)

    assert marked is not None
    assert (marked.need, marked.need_problem) == (before.need, "")


async def test_two_marks_are_never_the_same() -> None:
    world = World()
    record = world.create().record
    first = await world.marker.mark(record)
    await world.clock.advance(0.001)
    second = await world.marker.mark(record)

    assert first is not None
    assert second is not None
    assert first.record.resource_version != second.record.resource_version
    assert first.annotations[names.TERM] != second.annotations[names.TERM]


async def test_a_pod_that_is_gone_or_replaced_is_none() -> None:
    world = World()
    record = world.create().record
    world.delete()
    assert await world.marker.mark(record) is None

    world.create()
    assert await world.marker.mark(record) is None
    assert names.TERM not in world.api.pods["p"]["metadata"]["annotations"]


@pytest.mark.parametrize("error", [silence(), conflict("it keeps changing"), TimeoutError()])
async def test_an_api_server_that_did_not_do_it_is_an_error(
    error: KubeError | TimeoutError,
) -> None:
    world = World()
    record = world.create().record
    world.api.patch_raises = error

    with pytest.raises(type(error)):
        await world.marker.mark(record)
