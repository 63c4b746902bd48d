"""The node's slice has the cards that can be allocated, whoever removes or changes it."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from deviceplugin.dra.slices import SlicePublisher, slice_name
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.inventory import InventoryTracker
from fracgpu.cards.card import Card, CardUuid
from fracgpu.device_claims.taints import DeviceTaint, Taints
from simulator.background import background
from tests.deviceplugin.builders import NODE, FakeCards, a_card, a_card_list, a_tracker
from tests.deviceplugin.dra.builders import FakeApi
from tests.fakes.clock import VirtualClock
from tests.support.waiting import until_true

Json = dict[str, Any]

A, B = a_card("GPU-a"), a_card("GPU-b", index=1)


@dataclass(slots=True, kw_only=True)
class Rig:
    api: FakeApi
    publisher: SlicePublisher
    tracker: InventoryTracker
    cards: FakeCards
    clock: VirtualClock
    state: dict[str, str | None] = field(default_factory=dict)
    listed: bool = True
    taints: tuple[Taints, datetime | None] | None = ({}, None)

    async def now_has(self, *cards: Card) -> None:
        self.cards.answer = a_card_list(*cards)
        await self.tracker.refresh()

    def devices(self) -> list[str]:
        (found,) = self.api.slices()
        return [each["name"] for each in found["spec"]["devices"]]

    def generation(self) -> int:
        (found,) = self.api.slices()
        number: int = found["spec"]["pool"]["generation"]
        return number

    def outcome(self) -> tuple[bool, str | None]:
        return self.publisher.published, self.publisher.dropped

    def writes(self) -> list[str]:
        return [call for call in self.api.calls if not call.startswith("GET")]


async def a_rig(*cards: Card, listed: bool = True) -> Rig:
    api, clock, fake = FakeApi(), VirtualClock(), FakeCards(*cards)
    tracker = a_tracker(fake, clock)
    if listed:
        await tracker.refresh()
    state: dict[str, str | None] = {}

    def slices() -> Sequence[Json] | None:
        return api.slices() if rig.listed else None

    publisher = SlicePublisher(
        node=NODE,
        client=api,
        slices=slices,
        tracker=tracker,
        withheld=lambda: state.get("withheld"),
        unsure=lambda: state.get("unsure"),
        taints=lambda: rig.taints,
        isolation=lambda: ["mps"],
        card_class=lambda: "a30",
        clock=clock,
        metrics=DevicePluginMetrics(CollectorRegistry()),
    )
    rig = Rig(api=api, publisher=publisher, tracker=tracker, cards=fake, clock=clock, state=state)
    return rig


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[None]:
    async with background(rig.publisher.run()):
        yield


@given(
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?", fullmatch=True),
    st.integers(1, 253),
)
def test_every_nodes_slice_has_a_name_of_its_own_that_an_object_may_have(
    label: str, length: int
) -> None:
    node = ".".join([label] * 130)[:length].rstrip("-.")
    other = f"{node[:-1]}{'a' if node[-1] != 'a' else 'b'}"

    name = slice_name(node)

    assert len(name) <= 253
    label_form = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert re.fullmatch(rf"{label_form}(\.{label_form})*", name)
    assert name.endswith("-gpu.fracgpu.io")
    assert name != slice_name(other)
    assert name.startswith(node) or length > 200


async def test_the_nodes_own_slice_has_its_cards() -> None:
    rig = await a_rig(A, B)

    assert await rig.publisher.sync()

    (found,) = rig.api.slices()
    assert found["metadata"]["name"] == slice_name(NODE) == "gpu-1-gpu.fracgpu.io"
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", NODE, "uid-of-the-node")
    assert (found["spec"]["nodeName"], rig.devices()) == (NODE, ["gpu-a", "gpu-b"])
    assert found["spec"]["devices"][0]["attributes"]["isolation"] == {"string": "mps"}
    assert found["spec"]["devices"][0]["attributes"]["cardClass"] == {"string": "a30"}
    assert (rig.publisher.published, rig.publisher.problem) == (True, None)


async def test_equal_quantities_are_not_written_again() -> None:
    rig = await a_rig(A)
    await rig.publisher.sync()
    (found,) = rig.api.slices()
    memory = found["spec"]["devices"][0]["capacity"]["memory"]
    memory["value"] = str(8000 * 1024 * 1024)  # as the API server may write it
    before = rig.writes()

    await rig.publisher.sync()

    assert rig.writes() == before


async def test_a_card_that_fails_is_taken_out_and_comes_back() -> None:
    rig = await a_rig(A, B)
    await rig.publisher.sync()

    await rig.now_has(a_card("GPU-a", unhealthy="XID 79"), B)
    await rig.publisher.sync()
    assert (rig.devices(), rig.generation()) == (["gpu-b"], 2)

    await rig.now_has(A, B)
    await rig.publisher.sync()
    assert (rig.devices(), rig.generation()) == (["gpu-a", "gpu-b"], 3)


async def test_a_slice_that_kubelet_deletes_is_written_again_at_once() -> None:
    rig = await a_rig(A)
    async with running(rig):
        await until_true(lambda: bool(rig.api.slices()), what="the slice")
        await rig.clock.wait_for_sleepers(1)

        rig.api.objects.pop(("ResourceSlice", slice_name(NODE)))
        rig.publisher.wake()
        await rig.clock.advance(0.1)
        await until_true(lambda: bool(rig.api.slices()), what="the slice once more")

        assert rig.generation() == 2


async def test_slices_of_other_names_are_removed() -> None:
    rig = await a_rig(A)
    rig.api.put("ResourceSlice", {"metadata": {"name": "left"}, "spec": {}})

    await rig.publisher.sync()

    assert [each["metadata"]["name"] for each in rig.api.slices()] == [slice_name(NODE)]


async def test_a_node_that_shares_nothing_has_no_slice() -> None:
    rig = await a_rig(A)
    await rig.publisher.sync()

    rig.state["withheld"] = "the node does not carry fracgpu.io/share=true"
    await rig.publisher.sync()

    assert rig.api.slices() == []
    assert (rig.publisher.published, rig.publisher.problem) == (False, rig.state["withheld"])


async def test_what_is_not_known_yet_changes_nothing() -> None:
    rig = await a_rig(A)
    rig.state["unsure"] = "not registered with kubelet yet"
    await rig.publisher.sync()
    assert (rig.api.slices(), rig.publisher.problem) == ([], rig.state["unsure"])

    rig.state["unsure"] = None
    await rig.publisher.sync()
    # The next agent, which has not listed the cards yet, leaves the slice of the one before it.
    following = await a_rig(listed=False)
    following.api.put("ResourceSlice", rig.api.slices()[0])
    await following.publisher.sync()
    assert following.writes() == []
    assert following.publisher.published

    following.listed = False
    assert not await following.publisher.sync()
    assert following.writes() == []


async def test_a_failed_write_is_tried_again_soon() -> None:
    rig = await a_rig(A)
    rig.api.down = True
    async with running(rig):
        await until_true(lambda: bool(rig.api.calls), what="an attempt")
        assert not rig.publisher.published

        rig.api.down = False
        await rig.clock.wait_for_sleepers(1)
        await rig.clock.advance(2)
        await until_true(lambda: rig.publisher.published, what="the slice")


async def test_the_slice_is_withdrawn_though_it_is_gone() -> None:
    rig = await a_rig(A)
    await rig.publisher.sync()

    await rig.publisher.remove()
    await rig.publisher.remove()

    assert rig.api.slices() == []


async def test_a_slice_of_which_the_api_server_drops_fields_is_written_once_a_minute() -> None:
    rig = await a_rig(A)
    rig.api.consumable = False

    for _ in range(5):  # as each write is a change that wakes it
        await rig.publisher.sync()

    assert rig.writes() == [f"POST ResourceSlice {slice_name(NODE)}"]
    published, problem = rig.outcome()
    assert not published
    assert problem is not None
    assert "dropped allowMultipleAllocations" in problem
    assert "turn on DRAConsumableCapacity" in problem

    rig.api.consumable = True
    await rig.clock.advance(61)
    await rig.publisher.sync()
    assert len(rig.writes()) == 2
    assert rig.outcome() == (True, None)


async def test_a_slice_with_dropped_fields_is_still_withdrawn_at_once() -> None:
    rig = await a_rig(A)
    rig.api.consumable = False
    await rig.publisher.sync()

    rig.state["withheld"] = "the node does not carry fracgpu.io/share=true"
    await rig.publisher.sync()

    assert rig.api.slices() == []


async def test_taints_are_written_and_end_by_themselves() -> None:
    rig = await a_rig(A, B)
    await rig.publisher.sync()
    closed = {CardUuid("GPU-b"): [DeviceTaint("fracgpu.io/cordoned")]}
    rig.taints = closed, rig.clock.now() + timedelta(seconds=20)
    async with running(rig):
        await until_true(lambda: rig.generation() == 2, what="the taint")
        await rig.clock.wait_for_sleepers(1)
        (found,) = rig.api.slices()
        tainted = {each["name"]: each.get("taints") for each in found["spec"]["devices"]}
        assert tainted == {
            "gpu-a": None,
            "gpu-b": [{"key": "fracgpu.io/cordoned", "effect": "NoSchedule"}],
        }

        found["spec"]["devices"][1]["taints"][0]["timeAdded"] = "2026-01-05T12:00:00Z"
        rig.taints = {}, None
        await rig.clock.advance(21)
        await until_true(lambda: rig.generation() == 3, what="its end")


async def test_a_time_that_the_api_server_adds_to_a_taint_is_no_difference() -> None:
    rig = await a_rig(A)
    rig.taints = {CardUuid("GPU-a"): [DeviceTaint("fracgpu.io/reserved", "move-1")]}, None
    await rig.publisher.sync()
    (found,) = rig.api.slices()
    found["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-05T12:00:00Z"
    before = rig.writes()

    await rig.publisher.sync()

    assert rig.writes() == before


async def test_before_the_moves_are_known_the_slice_stays_as_it_is() -> None:
    rig = await a_rig(A)
    await rig.publisher.sync()
    before = rig.writes()

    await rig.now_has(A, B)
    rig.taints = None
    assert not await rig.publisher.sync()

    assert rig.writes() == before
    assert rig.publisher.published
    assert rig.publisher.problem is not None
    assert "Moves" in rig.publisher.problem
