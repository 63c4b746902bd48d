"""The annotation of the cards of a pod: written after the start, merged, never blocking it."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from deviceplugin.claims import Claim
from deviceplugin.node.pod_annotator import PodAnnotator, wired_text
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.state.allocation import Slice
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib
from kube.errors import Conflict
from kube.kinds import Kind
from tests.deviceplugin.builders import a_card, a_pod
from tests.support.waiting import until_true


def a_claim(pod: PodInfo, *, container: str = "train", card: str = "GPU-a") -> Claim:
    part = Slice(card=CardUuid(card), mib=Mib(1000))
    return Claim(pod=pod, container=container, slices=(part,), cards=(a_card(card),))


class FakePods:
    """Takes patches; the names in *gone* belong to other pods by now."""

    def __init__(self, *gone: str) -> None:
        self.gone = gone
        self.patches: list[tuple[str, Mapping[str, Any]]] = []

    async def patch(
        self, kind: Kind, name: str, patch: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]:
        if name in self.gone:
            raise Conflict(verb="PATCH", path="/x", status=409, reason="Conflict", message="uid")
        self.patches.append((f"{namespace}/{name}", patch))
        return {}


def test_the_note_names_the_cards_of_each_container() -> None:
    assert wired_text(a_claim(a_pod())) == '{"train":["GPU-a"]}'


def test_the_note_keeps_what_other_containers_noted() -> None:
    pod = a_pod(annotations={names.WIRED: '{"eval":["GPU-b"],"train":["GPU-x"]}'})

    assert json.loads(wired_text(a_claim(pod))) == {"eval": ["GPU-b"], "train": ["GPU-a"]}


def test_a_note_that_somebody_spoilt_is_written_anew() -> None:
    for spoilt in ("{", "[1]", "null"):
        pod = a_pod(annotations={names.WIRED: spoilt})

        assert json.loads(wired_text(a_claim(pod))) == {"train": ["GPU-a"]}


async def test_notes_carry_the_uid_and_a_refused_one_does_not_stop_the_next() -> None:
    pods = FakePods("gone")
    notes = PodAnnotator(pods)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(notes.run())
        notes.note(a_claim(a_pod("gone")))
        notes.note(a_claim(a_pod("train-0")))
        await until_true(lambda: bool(pods.patches), what="the second note is written")
        task.cancel()

    ((pod, patch),) = pods.patches
    assert pod == "ml/train-0"
    assert patch["metadata"]["uid"] == "uid-train-0"
    assert patch["metadata"]["annotations"] == {names.WIRED: '{"train":["GPU-a"]}'}


async def test_a_note_that_says_the_same_already_is_not_written() -> None:
    pods = FakePods()
    notes = PodAnnotator(pods)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(notes.run())
        notes.note(a_claim(a_pod("same", annotations={names.WIRED: '{"train":["GPU-a"]}'})))
        notes.note(a_claim(a_pod("new")))
        await until_true(lambda: bool(pods.patches), what="the other note is written")
        task.cancel()

    assert [pod for pod, _ in pods.patches] == ["ml/new"]


async def test_too_many_waiting_notes_push_out_the_oldest() -> None:
    pods = FakePods()
    notes = PodAnnotator(pods)
    for number in range(1025):
        notes.note(a_claim(a_pod(f"pod-{number}")))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(notes.run())
        await until_true(lambda: len(pods.patches) == 1024, what="all waiting notes are written")
        task.cancel()

    assert pods.patches[0][0] == "ml/pod-1"
