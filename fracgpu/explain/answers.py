"""The values that an explanation consists of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib


class PodVerdict(Enum):
    """The result of an explanation."""

    RUNS = "runs"
    FITS = "fits"
    CARDS_FIT = "fits by its cards; the rest of the nodes is not evaluated here"
    STUCK = "does not fit"
    ENDED = "has ended"
    ASKS_NOTHING = "asks for no share of a card"

    @property
    def good(self) -> bool:
        """Whether the pod has its cards, or would get them now."""
        return self in (PodVerdict.RUNS, PodVerdict.FITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A pod that holds a part of a card.

    Attributes:
        mib: what it is guaranteed.
        limit_mib: how much it may use.
    """

    pod: str
    mib: Mib
    cores: int = 0
    terminating: bool = False
    limit_mib: Mib = Mib(0)

    @property
    def size(self) -> str:
        """What it holds, in MiB: ``8000``, or ``8000-16000`` if it may use more."""
        return f"{self.mib}-{self.limit_mib}" if self.limit_mib > self.mib else str(self.mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardAnswer:
    """One card, and the pods that hold parts of it.

    Attributes:
        reason: why the card does not fit; empty if it fits by itself.
        chosen: the pod would get the card, or has it.
        until: when its cordon expires, for a cordoned card.
        avoided_until: until when it is taken only where no other card fits; None if it is not.
    """

    uuid: CardUuid
    index: int
    model: str
    capacity_mib: Mib
    free_mib: Mib
    free_cores: int
    reason: str = ""
    chosen: bool = False
    until: datetime | None = None
    avoided_until: datetime | None = None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why a node does not take the pod whatever its cards, and what would change that."""

    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """One node: *fits* means that node and cards fit, *cards_fit* that the cards alone do.

    Where only cards are known, no node *fits*.
    """

    node: str
    fits: bool
    cards_fit: bool
    reason: str = ""
    objections: tuple[Objection, ...] = ()
    cards: tuple[CardAnswer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCard:
    """What the pod holds of one card; the index is -1 if the node does not have that card."""

    uuid: CardUuid
    index: int
    model: str
    mib: Mib
    cores: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingCards:
    """The cards of one node, by index, on which a pod would fit."""

    node: str = ""
    cards: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The cards in words: ``gpu-node-1, cards 0, 2``."""
        which = ", ".join(str(index) for index in self.cards)
        return f"{self.node}, card{'s' if len(self.cards) > 1 else ''} {which}"


NO_FITTING_CARDS: Final = FittingCards()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of one pod.

    Attributes:
        asks: what it asks for, in words.
        blockers: why it cannot be placed on any node.
        notes: what was not evaluated.
        on_node: the node that it is bound to.
        held: the cards that it holds.
        choice: the node that the extender prefers and the cards there; none if it does not fit.
        since: when it started, for a running pod.
    """

    pod: str
    verdict: PodVerdict
    asks: str = ""
    blockers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    nodes: tuple[NodeAnswer, ...] = ()
    on_node: str = ""
    held: tuple[HeldCard, ...] = ()
    choice: FittingCards = NO_FITTING_CARDS
    since: datetime | None = None


class SuggestionKind(Enum):
    """The kind of change that a suggestion needs."""

    PODS_GO = "pods go"
    CORDON_ENDS = "a cordon lapses"
    NODE_OPENS = "a node is opened"
    SMALLER = "a smaller share"
    FEWER_CARDS = "fewer cards"
    LESS_COMPUTE = "less compute"
    NO_LIMIT = "no limit above the request"
    OTHER_MODEL = "another model"
    LARGER_NODE = "a larger node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One change after which the pod would fit, tried with the real placement.

    Attributes:
        annotations: annotations for a new pod, if the pod has to change.
        home: where the pod would then fit.
        pods: the pods that have to end first.
        at: when the change happens by itself, if known.
    """

    kind: SuggestionKind
    text: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    home: FittingCards = field(default_factory=FittingCards)
    pods: tuple[str, ...] = ()
    at: datetime | None = None
