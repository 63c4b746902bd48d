"""What keeps claims off a card: taints of its device, and who tolerates them.

Cordons and Moves close a card in our ledger, which kube-scheduler does not know. The agent mirrors
them into the slice, where they also hold for claims that are open, or that users made. The effect
is always ``NoSchedule``: no pod that runs is ever evicted by them.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from fracgpu import names
from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.state.reservation import MoveClaims

MOST_TAINTS: Final = 16  # of a device. Source: DeviceTaintsMaxLength, k8s.io/api resource/v1
_NO_SCHEDULE: Final = "NoSchedule"


class DeviceTaint(NamedTuple):
    """A taint of a device of ours; only the claim that names key and value tolerates it."""

    key: str
    value: str = ""

    @property
    def body(self) -> dict[str, Any]:
        """The taint in a slice."""
        value = {"value": self.value} if self.value else {}
        return {"key": self.key, **value, "effect": _NO_SCHEDULE}

    @property
    def toleration(self) -> dict[str, Any]:
        """The toleration in a claim."""
        return {
            "key": self.key,
            "operator": "Equal",
            "value": self.value,
            "effect": _NO_SCHEDULE,
        }


Taints = Mapping[CardUuid, Sequence[DeviceTaint]]
NO_TAINTS: Final[Taints] = MappingProxyType({})


def reserved_by(move: str) -> DeviceTaint:
    """Return the taint of a card that a Move reserves for a replacement."""
    return DeviceTaint(names.RESERVED_TAINT, move)


def kept_for(pod_uid: str) -> DeviceTaint:
    """Return the taint of a card that a Move keeps for a pod that waits."""
    return DeviceTaint(names.KEPT_TAINT, pod_uid)


def taints_of(
    node: NodeCards, moves: Iterable[MoveClaims], *, consumed: Collection[str], now: datetime
) -> Taints:
    """Return the taints of the cards of a node.

    Args:
        node: the node, with its cards, cordons and drained cards.
        moves: what Moves claim, on any node.
        consumed: the Moves whose replacement has its card.
        now: the moment.
    """
    closed = {card.uuid for card in node.cards} if node.problem else node.cordoned(now=now)
    found = defaultdict[CardUuid, set[DeviceTaint]](set)
    for card in closed:
        found[card].add(DeviceTaint(names.CORDONED_TAINT))
    for claims in moves:
        reservation, hold = claims.reservation, claims.hold
        if (
            reservation is not None
            and reservation.node == node.node
            and reservation.until > now
            and claims.move not in consumed
        ):
            found[reservation.card].add(reserved_by(claims.move))
        if hold is not None and hold.node == node.node and hold.until > now:
            for card in hold.cards:
                found[card].add(kept_for(hold.pod_uid))
    return {card: sorted(taints)[:MOST_TAINTS] for card, taints in found.items()}


def taints_change_at(
    node: NodeCards, moves: Iterable[MoveClaims], *, now: datetime
) -> datetime | None:
    """Return when :func:`taints_of` may next differ though nothing changes; None for never."""
    ends = [cordon.until for cordon in node.cordons]
    for claims in moves:
        ends += [part.until for part in (claims.reservation, claims.hold) if part is not None]
    return min((end for end in ends if end > now), default=None)
