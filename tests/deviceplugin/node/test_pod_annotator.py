"""The annotation of the cards of a pod: written after the start, merged, never blocking it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import Raw

from deviceplugin.claims import Claim
from deviceplugin.node.pod_annotator import PodAnnotator, wired_text
from deviceplugin.node.rejected_pods import RejectedPodCleaner
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import Slice
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.errors import KubeError, NotFound, Unavailable, error_from_status
from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import Kind
from kube.objects import ObjectList
from simulator.background import background
from tests.deviceplugin.builders import NODE, a_card, a_pod, pod_json
from tests.fakes.clock import VirtualClock
from tests.support.waiting import until_true


def a_claim(pod: PodInfo, *, container: str = "train", card: str = "GPU-a") -> Claim:
    part = Slice(card=CardUuid(card), mib=Mib(1000))
    return Claim(pod=pod, container=container, slices=(part,), cards=(a_card(card),))


class FakePods(KubeClient):
    """Takes patches; those of the pods in *refused* have these errors."""

    def __init__(self, **refused: KubeError) -> None:
        self.refused = refused
        self.asked: list[str] = []
        self.patches: list[tuple[str, Mapping[str, Any]]] = []

    async def patch(
        self, kind: Kind, name: str, patch: Any, *, namespace: str | None = None, **_: Any
    ) -> dict[str, Any]:
        self.asked.append(name)
        if name in self.refused:
            raise self.refused[name]
        self.patches.append((f"{namespace}/{name}", patch))
        return {}


def test_the_note_keeps_what_other_containers_noted() -> None:
    said = '{"eval":["GPU-b"],"train":["GPU-x"]}'

    assert json.loads(wired_text(a_claim(a_pod()), "kernel", said=said)) == {
        "eval": ["GPU-b"],
        "train": {"cards": ["GPU-a"], "isolation": "kernel"},
    }


def test_a_note_that_somebody_spoilt_is_written_anew() -> None:
    for spoilt in ("{", "[1]", "null", "[" * 5000):
        assert json.loads(wired_text(a_claim(a_pod()), "none", said=spoilt)) == {
            "train": {"cards": ["GPU-a"], "isolation": "none"}
        }


GOT = '{"train":{"cards":["GPU-a"],"isolation":"none"}}'


def an_error(status: int) -> KubeError:
    return error_from_status(verb="PATCH", path="/x", status=status, reason="", message="")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 415, 422])
async def test_notes_carry_the_uid_and_one_that_is_refused_is_tried_once(status: int) -> None:
    pods, clock = FakePods(refused=an_error(status)), VirtualClock()
    notes = PodAnnotator(pods, clock)
    async with background(notes.run()):
        notes.note(a_claim(a_pod("refused")), "none")
        notes.note(a_claim(a_pod("train-0")), "none")
        await until_true(lambda: bool(pods.patches), what="the second note is written")
        await clock.advance(3600)
        notes.note(a_claim(a_pod("train-1")), "none")
        await until_true(lambda: len(pods.patches) == 2, what="the third note is written")

    assert pods.asked == ["refused", "train-0", "train-1"]
    pod, patch = pods.patches[0]
    assert pod == "ml/train-0"
    assert patch["metadata"]["uid"] == "uid-train-0"
    assert patch["metadata"]["annotations"] == {names.WIRED: GOT}


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_a_note_is_tried_again_until_the_api_server_answers(status: int) -> None:
    pods, clock = FakePods(late=an_error(status)), VirtualClock()
    notes = PodAnnotator(pods, clock)
    async with background(notes.run()):
        notes.note(a_claim(a_pod("late")), "none")
        for _ in range(3):
            await clock.wait_for_sleepers(1)
            await clock.advance(1)
        pods.refused = {}
        await clock.wait_for_sleepers(1)
        await clock.advance(1)
        await until_true(lambda: bool(pods.patches), what="the note is written")

    assert pods.asked == ["late"] * 5


async def test_containers_that_start_at_once_are_all_noted() -> None:
    pods, pod = FakePods(), a_pod()
    notes = PodAnnotator(pods, VirtualClock())
    async with background(notes.run()):
        notes.note(a_claim(pod), "kernel")
        notes.note(a_claim(pod, container="eval", card="GPU-b"), "none")
        await until_true(lambda: len(pods.patches) == 2, what="both are noted")

    _, patch = pods.patches[-1]
    assert json.loads(patch["metadata"]["annotations"][names.WIRED]) == {
        "train": {"cards": ["GPU-a"], "isolation": "kernel"},
        "eval": {"cards": ["GPU-b"], "isolation": "none"},
    }


async def test_a_note_that_says_the_same_already_is_not_written() -> None:
    pods = FakePods()
    notes = PodAnnotator(pods, VirtualClock())
    async with background(notes.run()):
        notes.note(a_claim(a_pod("same", annotations={names.WIRED: GOT})), "none")
        notes.note(a_claim(a_pod("new")), "none")
        await until_true(lambda: bool(pods.patches), what="the other note is written")

    assert [pod for pod, _ in pods.patches] == ["ml/new"]


async def test_too_many_waiting_notes_push_out_the_oldest() -> None:
    pods = FakePods()
    notes = PodAnnotator(pods, VirtualClock())
    for number in range(1025):
        notes.note(a_claim(a_pod(f"pod-{number}")), "none")
    async with background(notes.run()):
        await until_true(lambda: len(pods.patches) == 1024, what="all waiting notes are written")

    assert pods.patches[0][0] == "ml/pod-1"


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


class FakeCluster(KubeClient, EventRecorder):
    """Pods, and the names of those that were deleted."""

    def __init__(self, *pods: Json) -> None:
        self.pods = {pod["metadata"]["name"]: pod for pod in pods}
        self.elsewhere: list[Json] = []
        self.down = False
        self.deleted: list[tuple[str, str | None]] = []
        self.events: list[tuple[str, str, str]] = []

    def here(self) -> list[Any]:
        return [decode_pod_info(json.dumps(pod).encode()) for pod in self.pods.values()]

    async def list(self, kind: Kind, **_: Any) -> ObjectList:
        every: Sequence[Json] = [*self.pods.values(), *self.elsewhere]
        return ObjectList(
            resource_version="1", items=[Raw(json.dumps(item).encode()) for item in every]
        )

    async def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        **_: Any,
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
    observed = cluster.here()
    await cleaner.sync()
    cluster.here = lambda: observed  # type: ignore[method-assign]
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


@pytest.mark.parametrize(("isolation", "limit"), [("kernel", 4000), ("none", 1000)])
def test_the_note_says_how_much_a_container_may_use_where_it_is_limited(
    isolation: str, limit: int
) -> None:
    claim = a_claim(a_pod())
    slices = tuple(replace(part, own_limit_mib=Mib(4000)) for part in claim.slices)

    claim = replace(claim, slices=slices)
    assert json.loads(wired_text(claim, isolation, said="{}"))["train"] == {
        "cards": ["GPU-a"],
        "isolation": isolation,
        "mib": [1000],
        "limitMib": [limit],
    }
