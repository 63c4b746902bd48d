"""Why a node or a card takes no new slices now, in words for people."""

from dataclasses import dataclass
from datetime import datetime

from fracgpu.cards.card import Health, NodeCards
from fracgpu.state.snapshot import CardInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTrouble:
    """What keeps new slices off a card, and when that ends by itself; both may be missing.

    Attributes:
        closes: it takes none at all; else it takes some.
    """

    text: str = ""
    until: datetime | None = None
    closes: bool = False


def node_trouble(node: NodeCards) -> str:
    """Return why a node takes no new slices; empty if it does."""
    if node.problem:
        return node.problem
    if not node.shared:
        return "does not share its cards"
    if node.unschedulable:
        return "cordoned"
    if not node.schedulable:
        return "not ready, or kubelet does not know its node agent"
    return "" if node.cards else "has not reported its cards"


def card_trouble(card_info: CardInfo, node: NodeCards, *, unplaced: str) -> CardTrouble:
    """Return what keeps new slices off a card.

    Args:
        card_info: the card.
        node: its node, which has the cordons.
        unplaced: the names of the node's pods that may be on any of its cards.
    """
    card = card_info.card
    cordon = next((cordon for cordon in node.cordons if cordon.card == card.uuid), None)
    until = cordon.until if cordon and (card_info.cordoned or card_info.avoided) else None
    closes = True
    if card.health is not Health.HEALTHY:
        text = f"unhealthy: {card.health_reason}" if card.health_reason else "unhealthy"
    elif card.uuid in node.drained:
        text, until = "drained by an administrator", None
    elif card_info.cordoned and cordon is not None:
        text = f"cordoned until {cordon.until:%H:%M:%S} UTC: {cordon.reason}"
    elif card_info.unplaced_mib:
        held = f"{card_info.unplaced_mib} MiB of it may be held"
        text, closes = f"{held} by {unplaced}, whose assignment is unreadable", False
    elif card_info.free_slots < 1:
        text = f"all its slots are taken: {card_info.held_slots} of {card.slots}"
    elif card_info.avoided and cordon is not None and not node_trouble(node):
        text = f"avoided until {cordon.until:%H:%M:%S} UTC: {cordon.reason}"
        closes = False
    else:
        text, closes = "", False
    return CardTrouble(text=text, until=until, closes=closes)
