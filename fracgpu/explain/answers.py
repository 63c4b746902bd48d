"""What an explanation is made from and consists of: values without decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.units import Mib


class PodVerdict(Enum):
    """The answer in one word."""

    RUNS = "runs"
    FITS = "fits"
    STUCK = "does not fit"
    ENDED = "has ended"
    ASKS_NOTHING = "asks for no share of a card"

    @property
    def good(self) -> bool:
        """Tell whether the pod has its cards, or would get them now."""
        return self in (PodVerdict.RUNS, PodVerdict.FITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A pod that holds a part of a card."""

    pod: str
    mib: Mib
    cores: int = 0
    terminating: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CardAnswer:
    """One card: who holds it, and why it will not do (empty where it would, by itself).

    Attributes:
        chosen: the pod would get it, or has it.
        until: when the cordon lapses, for a card that is set aside.
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
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why a node is closed to the pod whatever its cards, and what would open it."""

    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """One node: *fits* says both node and cards would do, *cards_fit* only that the cards would."""

    node: str
    fits: bool
    cards_fit: bool
    reason: str = ""
    objections: tuple[Objection, ...] = ()
    cards: tuple[CardAnswer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCard:
    """What the pod itself holds of one card; the index is -1 where the node lacks that card."""

    uuid: CardUuid
    index: int
    model: str
    mib: Mib
    cores: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingCards:
    """Where a pod would fit: cards of one node, by index."""

    node: str = ""
    cards: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """Say it: ``gpu-node-1, cards 0, 2``."""
        which = ", ".join(str(index) for index in self.cards)
        return f"{self.node}, card{'s' if len(self.cards) > 1 else ''} {which}"


NO_FITTING_CARDS: Final = FittingCards()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The whole answer about one pod.

    Attributes:
        asks: its need in plain words.
        blockers: why it cannot be placed wherever there is room.
        notes: what this judgement could not look at.
        choice: the node that the extender prefers, and the cards it takes there; none where it
            would not fit.
        since: since when it runs, for a pod that does.
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
    """What would have to change."""

    PODS_GO = "pods go"
    CORDON_ENDS = "a cordon lapses"
    NODE_OPENS = "a node is opened"
    SMALLER = "a smaller share"
    FEWER_CARDS = "fewer cards"
    LESS_COMPUTE = "less compute"
    OTHER_MODEL = "another model"
    LARGER_NODE = "a larger node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One change after which the pod would fit; tried, not guessed.

    Attributes:
        annotations: what to write on a new pod, where the pod itself has to change.
        home: where it would fit then.
        pods: whose end it takes.
        at: when it comes by itself, where that is known.
    """

    kind: SuggestionKind
    text: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    home: FittingCards = field(default_factory=FittingCards)
    pods: tuple[str, ...] = ()
    at: datetime | None = None
