"""The simulated fleet: which cards each node has."""

from dataclasses import dataclass
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

from fracgpu.cards.card import Card, CardUuid
from fracgpu.units import Mib


@dataclass(frozen=True, slots=True, kw_only=True)
class CardModel:
    """One card model as NVML names it; MiB are the total and what the driver reserves."""

    name: str
    total_mib: Mib
    reserved_mib: Mib


# Sizes as NVML reports them for such cards; the reserve differs a little between drivers.
A100_40GB: Final = CardModel(
    name="NVIDIA A100-SXM4-40GB", total_mib=Mib(40960), reserved_mib=Mib(624)
)
A10: Final = CardModel(name="NVIDIA A10", total_mib=Mib(23028), reserved_mib=Mib(482))

MODELS: Final = (A100_40GB, A10)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node to simulate."""

    name: str
    cards: tuple[Card, ...]


def plan_nodes(nodes: int, cards_per_node: int) -> tuple[NodePlan, ...]:
    """Return a fleet: the first half of the nodes with one card model, the others with the second.

    The UUIDs are derived from the names, so the same fleet always has the same cards.
    """
    return tuple(
        _plan(f"gpu-node-{number + 1}", cards_per_node, MODELS[2 * number // nodes])
        for number in range(nodes)
    )


def _plan(name: str, cards: int, model: CardModel) -> NodePlan:
    return NodePlan(
        name=name,
        cards=tuple(
            Card(
                uuid=CardUuid(f"GPU-{uuid5(NAMESPACE_DNS, f'{index}.{name}.simulated')}"),
                index=index,
                model=model.name,
                total_mib=model.total_mib,
                reserved_mib=model.reserved_mib,
                numa_node=index * 2 // cards,
            )
            for index in range(cards)
        ),
    )
