"""What a browser gets: nodes with their cards, moves and waiting pods, as JSON.

Texts are passed on as they are, whoever wrote them; the page shows them as text, never as HTML.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from fracgpu.cards.card import CardUuid, Cordon, NodeCards
from fracgpu.errors import shorten
from fracgpu.explain.trouble import card_trouble, node_trouble
from fracgpu.request.need import describe_need
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.move_object import CardReference, Move
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import CardInfo, NodeInfo

_MOST_SLICES: Final = 64  # shown of one card; kubelet's slots are fewer by default
_MOST_TRANSITIONS: Final = 32
_MOST_TEXT: Final = 600


class _Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What all documents have in common: camel-cased keys, and defaults left out."""


class HolderName(_Document, frozen=True, kw_only=True):
    """A pod that holds a part of a card, as people know it.

    Attributes:
        assumed: its Binding is under way.
    """

    pod: str
    terminating: bool = False
    assumed: bool = False


class SliceDocument(_Document, frozen=True, kw_only=True):
    """What one pod holds of one card.

    Attributes:
        mib: what it is guaranteed.
        limit_mib: how much it may use; 0 for no more than that.
        used_mib: what it uses, as the node's agent last wrote it; None if it is not known.
    """

    pod: str
    mib: int
    limit_mib: int = 0
    used_mib: int | None = None
    cores: int = 0
    terminating: bool = False
    assumed: bool = False


class CardDocument(_Document, frozen=True, kw_only=True):
    """One card.

    Attributes:
        mib: shareable memory.
        heat: how busy it was lately, 0..1; None if it is not known now.
        cordoned: by the rebalancer, because it is hot.
        trouble: what keeps new slices off it; empty if nothing does.
        closed: it takes no new slices at all, because of *trouble*.
        until: when the cordon lapses.
        kept_for: the waiting pod from which alone it takes slices.
        more_slices: how many smaller slices are left out.
    """

    uuid: str
    index: int
    model: str
    mib: int
    total_mib: int
    free_mib: int
    held_mib: int = 0
    foreign_mib: int = 0
    reserved_mib: int = 0
    unplaced_mib: int = 0
    cores: int = 0
    used_slots: int = 0
    slots: int
    heat: float | None = None
    cordoned: bool = False
    unhealthy: bool = False
    trouble: str = ""
    closed: bool = False
    until: datetime | None = None
    kept_for: str = ""
    moves: tuple[str, ...] = ()
    slices: tuple[SliceDocument, ...] = ()
    more_slices: int = 0


class NodeDocument(_Document, frozen=True, kw_only=True):
    """One node.

    Attributes:
        trouble: why it takes no new slices; empty if it does.
        heat_at: when its agent last confirmed the heat of its cards.
    """

    name: str
    trouble: str = ""
    heat_at: datetime | None = None
    cards: tuple[CardDocument, ...] = ()


class PhaseDocument(_Document, frozen=True, kw_only=True):
    """When a phase of a move began, and why."""

    phase: str
    at: datetime
    message: str = ""


class PlaceDocument(_Document, frozen=True, kw_only=True):
    """One end of a move."""

    node: str
    card: str
    index: int


class MoveDocument(_Document, frozen=True, kw_only=True):
    """One move."""

    name: str
    pod: str
    mode: str
    method: str
    phase: str
    result: str = ""
    message: str = ""
    reason: str = ""
    mib: int
    source: PlaceDocument
    target: PlaceDocument
    made: datetime | None = None
    beneficiary: str = ""
    phases: tuple[PhaseDocument, ...] = ()


class FilterAnswer(_Document, frozen=True, kw_only=True):
    """What the extender last answered when kube-scheduler asked where a pod fits.

    Attributes:
        nodes: those that kube-scheduler asked about; its own rules exclude the others.
        fitting: how many of them have a card for the pod.
        reason: why not the others.
    """

    at: datetime
    nodes: int
    fitting: int
    reason: str = ""


class WaitingDocument(_Document, frozen=True, kw_only=True):
    """One pod that waits for its cards.

    Attributes:
        problem: why what it asks for can never be granted.
        answer: the last answer to kube-scheduler; None if it has not asked yet.
        claim: how far its claim has come; empty where kube-scheduler asks us.
    """

    pod: str
    asks: str = ""
    since: datetime | None = None
    priority: int = 0
    problem: str = ""
    nominated_node: str = ""
    answer: FilterAnswer | None = None
    claim: str = ""


class AboutDocument(_Document, frozen=True, kw_only=True):
    """What concerns the whole page.

    Attributes:
        leader: the replica that serves it.
        hot_ratio: the rebalancer's line above which a card counts as hot, 0..1.
        waiting: how many pods wait, also those that are left out.
        moves: how many moves there are, also those that are left out.
    """

    leader: str
    strategy: str
    hot_ratio: float
    waiting: int = 0
    moves: int = 0
    moves_served: bool = True


_encoder: Final = msgspec.json.Encoder()


def encode(document: msgspec.Struct) -> bytes:
    """Return a document as JSON in one line."""
    return _encoder.encode(document)


