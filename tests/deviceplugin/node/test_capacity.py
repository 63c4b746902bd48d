"""The desired state of the node, and the smallest patch to it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from component.pool_config import parse_pools
from deviceplugin.cards.interface import CardsUnavailableError, SkippedCard
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.capacity import (
    NodeState,
    Sharing,
    condition_patch,
    held_mib,
    keep_held,
    label_value,
    metadata_patch,
    read_node_state,
    resized_mib,
    startup_taint_patch,
    status_patch,
    wanted_state,
    with_isolation,
    with_resized,
    without_capacity,
    without_new_pods,
)
from deviceplugin.node.inventory import InventoryTracker
from deviceplugin.node.node_status import NodeStatusUpdater
from fracgpu import names
from fracgpu.cards.annotations import read_cards, read_isolation
from fracgpu.cards.card import Health
from kube.client import KubeClient, PatchType
from kube.errors import Unavailable
from kube.kinds import Kind
from simulator.background import background
from tests.deviceplugin.builders import (
    NODE,
    FakeCards,
    a_card,
    a_card_list,
    a_container,
    a_pod,
    a_resized_pod,
    a_tracker,
    an_inventory,
)
from tests.fakes.clock import NOON, VirtualClock


def test_capacity_counts_the_memory_of_healthy_cards_and_all_cards() -> None:
    inventory = an_inventory(
        a_card("GPU-a", mib=8000), a_card("GPU-b", index=1, mib=4000, unhealthy="hot")
    )

    assert wanted_state(inventory).capacity == {
        "fracgpu.io/gpu-mem": "8000",
        "fracgpu.io/gpu-count": "2",
    }


def test_what_resized_pods_hold_more_or_less_than_they_request_is_not_free_or_free() -> None:
    want = NodeState(capacity={names.GPU_MEM: "8000"})
    grown, shrunk = a_resized_pod(2500, name="a"), a_resized_pod(400, applied=400, name="b")
    not_yet = a_resized_pod(400, name="c")

    assert resized_mib([grown, shrunk, not_yet, a_pod("d")]) == 1500 - 600
    assert with_resized(want, resized_mib=900).capacity[names.GPU_MEM] == "7100"
    assert with_resized(want, resized_mib=-600).capacity[names.GPU_MEM] == "8600"
    # A node that offers nothing still offers nothing.
    nothing = NodeState(capacity={names.GPU_MEM: "0"})
    assert with_resized(nothing, resized_mib=-600) == nothing
    assert with_resized(NodeState(), resized_mib=900) == NodeState()


def test_memory_is_what_may_be_shared_of_each_card() -> None:
    inventory = an_inventory(a_card("GPU-a", mib=8079), a_card("GPU-b", index=1, mib=8079))

    assert wanted_state(inventory).capacity[names.GPU_MEM] == "16000"


def test_memory_never_falls_below_what_pods_hold() -> None:
    want = wanted_state(
        an_inventory(a_card("GPU-a", mib=8000, unhealthy="hot"), a_card("GPU-b", mib=4000))
    )

    assert keep_held(want, held_mib=9000).capacity[names.GPU_MEM] == "9000"
    assert keep_held(want, held_mib=4000) == want
    assert keep_held(NodeState(), held_mib=9000) == NodeState()


def test_what_pods_hold_is_summed_as_kubelet_sums_requests() -> None:
    init, app = a_container("init", mib=3000), a_container("train", mib=1000)
    pods = [
        a_pod("by-its-init", inits=[init], containers=[app]),
        a_pod("ending", terminating=True),
        a_pod("over", phase="Succeeded"),
        a_pod("not-ours", assigned={}),
        a_pod("unreadable", annotations={names.ASSIGNMENT: "{"}),
    ]

    assert held_mib(pods) == 3000 + 1000 + 1000


def test_labels_describe_the_most_common_model_and_every_class() -> None:
    inventory = an_inventory(
        a_card("GPU-a", mib=8000),
        a_card("GPU-b", index=1, mib=16000, model="NVIDIA A100"),
        a_card("GPU-c", index=2, mib=8000),
        driver="580.65.06",
        family="ampere",
    )

    assert wanted_state(inventory).labels == {
        "fracgpu.io/card-model": "NVIDIA-A30",
        "fracgpu.io/card-memory": "16000",
        "fracgpu.io/card-count": "3",
        "fracgpu.io/card-class-8000": "2",
        "fracgpu.io/card-class-16000": "1",
        "fracgpu.io/card-family": "ampere",
        "fracgpu.io/driver": "580.65.06",
    }


def test_a_node_without_cards_has_no_labels_and_no_memory() -> None:
    state = wanted_state(an_inventory())

    assert state.labels == {}
    assert state.capacity == {names.GPU_MEM: "0", names.GPU_COUNT: "0"}


def test_the_inventory_annotation_is_what_the_scheduler_reads() -> None:
    card = a_card("GPU-a", unhealthy="hot")

    written = wanted_state(an_inventory(card)).annotations[names.NODE_CARDS]

    assert read_cards(written) == (card,)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NVIDIA-A100 (80GB)", "NVIDIA-A100-80GB"),
        ("580.65.06", "580.65.06"),
        ("-x-", "x"),
        ("a" * 70, "a" * 63),
        ("a" * 62 + "-b", "a" * 62),
        ("®", ""),
    ],
)
def test_a_label_value_is_what_kubernetes_allows(text: str, value: str) -> None:
    assert label_value(text) == value


def test_a_patch_holds_only_what_differs_and_removes_old_classes() -> None:
    want = NodeState(labels={"fracgpu.io/card-class-80": "1", "fracgpu.io/card-count": "1"})
    have = NodeState(
        labels={
            "fracgpu.io/card-class-160": "2",
            "fracgpu.io/card-count": "1",
            "fracgpu.io/share": "true",
            "zone": "b",
        }
    )

    assert metadata_patch(have=have, want=want) == {
        "metadata": {"labels": {"fracgpu.io/card-class-160": None, "fracgpu.io/card-class-80": "1"}}
    }


def test_a_node_says_by_what_it_limits_containers() -> None:
    limits = with_isolation(NodeState(), {"kernel": "", "mps": "no daemon", "interposer": ""})
    assert limits.labels == {
        "fracgpu.io/isolation-kernel": "true",
        "fracgpu.io/isolation-interposer": "true",
    }
    text = limits.annotations["fracgpu.io/isolation"]
    assert read_isolation(text) == {"interposer": "", "kernel": "", "mps": "no daemon"}

    cannot = with_isolation(NodeState(), {"kernel": "GPU-a: MIG is on", "mps": ""})
    assert cannot.labels == {"fracgpu.io/isolation-mps": "true"}
    assert metadata_patch(have=limits, want=cannot) == {
        "metadata": {
            "labels": {
                "fracgpu.io/isolation-kernel": None,
                "fracgpu.io/isolation-interposer": None,
                "fracgpu.io/isolation-mps": "true",
            },
            "annotations": cannot.annotations,
        }
    }
    assert set(limits.marks.labels) == set(limits.labels)


@pytest.mark.parametrize("text", ["", "none: an earlier agent's", "[]", '{"kernel": 1}'])
def test_what_is_no_text_of_ours_says_nothing_of_isolation(text: str) -> None:
    assert read_isolation(text) == {}


def test_other_annotations_are_left_alone() -> None:
    want = NodeState(annotations={names.NODE_CARDS: "new"})
    have = NodeState(annotations={names.NODE_CARDS: "old", names.NODE_CORDONS: "{}"})

    patch = metadata_patch(have=have, want=want)

    assert patch == {"metadata": {"annotations": {names.NODE_CARDS: "new"}}}


def test_capacity_is_compared_as_a_number() -> None:
    want = NodeState(capacity={names.GPU_MEM: "80000", names.GPU_COUNT: "1"})

    same = NodeState(capacity={names.GPU_MEM: "80k", names.GPU_COUNT: "1", "cpu": "4"})
    taken_away = NodeState(capacity={names.GPU_COUNT: "1"})

    assert status_patch(have=same, want=want) == {}
    assert status_patch(have=taken_away, want=want) == {
        "status": {"capacity": {names.GPU_MEM: "80000"}}
    }


def test_a_node_is_read_as_far_as_it_is_ours() -> None:
    body = {
        "metadata": {"name": "n", "labels": {"a": "b"}, "annotations": None},
        "status": {"capacity": {"cpu": "4"}, "conditions": []},
    }

    assert read_node_state(json.dumps(body).encode()) == NodeState(
        labels={"a": "b"}, capacity={"cpu": "4"}
    )


def test_something_else_is_no_node() -> None:
    with pytest.raises(ValueError, match="Expected"):
        read_node_state(b'{"metadata": 1}')


def a_node_body(**status: Any) -> bytes:
    return json.dumps({"metadata": {"uid": "n"}, "status": status}).encode()


@pytest.mark.parametrize(
    ("resource", "amount", "counted"),
    [
        ("nvidia.com/gpu", "4", True),
        ("nvidia.com/gpu.shared", "40", True),
        ("nvidia.com/mig-1g.10gb", "7", True),
        ("aliyun.com/gpu-mem", "1k", True),
        ("nvidia.com/gpu", "0", False),
        ("amd.com/gpu", "4", True),
        ("fracgpu.io/gpu-slot", "128", False),
        ("cpu", "64", False),
    ],
)
def test_a_node_is_another_plugins_while_it_offers_the_same_cards(
    resource: str, amount: str, counted: bool
) -> None:
    state = read_node_state(a_node_body(allocatable={resource: amount}))

    assert bool(state.others) is counted


def test_what_another_plugin_counts_is_left_alone_and_what_we_wrote_is_taken_back() -> None:
    inventory = an_inventory(a_card())
    untouched = NodeState(others={"nvidia.com/gpu": 4})
    ours = replace(wanted_state(inventory), others={"nvidia.com/gpu": 4})

    fresh = wanted_state(inventory, have=untouched)
    taken_back = wanted_state(inventory, have=ours)

    assert (fresh.capacity, fresh.labels, fresh.annotations) == ({}, {}, {})
    assert taken_back.capacity == {names.GPU_MEM: "0", names.GPU_COUNT: "0"}
    (card,) = read_cards(taken_back.annotations[names.NODE_CARDS])
    assert card.health is Health.UNHEALTHY
    assert fresh.sharing is not None
    assert not fresh.sharing.shared
    assert "nvidia.com/gpu (4)" in fresh.sharing.message


def test_the_condition_names_cards_that_are_left_out_or_ill() -> None:
    inventory = an_inventory(
        a_card("GPU-a", unhealthy="XID 79"),
        a_card("GPU-b", index=1),
        left_out=(SkippedCard(uuid="GPU-m", reason="MIG is on"),),
    )

    sharing = wanted_state(inventory).sharing

    assert sharing is not None
    assert (sharing.shared, sharing.reason) == (True, "CardsShared")
    assert "8000 MiB" in sharing.message
    assert "GPU-m is left out: MIG is on" in sharing.message
    assert "GPU-a is unhealthy: XID 79" in sharing.message


def test_a_condition_is_written_when_it_differs_and_its_transition_when_it_turns() -> None:
    want = wanted_state(an_inventory(a_card()))
    assert want.sharing is not None
    reworded = replace(want.sharing, message="other words")
    turned = replace(want.sharing, shared=False)

    def written(before: Sharing | None) -> dict[str, str]:
        patch = condition_patch(have=NodeState(sharing=before), want=want, now=NOON)
        return patch["status"]["conditions"][0] if patch else {}

    assert written(want.sharing) == {}
    assert "lastTransitionTime" not in written(reworded)
    assert written(turned)["lastTransitionTime"] == "2026-01-05T12:00:00Z"
    assert written(None)["type"] == "FracGPUSharing"


SHARED = {names.SHARE_LABEL: "true"}


class FakeNode(KubeClient):
    """A node object and its writer; *down* makes the API server fail."""

    def __init__(self) -> None:
        self.state = NodeState(labels=SHARED, capacity={"cpu": "4"})
        self.there = True
        self.down = False
        self.writes: list[tuple[str, Mapping[str, Any]]] = []
        self.conditions: list[Mapping[str, str]] = []

    def current(self) -> NodeState | None:
        """Return what an informer has of it: nothing before it is there."""
        return self.state if self.there else None

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Any,
        *,
        subresource: str | None = None,
        how: PatchType = PatchType.MERGE,
        **_: Any,
    ) -> dict[str, Any]:
        if self.down:
            raise Unavailable(
                verb="PATCH", path="/x", status=None, reason="NoAnswer", message="gone"
            )
        assert (kind.kind, name) == ("Node", NODE)
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
    node: FakeNode, tracker: InventoryTracker, clock: VirtualClock, **facts: Any
) -> tuple[NodeStatusUpdater, CollectorRegistry]:
    registry = CollectorRegistry()
    report = NodeStatusUpdater(
        node=NODE,
        tracker=tracker,
        current=node.current,
        writer=node,
        clock=clock,
        metrics=DevicePluginMetrics(registry),
        **facts,
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

    async with background(tracker.run(), report.run()):
        await clock.advance(15)
        early = node.state
        await clock.advance(10)
        lost = node.state
        cards.answer = a_card_list(a_card(), a_card("GPU-b", index=1))
        await clock.advance(10)

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
    silent: list[str | None] = [None]
    report, _ = a_report(node, tracker, clock, blocked=lambda: silent[0])
    await report.sync()
    silent[0] = "/run/x.sock answered UNAVAILABLE"

    await report.sync()

    assert node.state.capacity[names.GPU_MEM] == "0"
    assert node.state.sharing == Sharing(
        shared=False, reason="RuntimeUnknown", message="/run/x.sock answered UNAVAILABLE"
    )
    assert report.problem == "/run/x.sock answered UNAVAILABLE"


async def test_what_pods_hold_stays_counted_whatever_becomes_of_the_cards() -> None:
    node, clock = FakeNode(), VirtualClock()
    tracker = a_tracker(FakeCards(a_card(mib=8000)), clock)
    await tracker.refresh()
    silent: list[str | None] = [None]
    held: list[int | None] = [None]
    report, _ = a_report(node, tracker, clock, blocked=lambda: silent[0], held_mib=lambda: held[0])
    await report.sync()
    silent[0] = "/run/x.sock answered UNAVAILABLE"
    memory = []

    for now in (None, 3000, 0):
        held[0] = now
        await report.sync()
        memory.append(node.state.capacity[names.GPU_MEM])

    # As long as the pods are not listed, they may hold everything.
    assert memory == ["8000", "3000", "0"]


async def test_a_node_that_is_not_there_yet_is_waited_for() -> None:
    node, clock = FakeNode(), VirtualClock()
    node.there = False
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
        return node.state.capacity.get(names.GPU_MEM)

    async with background(tracker.run(), report.run()):
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


CATALOGUE = parse_pools("c: {models: 'NVIDIA*', mib: 80, pools: [{name: p, cards: 1}]}")


async def test_the_node_says_of_which_class_of_the_catalogue_its_cards_are() -> None:
    node, cards, clock = FakeNode(), FakeCards(a_card()), VirtualClock()
    tracker = a_tracker(cards, clock)
    await tracker.refresh()
    pools = parse_pools("")
    report, _ = a_report(node, tracker, clock, pools=lambda: pools)

    async def label() -> str | None:
        await report.sync()
        return node.state.labels.get(names.CARD_CLASS_LABEL)

    assert await label() is None

    pools = CATALOGUE
    assert await label() == "c"

    # What a pool's template says of another card is corrected.
    labels = {**node.state.labels, names.CARD_CLASS_LABEL: "other"}
    node.state = replace(node.state, labels=labels)
    assert await label() == "c"

    pools = parse_pools("c: {models: other, mib: 80, pools: [{name: p, cards: 1}]}")
    assert await label() is None


async def test_without_a_catalogue_the_class_that_a_pool_set_stays() -> None:
    node, cards, clock = FakeNode(), FakeCards(a_card()), VirtualClock()
    tracker = a_tracker(cards, clock)
    await tracker.refresh()
    labels = {**node.state.labels, names.CARD_CLASS_LABEL: "mine"}
    node.state = replace(node.state, labels=labels)
    report, _ = a_report(node, tracker, clock)

    await report.sync()

    assert node.state.labels[names.CARD_CLASS_LABEL] == "mine"


SLOTS, MIB = {names.GPU_SLOT: 32}, {names.GPU_MEM: a_card().capacity_mib}


@pytest.mark.parametrize(
    ("allocatable", "labelled", "ready"),
    [
        ({}, True, False),
        (MIB, True, False),
        (SLOTS, True, False),
        (SLOTS | MIB, False, False),
        (SLOTS | MIB, True, True),
    ],
)
def test_the_startup_taint_goes_once_capacity_and_inventory_stand(
    allocatable: Mapping[str, int], labelled: bool, ready: bool
) -> None:
    want = wanted_state(an_inventory(a_card()))
    have = replace(
        want,
        labels=want.labels if labelled else {},
        allocatable=allocatable,
        taints=("other", names.STARTUP_TAINT),
    )

    edits = startup_taint_patch(have, want)

    assert [(edit["op"], edit["path"]) for edit in edits] == (
        [("test", "/spec/taints/1/key"), ("remove", "/spec/taints/1")] if ready else []
    )


def test_the_startup_taint_goes_once_the_slice_that_stands_for_the_capacity_is_published() -> None:
    have = NodeState(labels=SHARED, taints=(names.STARTUP_TAINT,))
    want = without_capacity(wanted_state(an_inventory(a_card())), have)
    have = replace(have, labels={**SHARED, **want.labels}, annotations=want.annotations)

    assert startup_taint_patch(have, want, published=False) == []
    assert len(startup_taint_patch(have, want, published=True)) == 2


def test_where_a_slice_says_the_capacity_the_node_has_none() -> None:
    before = NodeState(labels=SHARED, capacity={names.GPU_MEM: "8000", names.GPU_SLOT: "32"})
    want = wanted_state(an_inventory(a_card()))

    assert without_capacity(want, NodeState()).capacity == {}
    assert without_capacity(want, before).capacity == {names.GPU_MEM: "0"}


def test_a_node_without_cards_to_share_keeps_its_startup_taint() -> None:
    want = without_new_pods(wanted_state(an_inventory(a_card())), problem="no agent")
    have = replace(want, allocatable=SLOTS | MIB, taints=(names.STARTUP_TAINT,))

    assert startup_taint_patch(have, want) == []


async def test_the_next_agent_says_what_the_last_one_found_until_it_knows_better() -> None:
    node, clock = FakeNode(), VirtualClock()
    tracker = a_tracker(FakeCards(a_card(mib=8000)), clock)
    await tracker.refresh()
    known: dict[str, str] | None = {"kernel": "", "mps": "no daemon", "interposer": "no library"}
    times: Fraction | None = Fraction(3, 2)
    first, _ = a_report(
        node, tracker, clock, isolation=lambda: known, overcommit=lambda _: Fraction(3, 2)
    )

    def said() -> tuple[str | None, int]:
        (card,) = read_cards(node.state.annotations[names.NODE_CARDS])
        return node.state.labels.get("fracgpu.io/isolation-kernel"), card.limits_mib

    await first.sync()
    assert said() == ("true", 12_000)
    now: dict[str, str] | None = None
    following, _ = a_report(node, tracker, clock, isolation=lambda: now, overcommit=lambda _: times)

    await following.sync()
    assert said() == ("true", 12_000)
    now, times = known, None  # the ConfigMap is not read yet
    await following.sync()
    assert said() == ("true", 12_000)
    times = Fraction(1)
    await following.sync()
    assert said() == ("true", 8000)
    now = {"kernel": "--limits is none"}
    await following.sync()
    assert said() == (None, 0)
