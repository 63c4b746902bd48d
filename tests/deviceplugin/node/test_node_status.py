"""The node is kept in its desired state, whatever else changes it."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from deviceplugin.cards.interface import CardsUnavailableError
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.capacity import NodeState, Sharing, wanted_state
from deviceplugin.node.inventory import InventoryTracker
from deviceplugin.node.node_status import NodeStatusUpdater
from fracgpu import names
from fracgpu.cards.annotations import read_cards
from fracgpu.cards.card import Health
from kube.client import PatchType
from kube.errors import Unavailable
from kube.kinds import Kind
from tests.deviceplugin.builders import (
    NODE,
    FakeCards,
    a_card,
    a_card_list,
    a_tracker,
    an_inventory,
)
from tests.fakes.clock import VirtualClock

SHARED = {names.SHARE_LABEL: "true"}


class FakeNode:
    """A node object and its writer; *down* makes the API server fail."""

    def __init__(self) -> None:
        self.state: NodeState | None = NodeState(labels=SHARED, capacity={"cpu": "4"})
        self.down = False
        self.writes: list[tuple[str, Mapping[str, Any]]] = []
        self.conditions: list[Mapping[str, str]] = []

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str | None = None,
        how: PatchType = PatchType.MERGE,
    ) -> dict[str, Any]:
        if self.down:
            raise Unavailable(
                verb="PATCH", path="/x", status=None, reason="NoAnswer", message="gone"
            )
        assert (kind.kind, name) == ("Node", NODE)
        assert self.state is not None
        metadata, status = patch.get("metadata", {}), patch.get("status", {})
        if how is PatchType.STRATEGIC:
            (condition,) = status["conditions"]
            if condition.get("$patch") == "delete":
                self.state = replace(self.state, sharing=None)
                return {}
            self.conditions.append(condition)
            fields = {key: condition[key] for key in ("reason", "message")}
            sharing = Sharing(shared=condition["status"] == "True", **fields)
            self.state = replace(self.state, sharing=sharing)
            return {}
        self.writes.append((subresource or "metadata", patch))
        self.state = replace(
            self.state,
            labels=merged(self.state.labels, metadata.get("labels", {})),
            annotations=merged(self.state.annotations, metadata.get("annotations", {})),
            capacity=merged(self.state.capacity, status.get("capacity", {})),
        )
        return {}


def merged(before: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    """Return the texts after a merge patch: null removes."""
    both = {**before, **patch}
    return {key: value for key, value in both.items() if value is not None}


def a_report(
    node: FakeNode, tracker: InventoryTracker, clock: VirtualClock
) -> tuple[NodeStatusUpdater, CollectorRegistry]:
    registry = CollectorRegistry()
    report = NodeStatusUpdater(
        node=NODE,
        tracker=tracker,
        current=lambda: node.state,
        writer=node,
        clock=clock,
        metrics=DevicePluginMetrics(registry),
    )
    return report, registry


async def test_the_node_gets_labels_and_inventory_before_capacity() -> None:
    node, cards, clock = FakeNode(), FakeCards(a_card()), VirtualClock()
    tracker = a_tracker(cards, clock)
    await tracker.refresh()
    report, _ = a_report(node, tracker, clock)

    assert await report.sync()
    assert await report.sync()

    assert [where for where, _ in node.writes] == ["metadata", "status"]
    assert node.state is not None
    assert node.state.capacity == {"cpu": "4", **wanted_state(an_inventory(a_card())).capacity}
    assert report.problem is None


async def test_cards_that_nobody_has_seen_yet_are_not_reported_as_none() -> None:
    node, cards, clock = FakeNode(), FakeCards(), VirtualClock()
    cards.answer = CardsUnavailableError("no driver")
    report, _ = a_report(node, a_tracker(cards, clock), clock)

    await report.sync()

    assert node.writes == []
    assert report.problem is not None


async def test_a_driver_that_is_never_there_is_told_in_the_condition_alone() -> None:
    node, cards, clock = FakeNode(), FakeCards(), VirtualClock()
    cards.answer = CardsUnavailableError("no driver")
    tracker = a_tracker(cards, clock)
    report, _ = a_report(node, tracker, clock)
    for _ in range(2):
        await tracker.refresh()
        await report.sync()
    assert node.conditions == []  # it may only be slow

    for _ in range(2):
        await tracker.refresh()
        await report.sync()

    (condition,) = node.conditions
    assert condition["status"] == "False"
    assert (condition["reason"], condition["message"]) == ("CardsUnavailable", "no driver")
    assert node.writes == []


async def test_an_agent_started_while_the_driver_is_gone_reports_0_not_the_old_truth() -> None:
    node, cards, clock = FakeNode(), FakeCards(), VirtualClock()
    before = wanted_state(an_inventory(a_card(), a_card("GPU-b", index=1)))
    node.state = replace(before, labels={**SHARED, **before.labels})
    cards.answer = CardsUnavailableError("NVML: Driver Not Loaded")
    tracker = a_tracker(cards, clock, slots_per_card=32)
    report, _ = a_report(node, tracker, clock)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(tracker.run()), group.create_task(report.run())]
        await clock.advance(15)
        early = node.state
        await clock.advance(10)
        lost = node.state
        cards.answer = a_card_list(a_card(), a_card("GPU-b", index=1))
        await clock.advance(10)
        for task in tasks:
            task.cancel()

    assert early == replace(before, labels=early.labels)  # it may only be slow
    assert lost.capacity == {names.GPU_MEM: "0", names.GPU_COUNT: "0"}
    inventory = read_cards(lost.annotations[names.NODE_CARDS])
    assert [(card.uuid, card.health, card.health_reason) for card in inventory] == [
        (uuid, Health.UNHEALTHY, "NVML: Driver Not Loaded") for uuid in ("GPU-a", "GPU-b")
    ]
    assert lost.labels == early.labels
    assert lost.sharing == Sharing(
        shared=False, reason="CardsUnavailable", message="NVML: Driver Not Loaded"
    )
    assert node.state == early


async def test_a_node_that_stops_sharing_loses_everything_that_was_written_on_it() -> None:
    node, cards, clock = FakeNode(), FakeCards(a_card()), VirtualClock()
    tracker = a_tracker(cards, clock)
    await tracker.refresh()
    report, _ = a_report(node, tracker, clock)
    await report.sync()
    assert node.state is not None
    out = {names.NODE_OUT_OF_SERVICE: "GPU-a"}
    heat = {names.NODE_HEAT: "{}"}
    node.state = replace(
        node.state,
        labels={**node.state.labels, names.SHARE_LABEL: "false", "zone": "a"},
        annotations={**node.state.annotations, **out, **heat},
    )
    before = len(node.writes)

    assert await report.sync()
    assert await report.sync()

    assert node.state == NodeState(
        labels={names.SHARE_LABEL: "false", "zone": "a"}, annotations=out, capacity={"cpu": "4"}
    )
    assert [where for where, _ in node.writes[before:]] == ["status", "metadata"]
    assert report.problem == "the node does not carry fracgpu.io/share=true"


async def test_a_runtime_that_has_not_answered_takes_the_nodes_capacity_and_is_named() -> None:
    node, clock = FakeNode(), VirtualClock()
    tracker = a_tracker(FakeCards(a_card()), clock)
    await tracker.refresh()
    silent: list[str] = []
    report = NodeStatusUpdater(
        node=NODE,
        tracker=tracker,
        current=lambda: node.state,
        writer=node,
        clock=clock,
        metrics=DevicePluginMetrics(CollectorRegistry()),
        blocked=lambda: silent[0] if silent else None,
    )
    await report.sync()
    silent.append("/run/x.sock answered UNAVAILABLE")

    await report.sync()

    assert node.state is not None
    assert node.state.capacity[names.GPU_MEM] == "0"
    assert node.state.sharing == Sharing(
        shared=False, reason="RuntimeUnknown", message="/run/x.sock answered UNAVAILABLE"
    )
    assert report.problem == "/run/x.sock answered UNAVAILABLE"


async def test_what_pods_hold_stays_counted_whatever_becomes_of_the_cards() -> None:
    node, clock = FakeNode(), VirtualClock()
    tracker = a_tracker(FakeCards(a_card(mib=8000)), clock)
    await tracker.refresh()
    silent: list[str] = []
    held: list[int | None] = [None]
    report = NodeStatusUpdater(
        node=NODE,
        tracker=tracker,
        current=lambda: node.state,
        writer=node,
        clock=clock,
        metrics=DevicePluginMetrics(CollectorRegistry()),
        blocked=lambda: silent[0] if silent else None,
        held_mib=lambda: held[0],
    )
    await report.sync()
    silent.append("/run/x.sock answered UNAVAILABLE")
    memory = []

    for now in (None, 3000, 0):
        held[0] = now
        await report.sync()
        assert node.state is not None
        memory.append(node.state.capacity[names.GPU_MEM])

    # As long as the pods are not listed, they may hold everything.
    assert memory == ["8000", "3000", "0"]


async def test_a_node_that_is_not_there_yet_is_waited_for() -> None:
    node, clock = FakeNode(), VirtualClock()
    node.state = None
    tracker = a_tracker(FakeCards(a_card()), clock)
    await tracker.refresh()
    report, _ = a_report(node, tracker, clock)

    assert not await report.sync()
    assert report.problem is not None
    assert NODE in report.problem


async def test_changes_of_cards_and_of_the_node_are_written_and_failures_tried_again() -> None:
    node, cards, clock = FakeNode(), FakeCards(a_card()), VirtualClock()
    tracker = a_tracker(cards, clock)
    report, registry = a_report(node, tracker, clock)

    def memory() -> str | None:
        assert node.state is not None
        return node.state.capacity.get(names.GPU_MEM)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(tracker.run()), group.create_task(report.run())]
        await clock.advance(1)
        at_start = memory()

        cards.answer = a_card_list(a_card(), a_card("GPU-b", index=1))
        await clock.advance(10)
        after_a_new_card = memory()

        node.state = NodeState(
            labels=SHARED, capacity={"cpu": "4"}
        )  # everything of ours was removed
        node.down = True
        report.wake()
        await clock.advance(1)
        while_down = memory()

        node.down = False
        await clock.advance(5)
        after_the_outage = memory()
        for task in tasks:
            task.cancel()

    assert [at_start, after_a_new_card, while_down, after_the_outage] == [
        "8000",
        "16000",
        None,
        "16000",
    ]
    failed = registry.get_sample_value(
        "fracgpu_deviceplugin_node_writes_total", {"outcome": "failed"}
    )
    assert failed is not None
    assert failed >= 1
