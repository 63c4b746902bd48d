"""Events are written when a card becomes unhealthy, on its node and pods, and when it recovers."""

import asyncio

from deviceplugin.node.health_events import HealthEvents
from kube.events import EventLevel, Regarding
from tests.deviceplugin.builders import NODE, FakeCards, a_card, a_card_list, a_pod, a_tracker
from tests.fakes.clock import VirtualClock


class FakeRecorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    async def emit(
        self,
        regarding: Regarding,
        *,
        reason: str,
        note: str,
        level: EventLevel = EventLevel.NORMAL,
    ) -> None:
        self.events.append((f"{regarding.kind.kind}/{regarding.name}", reason, note))


async def test_an_unhealthy_card_names_its_pods_once_and_its_recovery_is_reported() -> None:
    cards, clock, recorder = FakeCards(a_card("GPU-a")), VirtualClock(), FakeRecorder()
    tracker = a_tracker(cards, clock)
    pods = [
        a_pod("here"),
        a_pod("elsewhere", assigned={"train": [("GPU-b", 1000)]}),
        a_pod("ended", phase="Succeeded"),
    ]
    events = HealthEvents(node=NODE, tracker=tracker, pods=lambda: pods, recorder=recorder)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(tracker.run()), group.create_task(events.run())]
        await clock.advance(1)
        assert recorder.events == []
        cards.answer = a_card_list(a_card("GPU-a", unhealthy="XID 79"))
        await clock.advance(30)
        ill = list(recorder.events)
        cards.answer = a_card_list(a_card("GPU-a"))
        await clock.advance(30)
        well = recorder.events[len(ill) :]
        cards.answer = a_card_list()
        await clock.advance(30)
        gone = recorder.events[len(ill) + len(well) :]
        for task in tasks:
            task.cancel()

    assert [event[:2] for event in ill] == [
        (f"Node/{NODE}", "CardUnhealthy"),
        ("Pod/here", "CardUnhealthy"),
    ]
    assert "XID 79; pods on it: ml/here" in ill[0][2]
    assert "elsewhere" not in ill[0][2]
    assert [event[:2] for event in well] == [(f"Node/{NODE}", "CardRecovered")]
    assert "vanished" in gone[0][2]


async def test_more_pods_than_a_text_can_name_are_counted() -> None:
    cards, clock, recorder = (
        FakeCards(a_card("GPU-a", unhealthy="hot")),
        VirtualClock(),
        FakeRecorder(),
    )
    tracker = a_tracker(cards, clock)
    pods = [a_pod(f"pod-{number:02}") for number in range(13)]
    events = HealthEvents(node=NODE, tracker=tracker, pods=lambda: pods, recorder=recorder)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(tracker.run()), group.create_task(events.run())]
        await clock.advance(1)
        for task in tasks:
            task.cancel()

    assert recorder.events[0][2].endswith("ml/pod-09 and 3 more")
