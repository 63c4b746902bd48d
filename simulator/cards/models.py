"""The simulated fleet: which cards each node has."""

from dataclasses import dataclass
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

from fracgpu.cards.card import Card, CardUuid
from fracgpu.cards.card_class import Vendor, vendor_of
from fracgpu.units import Mib


@dataclass(frozen=True, slots=True, kw_only=True)
class CardModel:
    """One card model as its agent names it; MiB are the total and what the driver reserves."""

    name: str
    total_mib: Mib
    reserved_mib: Mib


# Sizes as NVML reports them for such cards; the reserve differs a little between drivers.
A100_40GB: Final = CardModel(
    name="NVIDIA A100-SXM4-40GB", total_mib=Mib(40960), reserved_mib=Mib(624)
)
A10: Final = CardModel(name="NVIDIA A10", total_mib=Mib(23028), reserved_mib=Mib(482))

MI210: Final = CardModel(name="AMD Instinct MI210", total_mib=Mib(65520), reserved_mib=Mib(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node to simulate."""

    name: str
    cards: tuple[Card, ...]


def plan_nodes(nodes: int, cards_per_node: int) -> tuple[NodePlan, ...]:
    """Return a fleet: half of the nodes with A100s, the last one with AMD's cards, the rest A10s.

    The UUIDs are derived from the names, so the same fleet always has the same cards.
    """
    models = [A100_40GB if 2 * number < nodes else A10 for number in range(nodes - 1)]
    return tuple(
        _plan(f"gpu-node-{number}", cards_per_node, model)
        for number, model in enumerate((*models, MI210), start=1)
    )


def _prefix(model: CardModel) -> str:
    return "AMD" if vendor_of(model.name) is Vendor.AMD else "GPU"


def _plan(name: str, cards: int, model: CardModel) -> NodePlan:
    return NodePlan(
        name=name,
        cards=tuple(
            Card(
                uuid=CardUuid(
                    f"{_prefix(model)}-{uuid5(NAMESPACE_DNS, f'{index}.{name}.simulated')}"
                ),
                index=index,
                model=model.name,
                total_mib=model.total_mib,
                reserved_mib=model.reserved_mib,
                numa_node=index * 2 // cards,
            )
            for index in range(cards)
        ),
    )
