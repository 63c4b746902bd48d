"""People are told once which pool a pod waits for."""

import json
from typing import Any

from fracgpu import names
from fracgpu.cards.card import NodeCards
from fracgpu.request.grant_note import GrantData, GrantedAmounts, GrantNote, Seal
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from scheduler.pool_events import REASON, PoolEvents
from tests.fakes.clock import VirtualClock
from tests.fakes.events import RecordedEvents
from tests.support.gpu import a_gpu_pod, refused_status


def a_pending_pod(name: str, *, tried: bool = True, **granted: Any) -> PodInfo:
    data = GrantData(containers={"train": GrantedAmounts(cards=1, mib=1000)}, **granted)
    note = Seal().write(GrantNote(words="train: 1000 MiB on 1 card", data=data))
    pod = a_gpu_pod(name, annotations={names.GRANTED: note})
    pod["metadata"]["uid"] = name
    if tried:
        pod["status"] = refused_status()
    return decode_pod_info(json.dumps(pod).encode())


class World:
    def __init__(self) -> None:
        clock = VirtualClock()
        self.pods: dict[str, PodInfo] = {}
        self.nodes: list[NodeCards] = []
        self.recorder = RecordedEvents()
        self.events = PoolEvents(
            self.recorder, waiting=lambda: self.pods, nodes=lambda: self.nodes, clock=clock
        )

    def add(self, pod: PodInfo) -> None:
        self.pods[pod.record.uid] = pod

    async def said(self) -> list[tuple[str, str, str]]:
        await self.events.look()
        found, self.recorder.events = self.recorder.events, []
        return found


async def test_a_pod_that_kube_scheduler_refused_is_told_its_class_once() -> None:
    world = World()
    world.add(a_pending_pod("p", card_class="a100-80gb", for_pool=True))

    assert await world.said() == [
        (
            "Pod/p",
            REASON,
            "granted train: 1000 MiB on 1 card, for which no node stands yet: the pod waits until "
            "an autoscaler, or whoever adds nodes, brings one of a pool with a100-80gb cards; "
            "`fracgpu pools` lists them",
        )
    ]
    assert await world.said() == []


async def test_nothing_is_said_before_kube_scheduler_has_tried_the_pod() -> None:
    world = World()
    world.add(a_pending_pod("p", tried=False, for_pool=True))
    assert await world.said() == []

    world.add(a_pending_pod("p", for_pool=True))
    ((_, _, note),) = await world.said()
    assert "one of a pool whose cards are large enough" in note


async def test_pods_that_nodes_could_hold_wait_for_room() -> None:
    world = World()
    world.add(a_pending_pod("of-a-node", card_class="a100-80gb"))
    world.add(a_pending_pod("node-came", card_class="a100-80gb", for_pool=True))
    world.nodes = [NodeCards(node="n", shared=True, labels={names.CARD_CLASS_LABEL: "a100-80gb"})]

    assert await world.said() == []


async def test_a_pod_of_the_same_uid_that_comes_back_is_told_again() -> None:
    world = World()
    world.add(a_pending_pod("p", for_pool=True))
    assert len(await world.said()) == 1

    pod = world.pods.pop("p")
    assert await world.said() == []
    world.add(pod)
    assert len(await world.said()) == 1
