"""The cluster's cards as rows: what is held and free, health, cordons, heat and slices."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cli.flags import as_json
from fracgpu.explain.answers import Holder
from fracgpu.explain.explanation import holders_of
from fracgpu.explain.trouble import card_trouble, node_trouble
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import CardInfo, NodeInfo, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRow:
    """One card.

    Attributes:
        free_mib: shareable memory less what is held and less what other processes use.
        heat: how busy it was lately (0..1), None where no load is reported.
        trouble: why it takes no new slices now; empty if it does.
        until: when *trouble* ends by itself; None if it does not.
    """

    uuid: str
    index: int
    model: str
    capacity_mib: int
    held_mib: int
    free_mib: int
    foreign_mib: int
    held_cores: int
    held_slots: int
    slots: int
    heat: float | None
    health: str
    trouble: str = ""
    until: datetime | None = None
    slices: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node and its cards by index; *trouble* says why it takes no new pods.

    Attributes:
        identity: how its agent knows whose container starts: ``nri`` or ``listed``.
    """

    name: str
    cards: tuple[CardRow, ...] = ()
    trouble: str = ""
    identity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All nodes that are shown."""

    nodes: tuple[NodeRow, ...]

    @property
    def cards(self) -> int:
        return sum(len(node.cards) for node in self.nodes)

    @property
    def held_mib(self) -> int:
        return sum(card.held_mib for node in self.nodes for card in node.cards)

    @property
    def capacity_mib(self) -> int:
        return sum(card.capacity_mib for node in self.nodes for card in node.cards)


def fleet_of(snapshot: Snapshot, pods: Mapping[str, PodInfo], *, node: str | None = None) -> Fleet:
    """Return the nodes that have cards or should have, or only the one named *node*."""
    rows = []
    for name, info in snapshot.nodes.items():
        if name == node or (node is None and (info.cards or info.node.shared)):
            cards = (_card(card, info, snapshot, pods) for card in info.cards.values())
            row = NodeRow(
                name=name,
                cards=tuple(cards),
                trouble=node_trouble(info.node),
                identity=info.node.identity,
            )
            rows.append(row)
    return Fleet(nodes=tuple(rows))


def only_namespace(fleet: Fleet, namespace: str) -> Fleet:
    """Return the same cards with only the pods of *namespace*; what is held stays the same."""

    def ours(card: CardRow) -> CardRow:
        kept = (slice_ for slice_ in card.slices if slice_.pod.partition("/")[0] == namespace)
        return replace(card, slices=tuple(kept))

    return Fleet(
        nodes=tuple(
            replace(node, cards=tuple(ours(card) for card in node.cards)) for node in fleet.nodes
        )
    )


def fleet_json(fleet: Fleet) -> dict[str, Any]:
    """Return *fleet* as the JSON that ``fracgpu cards --json`` prints."""
    return {**as_json(fleet), "heldMib": fleet.held_mib, "capacityMib": fleet.capacity_mib}


def _card(
    card_info: CardInfo, node_info: NodeInfo, snapshot: Snapshot, pods: Mapping[str, PodInfo]
) -> CardRow:
    card, node = card_info.card, node_info.node
    unplaced = _unplaced(node.node, snapshot, pods) if card_info.unplaced_mib else ""
    trouble = card_trouble(card_info, node, unplaced=unplaced)
    return CardRow(
        uuid=card.uuid,
        index=card.index,
        model=card.model,
        capacity_mib=card.capacity_mib,
        held_mib=card_info.held_mib,
        free_mib=card_info.free_mib,
        foreign_mib=card_info.foreign_mib,
        held_cores=card_info.held_cores,
        held_slots=card_info.held_slots,
        slots=card.slots,
        heat=node_info.heat.get(card.uuid),
        health=card.health.value,
        trouble=trouble.text,
        until=trouble.until,
        slices=holders_of(card_info, snapshot, pods),
    )


def _unplaced(node: str, snapshot: Snapshot, pods: Mapping[str, PodInfo]) -> str:
    """Return the names of a node's pods that may be on any of its cards."""
    uids = [
        uid for uid, pod in snapshot.pods.items() if pod.node == node and pod.unplaced is not None
    ]
    return ", ".join(sorted(pods[uid].record.key if uid in pods else uid for uid in uids))
