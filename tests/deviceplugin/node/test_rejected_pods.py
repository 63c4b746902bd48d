"""Rejected pods are deleted once they are replaced, and never one without an owner."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from deviceplugin.node.rejected_pods import RejectedPodCleaner
from fracgpu import names
from fracgpu.state.pod_info import decode_pod_info
from kube.errors import NotFound, Unavailable
from kube.events import EventLevel, Regarding
from kube.kinds import Kind
from kube.objects import ObjectList
from tests.deviceplugin.builders import NODE, pod_json
from tests.fakes.clock import VirtualClock

Json = dict[str, Any]


def a_rejected_pod(name: str, *, owner: str = "ReplicaSet", created: str = "11:59:00") -> Json:
    body: Json = json.loads(pod_json(name, phase="Failed"))
    body["metadata"]["creationTimestamp"] = f"2026-01-05T{created}Z"
    body["status"] |= {
        "reason": "UnexpectedAdmissionError",
        "startTime": "2026-01-05T11:59:01Z",
    }
    if owner:
        body["metadata"]["ownerReferences"] = [
            {"kind": owner, "name": "train", "uid": "owner", "controller": True}
        ]
    return body


class FakeCluster:
    """Pods, and the names of those that were deleted."""

    def __init__(self, *pods: Json) -> None:
        self.pods = {pod["metadata"]["name"]: pod for pod in pods}
        self.elsewhere: list[Json] = []
        self.down = False
        self.deleted: list[tuple[str, str | None]] = []
        self.events: list[tuple[str, str, str]] = []

    def here(self) -> list[Any]:
        return [decode_pod_info(json.dumps(pod).encode()) for pod in self.pods.values()]

    async def list(self, kind: Kind, *, namespace: str | None = None) -> ObjectList:
        every: Sequence[Json] = [*self.pods.values(), *self.elsewhere]
        return ObjectList(
            resource_version="1", items=[Raw(json.dumps(item).encode()) for item in every]
        )

    async def delete(
        self, kind: Kind, name: str, *, namespace: str | None = None, uid: str | None = None
    ) -> None:
        if self.down:
            raise Unavailable(verb="DELETE", path="/", status=None, reason="Gone", message="down")
        if self.pods.pop(name, None) is None:
            raise NotFound(verb="DELETE", path="/", status=404, reason="NotFound", message="gone")
        self.deleted.append((f"{namespace}/{name}", uid))

    async def emit(
        self, regarding: Regarding, *, reason: str, note: str, level: EventLevel = EventLevel.NORMAL
    ) -> None:
        self.events.append((regarding.name, reason, note))


def a_cleaner(cluster: FakeCluster) -> RejectedPodCleaner:
    return RejectedPodCleaner(
        node=NODE, pods=cluster.here, client=cluster, recorder=cluster, clock=VirtualClock()
    )


async def test_a_rejected_pod_whose_owner_replaces_it_is_deleted_with_an_event() -> None:
    cluster = FakeCluster(a_rejected_pod("one"), a_rejected_pod("bare", owner=""))

    await a_cleaner(cluster).sync()

    assert cluster.deleted == [("ml/one", "uid-one")]
    ((name, reason, note),) = cluster.events
    assert (name, reason) == ("one", "RefusedPodRemoved")
    assert note == (
        f"kubelet on {NODE} rejected the pod before it ran (UnexpectedAdmissionError); "
        "ReplicaSet train has replaced it"
    )


async def test_a_jobs_rejected_pod_stays_until_the_job_has_made_another_one() -> None:
    cluster = FakeCluster(a_rejected_pod("one", owner="Job"))
    cleaner = a_cleaner(cluster)

    await cleaner.sync()
    before = list(cluster.deleted)
    cluster.elsewhere.append(a_rejected_pod("two", owner="Job", created="11:59:05"))
    await cleaner.sync()

    assert before == []
    assert cluster.deleted == [("ml/one", "uid-one")]


async def test_a_failure_is_tried_again_and_whoever_was_faster_is_no_failure() -> None:
    cluster = FakeCluster(a_rejected_pod("one"))
    cleaner = a_cleaner(cluster)
    cluster.down = True
    await cleaner.sync()
    assert cluster.deleted == []

    cluster.down = False
    seen = cluster.here()
    await cleaner.sync()
    cluster.here = lambda: seen  # type: ignore[method-assign]
    await a_cleaner(cluster).sync()

    assert cluster.deleted == [("ml/one", "uid-one")]
    assert len(cluster.events) == 1


async def test_a_pod_that_asks_nothing_of_us_is_not_ours_to_delete() -> None:
    body = a_rejected_pod("one")
    body["spec"]["containers"] = [{"name": "train"}]
    del body["metadata"]["annotations"][names.ASSIGNMENT]
    cluster = FakeCluster(body)

    await a_cleaner(cluster).sync()

    assert cluster.deleted == []
