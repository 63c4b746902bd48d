"""Cards, pods and holders as the node agent sees them; builders show only what matters."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from deviceplugin.cards.interface import (
    CardHardware,
    CardList,
    Cards,
    CardSample,
    CardSamples,
    CardsUnavailableError,
    DeviceNode,
    SkippedCard,
)
from deviceplugin.claims import SlotHolder
from deviceplugin.container.interposer import Interposer
from deviceplugin.container.mps import MpsOfNode
from deviceplugin.container.nvidia_cdi import NvidiaCdiSpecs
from deviceplugin.container.spec_builder import ContainerSpecBuilder
from deviceplugin.exporter.attribution import Owner
from deviceplugin.exporter.usage import Counted, UsageSnapshot, build_usage_snapshot
from deviceplugin.node.inventory import Inventory, InventoryTracker
from fracgpu import names
from fracgpu.cards.card import Card, CardUuid, Health
from fracgpu.state.allocation import Assignment, Slice, write_assignment
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.state.resize import write_resize
from fracgpu.units import Mib
from process.clock import Clock

NODE = "gpu-1"


def a_card(
    uuid: str = "GPU-a",
    *,
    index: int = 0,
    mib: int = 8000,
    unhealthy: str = "",
    model: str = "NVIDIA A30",
) -> Card:
    return Card(
        uuid=CardUuid(uuid),
        index=index,
        model=model,
        total_mib=Mib(mib),
        health=Health.UNHEALTHY if unhealthy else Health.HEALTHY,
        health_reason=unhealthy,
    )


def facts(card: Card) -> CardHardware:
    """A card with a device file of its index."""
    return CardHardware(
        card=card,
        pci_bus_id=f"00000000:0{card.index}:00.0",
        device_nodes=(DeviceNode(path=f"/dev/nvidia{card.index}"),),
    )


def a_card_list(*cards: Card, left_out: Sequence[SkippedCard] = (), **hardware: Any) -> CardList:
    hardwares = tuple(replace(facts(card), **hardware) for card in cards)
    return CardList(cards=hardwares, left_out=tuple(left_out))


def an_inventory(*cards: Card, **facts: Any) -> Inventory:
    return Inventory(card_list=a_card_list(*cards, **facts))


class FakeCards(Cards):
    """Cards that a test sets; an error in place of an answer is raised."""

    def __init__(self, *cards: Card) -> None:
        self.answer: CardList | CardsUnavailableError = a_card_list(*cards)
        self.readings: Mapping[CardUuid, CardSample] | CardsUnavailableError = {}
        self.troubles: Mapping[CardUuid, str] = {}
        self.closed = False

    async def list_cards(self) -> CardList:
        if isinstance(self.answer, CardsUnavailableError):
            raise self.answer
        return self.answer

    async def read(self) -> CardSamples:
        if isinstance(self.readings, CardsUnavailableError):
            raise self.readings
        return CardSamples(samples=self.readings, errors=self.troubles)

    async def close(self) -> None:
        self.closed = True


class Tracker(InventoryTracker):
    """Its cards vanish after as many looks at them as a test says."""

    looks: float = math.inf

    @property
    def inventory(self) -> Inventory:
        self.looks -= 1
        return super().inventory if self.looks >= 0 else Inventory()


def a_tracker(cards: Cards, clock: Clock, **changes: Any) -> Tracker:
    options = {"period_s": 10.0, "slots_per_card": 2, "headroom_mib": Mib(0), **changes}
    return Tracker(cards, clock, **options)


VANISHING: Final = pytest.mark.parametrize("looks", range(5))
"""At which look the cards have vanished."""


def a_container(name: str, *, mib: int, slots: int = 1, restart_policy: str = "") -> dict[str, Any]:
    limits = {names.GPU_MEM: str(mib * slots), names.GPU_SLOT: str(slots)}
    container = {"name": name, "resources": {"limits": limits}}
    return container | ({"restartPolicy": restart_policy} if restart_policy else {})


def pod_json(  # noqa: PLR0913 - what a test may set of a pod
    name: str = "train-0",
    *,
    assigned: Mapping[str, Sequence[tuple[str, int]]] | None = None,
    node: str = NODE,
    phase: str = "Pending",
    uid: str = "",
    containers: Sequence[dict[str, Any]] | None = None,
    inits: Sequence[dict[str, Any]] = (),
    annotations: Mapping[str, str] | None = None,
    terminating: bool = False,
) -> bytes:
    """A pod as the API server sends it; *assigned* is container → (card, MiB) of each slice."""
    slices_by_container = {"train": [("GPU-a", 1000)]} if assigned is None else assigned
    notes = dict(annotations or {})
    if slices_by_container:
        assignment = {
            container: tuple(Slice(card=CardUuid(card), mib=Mib(mib)) for card, mib in slices)
            for container, slices in slices_by_container.items()
        }
        notes.setdefault(names.ASSIGNMENT, write_assignment(assignment))
    here = [a_container("train", mib=1000)] if containers is None else list(containers)
    body: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": uid or f"uid-{name}",
            "annotations": notes,
        },
        "spec": {
            "nodeName": node,
            "containers": here,
            "initContainers": list(inits),
        },
        "status": {"phase": phase},
    }
    if terminating:
        body["metadata"]["deletionTimestamp"] = "2026-01-05T12:00:00Z"
    return json.dumps(body).encode()


def a_pod(name: str = "train-0", **fields: Any) -> PodInfo:
    return decode_pod_info(pod_json(name, **fields))


def a_resized_pod(
    mib: int, *, was: int = 1000, applied: int | None = None, name: str = "train-0"
) -> PodInfo:
    """A pod of *was* MiB that was granted *mib*; *applied* is what the agent has confirmed."""

    def of(size: int) -> Assignment:
        return {"train": (Slice(card=CardUuid("GPU-a"), mib=Mib(size)),)}

    notes = {names.RESIZED: write_resize(f"{mib}Mi", of(mib))}
    if applied is not None:
        notes[names.APPLIED] = write_assignment(of(applied))
    return a_pod(
        name,
        assigned={"train": [("GPU-a", was)]},
        annotations=notes,
        containers=[a_container("train", mib=was)],
    )


def a_usage_snapshot(
    sample: CardSample | None,
    *pods: PodInfo,
    owners: Mapping[int, str | Owner] | None = None,
    counted: Counted | None = None,
    taken_at_s: float = 0.0,
    **hardware: Any,
) -> UsageSnapshot:
    """What was read of GPU-a, or None, joined with its pods; *owners* are UIDs of pods by pid."""
    card = a_card("GPU-a")
    found = {
        pid: Owner(pod_uid=owner) if isinstance(owner, str) else owner
        for pid, owner in (owners or {}).items()
    }
    return build_usage_snapshot(
        taken_at_s=taken_at_s,
        inventory=an_inventory(card, **hardware),
        samples=CardSamples(samples={} if sample is None else {card.uuid: sample}),
        owners=found,
        pods=pods,
        counted=counted or {},
    )


def a_holder(pod: str = "train-0", *, ids: str = "s1") -> SlotHolder:
    """The holder of slots by the container of a pod of :func:`a_pod`."""
    slots = frozenset(ids.split(","))
    return SlotHolder(namespace="ml", pod=pod, container="train", slot_ids=slots)


def a_spec_builder(
    folder: Path = Path("/nonexistent"), *, library: Interposer | None = None
) -> ContainerSpecBuilder:
    """A builder on a node without a spec of the driver and MPS, by default without a library."""
    library = library or Interposer(folder / "libvgpu.so")
    return ContainerSpecBuilder(NvidiaCdiSpecs([]), mps=MpsOfNode(folder), interposer=library)
