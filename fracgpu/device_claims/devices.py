"""Cards as the devices of a ResourceSlice, which kube-scheduler allocates.

A slice says what kube-scheduler needs to know; the node's annotation ``fracgpu.io/cards`` says all
of a card, and stays what we place pods by. The agent writes both from the same cards.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fracgpu import names
from fracgpu.cards.card import FULL_CORES, Card, CardUuid, Health
from fracgpu.cards.card_class import model_key, vendor_of
from fracgpu.device_claims.taints import NO_TAINTS, DeviceTaint, Taints
from fracgpu.request.need import Isolation

MEMORY: Final = "memory"
"""What containers may use, which is what they are guaranteed, and what they may borrow."""
BORROWED: Final = "borrowed"
"""How much of that nobody guarantees; only cards on which containers can be limited have it."""
CORES: Final = "cores"
SLOTS: Final = "slots"

UUID: Final = "uuid"
VENDOR: Final = "vendor"
MODEL: Final = "model"
INDEX: Final = "index"
NUMA: Final = "numa"
ISOLATION: Final = "isolation"
CARD_CLASS: Final = "cardClass"

# Limits of the API. Source: k8s.io/api resource/v1 types.go.
MOST_TEXT_BYTES: Final = 64
MOST_DEVICES: Final = 64  # of a slice in which one has a taint
_MOST_NAME: Final = 63

_NOT_IN_NAMES: Final = re.compile("[^a-z0-9-]")


def device_name(card: str) -> str:
    """Return the name of the device that stands for a card: its UUID as a DNS label."""
    return _NOT_IN_NAMES.sub("-", card.lower())[:_MOST_NAME].strip("-")


def cards_by_device(cards: Iterable[CardUuid]) -> Mapping[str, CardUuid]:
    """Return the cards of a node by the names of their devices."""
    return {device_name(card): card for card in cards}


def is_offered(card: Card) -> bool:
    """Report whether a slice has the card: it works, and shares something."""
    return card.health is Health.HEALTHY and card.capacity_mib > 0 and card.slots > 0


def device_of(
    card: Card,
    *,
    isolation: Sequence[str] = (),
    card_class: str = "",
    taints: Sequence[DeviceTaint] = (),
) -> dict[str, Any]:
    """Return a card as a device.

    Args:
        card: the card; it is offered.
        isolation: the mechanisms that limit containers on it.
        card_class: its class in the pool catalogue; empty without one.
        taints: what keeps claims off it.
    """
    attributes: dict[str, Any] = {
        UUID: {"string": str(card.uuid)},
        VENDOR: {"string": vendor_of(card.model).value},
        MODEL: {"string": _shortened(model_key(card.model))},
        INDEX: {"int": card.index},
    }
    if card.numa_node is not None:
        attributes[NUMA] = {"int": card.numa_node}
    if isolation:
        attributes[ISOLATION] = {"string": ",".join(isolation)}
    if card_class:
        attributes[CARD_CLASS] = {"string": card_class}
    memory = f"{card.capacity_mib}Mi"
    can_lend = Isolation.KERNEL.value in isolation
    borrowed = _capacity(memory, default="0", least="0", step="1Mi")
    return {
        "name": device_name(card.uuid),
        "attributes": attributes,
        "capacity": {
            # A claim that names no amount gets the whole memory; compute is then shared freely.
            MEMORY: _capacity(memory, default=memory, least="1Mi", step="1Mi"),
            **({BORROWED: borrowed} if can_lend else {}),
            CORES: _capacity(str(FULL_CORES), default="0", least="0"),
            SLOTS: _capacity(str(card.slots), default="1", least="1"),
        },
        "allowMultipleAllocations": True,
        **({"taints": [taint.body for taint in taints]} if taints else {}),
    }


def pool_spec(
    node: str,
    cards: Iterable[Card],
    *,
    generation: int,
    isolation: Sequence[str] = (),
    card_class: str = "",
    taints: Taints = NO_TAINTS,
) -> dict[str, Any]:
    """Return the spec of the one ResourceSlice of a node.

    Args:
        node: its name, which is also that of the pool.
        cards: all of its cards; those that are not offered are left out.
        generation: higher than that of the slice before.
        isolation: the mechanisms that limit containers on the node's cards.
        card_class: the class of all cards of the node, as its label says; empty without one.
        taints: what keeps claims off cards.
    """
    offered = sorted(filter(is_offered, cards), key=lambda card: (card.index, card.uuid))
    return {
        "driver": names.DRA_DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
        "devices": [
            device_of(
                card, isolation=isolation, card_class=card_class, taints=taints.get(card.uuid, ())
            )
            for card in offered[:MOST_DEVICES]
        ],
    }


def _capacity(value: str, *, default: str, least: str, step: str = "1") -> dict[str, Any]:
    valid = {"min": least, "step": step}
    return {"value": value, "requestPolicy": {"default": default, "validRange": valid}}


def _shortened(text: str) -> str:
    return text.encode()[:MOST_TEXT_BYTES].decode(errors="ignore")
