"""A mark prevents every earlier Binding from taking effect."""

import pytest

from fracgpu import names
from kube.errors import Conflict, KubeError
from tests.scheduler.harness import Harness, conflict, silence

BINDING = {"target": {"apiVersion": "v1", "kind": "Node", "name": "n"}}


async def test_a_binding_sent_before_the_mark_does_not_land_after_it() -> None:
    cluster = Harness()
    record = cluster.create().record
    marked = await cluster.marker.mark(record)

    assert marked is not None
    assert (marked.record.uid, marked.record.node) == (record.uid, "")
    assert marked.annotations[names.TERM].startswith("lease/1 2026-")
    with pytest.raises(Conflict, match="resourceVersion"):
        await cluster.api.bind(
            BINDING | {"metadata": {"uid": record.uid, "resourceVersion": record.resource_version}},
            namespace="default",
            name="p",
        )
    assert cluster.count("fracgpu_scheduler_pods_marked_total") == 1


async def test_a_pod_that_was_marked_still_says_what_it_asks() -> None:
    cluster = Harness()
    before = cluster.create(mib=1000)
    marked = await cluster.marker.mark(before.record)

    assert marked is not None
    assert (marked.need, marked.need_problem) == (before.need, "")


async def test_two_marks_are_never_the_same() -> None:
    cluster = Harness()
    record = cluster.create().record
    first = await cluster.marker.mark(record)
    await cluster.clock.advance(0.001)
    second = await cluster.marker.mark(record)

    assert first is not None
    assert second is not None
    assert first.record.resource_version != second.record.resource_version
    assert first.annotations[names.TERM] != second.annotations[names.TERM]


async def test_a_pod_that_is_gone_or_replaced_is_none() -> None:
    cluster = Harness()
    record = cluster.create().record
    cluster.delete()
    assert await cluster.marker.mark(record) is None

    cluster.create()
    assert await cluster.marker.mark(record) is None
    assert names.TERM not in cluster.api.pods["p"]["metadata"]["annotations"]


@pytest.mark.parametrize("error", [silence(), conflict("it keeps changing"), TimeoutError()])
async def test_an_api_server_that_did_not_do_it_is_an_error(
    error: KubeError | TimeoutError,
) -> None:
    cluster = Harness()
    record = cluster.create().record
    cluster.api.patch_raises = error

    with pytest.raises(type(error)):
        await cluster.marker.mark(record)