def node_document(
    node_info: NodeInfo,
    *,
    holder: Callable[[str], HolderName],
    held: Callable[[str], Mapping[CardUuid, CardAllocation]],
    unplaced: str,
    waiting: Callable[[str], str],
) -> NodeDocument:
    """Return a node and its cards.

    Args:
        node_info: the node as the ledger folds it.
        holder: returns the name of the pod with a UID.
        held: returns what the pod with a UID holds of each card.
        unplaced: the names of the node's pods that may be on any of its cards.
        waiting: returns the name of the waiting pod with a UID, for which a card is kept.
    """
    node = node_info.node
    return NodeDocument(
        name=node.node,
        trouble=_short(node_trouble(node)),
        heat_at=node.load_time if node_info.heat else None,
        cards=tuple(
            _card(
                card_info,
                node_info,
                slices=_slices(card_info, node, holder, held),
                unplaced=unplaced,
                kept_for=waiting(card_info.kept_for)
                if card_info.kept_for and card_info.kept_for not in card_info.moves
                else "",
            )
            for card_info in node_info.cards.values()
        ),
    )


def _card(
    card_info: CardInfo,
    node_info: NodeInfo,
    *,
    slices: tuple[SliceDocument, ...],
    unplaced: str,
    kept_for: str,
) -> CardDocument:
    card = card_info.card
    trouble = card_trouble(card_info, node_info.node, unplaced=unplaced)
    heat = node_info.heat.get(card.uuid)
    return CardDocument(
        uuid=card.uuid,
        index=card.index,
        model=_short(card.model),
        mib=card.capacity_mib,
        total_mib=card.total_mib,
        free_mib=card_info.free_mib,
        held_mib=card_info.held_mib,
        foreign_mib=card_info.foreign_mib,
        reserved_mib=card_info.reserved_mib,
        unplaced_mib=card_info.unplaced_mib,
        cores=card_info.held_cores,
        used_slots=card_info.held_slots,
        slots=card.slots,
        heat=None if heat is None else round(heat, 3),
        cordoned=_cordon(card_info, node_info.node) is not None,
        unhealthy=card.health.value != "healthy",
        trouble=_short(trouble.text),
        closed=trouble.closes,
        until=trouble.until,
        kept_for=kept_for,
        moves=tuple(sorted(card_info.moves)),
        slices=slices[:_MOST_SLICES],
        more_slices=max(0, len(slices) - _MOST_SLICES),
    )


def _cordon(card_info: CardInfo, node: NodeCards) -> Cordon | None:
    if not card_info.cordoned:
        return None
    return next((cordon for cordon in node.cordons if cordon.card == card_info.card.uuid), None)


def _slices(
    card_info: CardInfo,
    node: NodeCards,
    holder: Callable[[str], HolderName],
    held: Callable[[str], Mapping[CardUuid, CardAllocation]],
) -> tuple[SliceDocument, ...]:
    """Return the slices of a card, the largest first."""
    found = []
    used = node.used.get(card_info.card.uuid, {})
    for uid in card_info.pods:
        part = held(uid).get(card_info.card.uuid)
        if part is not None:
            found.append(_slice(holder(uid), part, used.get(uid)))
    return tuple(sorted(found, key=lambda one: (-one.mib, one.pod)))


def _slice(name: HolderName, part: CardAllocation, used_mib: int | None) -> SliceDocument:
    return SliceDocument(
        pod=name.pod,
        mib=part.mib,
        limit_mib=part.limit_mib if part.borrow_mib else 0,
        used_mib=used_mib,
        cores=part.cores,
        terminating=name.terminating,
        assumed=name.assumed,
    )


def move_document(move: Move) -> MoveDocument:
    """Return a move with its latest phases."""
    spec, status = move.spec, move.status
    gains = spec.beneficiary
    return MoveDocument(
        name=move.name,
        pod=spec.pod.key,
        mode=spec.mode.value,
        method=_short(spec.method),
        phase=status.phase.value,
        result=_short(status.result),
        message=_short(status.message),
        reason=_short(spec.reason.message),
        mib=spec.request.mib,
        source=_place(spec.source),
        target=_place(spec.target),
        made=move.metadata.creation_timestamp,
        beneficiary=gains.key if gains else "",
        phases=tuple(
            PhaseDocument(phase=each.phase.value, at=each.at, message=_short(each.message))
            for each in status.transitions[-_MOST_TRANSITIONS:]
        ),
    )


def _place(card: CardReference) -> PlaceDocument:
    return PlaceDocument(node=card.node, card=card.card, index=card.index)


def waiting_document(pod: PodInfo, answer: FilterAnswer | None, claim: str = "") -> WaitingDocument:
    """Return a waiting pod with the last answer about it, or how far its claim has come."""
    return WaitingDocument(
        pod=pod.record.key,
        asks=_short(describe_need(pod.need)) if pod.need is not None else "",
        since=pod.unschedulable_since or pod.created_at,
        priority=pod.priority,
        problem=_short(pod.need_problem),
        nominated_node=pod.nominated_node,
        answer=answer,
        claim=_short(claim),
    )


def _short(text: str) -> str:
    return shorten(text, limit=_MOST_TEXT)
