"""What is decided: which moves to make, and why others are held back."""

from dataclasses import dataclass
from enum import Enum

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.heat import Unrelievable
from fracgpu.state.move_object import MoveSpec


class HoldReason(Enum):
    """Why something is not moved; ``name.lower()`` is its metric label."""

    # the whole cycle
    OFF = "the rebalancer is switched off"
    BLIND = "too few cards have trusted readings"
    STARTING = "the rebalancer has just become the leader"
    PAUSED = "the rebalancer is paused"
    CHANGE_FREEZE = "a change freeze is in effect"
    MOVE_IN_FLIGHT = "as many moves as allowed are under way"
    HOURLY_BUDGET = "as many moves as allowed were made in the last hour"
    DAILY_BUDGET = "as many moves as allowed were made in the last day"
    # one card
    NOT_MEASURED = "the hot card has no trusted reading now"
    ONE_POD_ALONE = Unrelievable.ONE_POD_ALONE.value
    NOT_ATTRIBUTED = Unrelievable.NOT_ATTRIBUTED.value
    NO_USEFUL_POD = Unrelievable.NO_USEFUL_POD.value
    BROKEN = "the card needs to be replaced; no pod is placed there, and none is moved off"
    REPEATING = "none of its exporter's figures has changed lately"
    CALM_NOW = "the hot card is not busy at this moment"
    SHOWN = "a move was already shown"
    CARD_COOLDOWN = "a pod was moved off this card a short while ago"
    # one pod
    NOT_KNOWN = "the pod is not known to the API server"
    CARD_GONE = "its node has not the card any more that it was assigned"
    TERMINATING = "it is terminating"
    NOT_READY = "it is not ready"
    TOO_YOUNG = "it has not been running long enough"
    NO_OWNER = "nothing would recreate it"
    OWNER_KIND = "its kind of owner is not moved"
    OPT_IN = "its kind of owner is only moved with rebalance: evict"
    NEVER = "it is annotated rebalance: never"
    SURGE_ONLY = "it is annotated rebalance: surge, and would be gone before its replacement runs"
    NAMESPACE = "its namespace is not rebalanced, by its label fracgpu.io/rebalance"
    PROTECTED = "an annotation of another evictor protects it"
    SYSTEM_CRITICAL = "it is critical to the system"
    NEED_UNREADABLE = "its request cannot be read"
    ASSIGNMENT_UNREADABLE = "its assignment cannot be read"
    RESIZED = "it was resized, and would get its original size back"
    SEVERAL_CARDS = "it holds several cards"
    OTHER_SCHEDULER = "another scheduler would place its replacement"
    UNJUDGED = "it has scheduling constraints that FracGPU does not evaluate"
    LOCAL_DATA = "it would lose local data"
    GUARDS_NOT_KNOWN = "not everything that protects pods could be read from the API server"
    OWNER_NOT_KNOWN = "its controller is not known"
    ROLLOUT = "its owner is being rolled out or scaled"
    OWNER_PAUSED = "its Deployment is paused"
    RECREATE = "its Deployment never runs an old pod beside a new one"
    SEVERAL_BUDGETS = "more than one disruption budget selects it"
    BUDGET_NOT_OBSERVED = "its disruption budget has just been changed"
    NO_SURGE = "its Deployment has maxSurge 0, and it is not annotated rebalance: surge"
    BUDGET = "its disruption budget allows no disruption"
    BUDGET_FORBIDS = "its disruption budget has maxUnavailable 0"
    SERVICE_BY_HASH = "a Service selects it by the label that a surge changes"
    QUOTA = "a quota leaves no room for its replacement"
    SINGLE_REPLICA = "it is the only replica"
    REPLICAS_NOT_READY = "another pod of its owner is not ready"
    OWNER_COOLDOWN = "a pod of its owner was moved a short while ago"
    GIVEN_UP = "a move of its owner was given up a short while ago"
    OWNER_BUDGET = "its owner was moved as often as allowed today"
    NAMESPACE_BUDGET = "its namespace had as many moves as allowed this hour"
    NOT_MEASURED_POD = "its use is not measured"
    TOO_SMALL = "it uses too little to matter"
    TOO_LARGE = "it would heat any other card"
    NO_TARGET = "no cool card has room for it"
    NO_GAIN = "moving it costs more than it relieves"
    OUTSCORED = "moving another pod off the card relieves more"
    # one waiting pod
    SEVERAL_CONTAINERS = "several of its containers ask for cards"
    ROOM_KEPT = "cards are being freed, or kept, for it"
    ROOM_TRIED = "cards were freed for it a short while ago, and it did not start"
    NO_ROOM = "no small number of moves would make room for it"
    NOT_WAITING = "it does not wait any more"

    @property
    def label(self) -> str:
        """The reason as a metric label."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """What is not moved (a pod, a card or the whole cluster), and why.

    Attributes:
        card: the hot card that the pod would have been moved off; None if it is not about a pod.
        gain_points: what the best move of the pod would relieve less what it costs, if there was
            one.
    """

    subject: str
    reason: HoldReason
    detail: str = ""
    card: CardUuid | None = None
    gain_points: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now: the moves, and why others are held back."""

    moves: tuple[MoveSpec, ...] = ()
    held: tuple[HeldBack, ...] = ()
