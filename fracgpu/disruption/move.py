"""Moves, planned and past, and the reasons to hold one back: values without decisions."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.heat import Unrelievable
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.card_hold import CardHold
from fracgpu.state.move_object import Beneficiary, MoveMode, MovePhase
from fracgpu.state.reservation import NEVER, MoveClaims, Reservation
from fracgpu.units import Mib

ENDED: Final = frozenset({MovePhase.RECOMMENDED, MovePhase.DONE, MovePhase.ABORTED})
# The replacement is not Ready yet, or the pod does not belong to its owner again yet.
UNDER_WAY: Final = frozenset(MovePhase) - ENDED - {MovePhase.VERIFYING}
# From these phases on the pod's users could notice something.
DISTURBING: Final = frozenset({MovePhase.SURGING, MovePhase.EVICTING})


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
    QUOTA = "a quota leaves no room for its replacement beside it"
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


class Ending(Enum):
    """How a move ended; also a metric label, and the result of a Move."""

    RELIEVED = "relieved"
    USELESS = "useless"  # carried out, and the source is as busy as before or the target is hot
    UNVERIFIED = "unverified"  # carried out, and what the cards show afterwards tells nothing
    DRY_RUN = "dry_run"
    # Before anybody was disturbed, or after it.
    PAUSED = "paused"  # the mode was changed
    REFUSED = "refused"  # the API server does not allow it
    POD_GONE = "pod_gone"  # the pod ended by itself, or its name belongs to another pod now
    OWNER_GONE = "owner_gone"  # the controller was deleted
    ROLLOUT = "rollout"  # the owner is being rolled out
    TARGET_LOST = "target_lost"  # no pod can start on the target's node any more
    BLOCKED = "blocked"  # a disruption budget did not allow it in time
    # Only before.
    OUTDATED = "outdated"  # checked again, the move was not right any more
    EXPIRED = "expired"  # the first step did not come, or had no effect, in time
    # Only after. A surge is rolled back, so that the pod stays.
    NOT_CREATED = "not_created"  # the replacement could not be created: a quota, for example
    NOT_READY = "not_ready"  # the replacement did not become Ready
    LAPSED = "lapsed"  # the reservation lapsed before the replacement was bound
    MISPLACED = "misplaced"  # the replacement got a card that is not known to be cool
    SCALED_DOWN = "scaled_down"  # the owner needs no replacement any more
    INTERFERED = "interfered"  # somebody else changed the pod's label meanwhile
    LOST = "lost"  # the owner misses a pod since the eviction


# Carried out to the end.
CARRIED_OUT: Final = frozenset({Ending.RELIEVED, Ending.USELESS, Ending.UNVERIFIED})
# Once a pod was disturbed these are failures; a rollout or a scale-down meanwhile is none.
FAILURES: Final = frozenset(
    {
        Ending.REFUSED,
        Ending.TARGET_LOST,
        Ending.BLOCKED,
        Ending.NOT_CREATED,
        Ending.NOT_READY,
        Ending.LAPSED,
        Ending.MISPLACED,
        Ending.INTERFERED,
        Ending.LOST,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The decision to move one pod off one card, with a card where a replacement fits.

    Attributes:
        mib: what the pod holds of the source, in MiB.
        cores: what it holds of the source, in per cent of a card's compute.
        slots: the number of its containers with a share of the source.
        limit_mib: how much its replacement may use of the target; 0 for no more than *mib*.
        busy_ratio: its measured share of the source's time, 0..1.
        level_ratio: how busy the source was, 0..1.
        gain_points: what the move is expected to save less what it costs, in per cent of one card.
        method: the name of the method that planned it.
        mode: whether the replacement is Ready before the pod is evicted.
        plan: what the moves of one plan have in common; empty if the plan is this one move.
        beneficiary: the waiting pod for which cards are freed; None if there is none.
        only_recommended: it is shown to people and not made, whatever the mode.
    """

    pod_uid: str
    namespace: str
    name: str
    owner_uid: str
    source: CardUuid
    source_node: str
    target: CardUuid
    target_node: str
    mib: Mib
    cores: int
    busy_ratio: float
    level_ratio: float
    gain_points: float
    slots: int = 1
    limit_mib: Mib = Mib(0)
    method: str = "hot-card"
    mode: MoveMode = MoveMode.SURGE
    plan: str = ""
    beneficiary: Beneficiary | None = None
    only_recommended: bool = False

    @property
    def pod(self) -> str:
        """``namespace/name``, for people."""
        return f"{self.namespace}/{self.name}"


def claims_once_planned(move: Move, *, reserves: bool = True, holds: bool = True) -> MoveClaims:
    """Return what a Move for a decision would keep, without end; its name is not known yet.

    Args:
        move: the decision.
        reserves: the target is kept for the replacement.
        holds: the cards of the beneficiary, if there is one, are kept for that.
    """
    name = f"for {move.pod_uid}"
    beneficiary = move.beneficiary
    reservation = Reservation(
        move=name,
        owner_uid=move.owner_uid,
        pod_uid=move.pod_uid,
        pod=move.pod,
        node=move.target_node,
        card=move.target,
        allocation=CardAllocation(
            mib=move.mib,
            cores=move.cores,
            slots=move.slots,
            borrow_mib=Mib(max(move.limit_mib - move.mib, 0)),
        ),
        until=NEVER,
    )
    hold = None
    if beneficiary is not None and holds:
        hold = CardHold(
            move=name,
            pod_uid=beneficiary.uid,
            node=move.source_node,
            cards=frozenset(CardUuid(card) for card in beneficiary.cards),
            until=NEVER,
        )
    return MoveClaims(move=name, reservation=reservation if reserves else None, hold=hold)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastMove:
    """A move that was begun; the budgets count these.

    Attributes:
        under_way: the replacement is not ready yet.
        ended_at: when it ended, successfully or not; None while it is under way.
        landed: the card that the replacement got, if it is known.
        id: the name of the Move.
        phase: how far it has come.
        ending: how it ended; None while it has not.
        disturbed: a step was announced that the pod's users could notice. A move that expired or
            was outdated before that disturbed nobody.
        disturbed_at: when the first such step was announced, if that is known.
        replacement_uid: the pod that took its place, if it is known.
        claims: what its Move keeps on cards; None without a Move, as in a replay or right after it
            was planned.
    """

    move: Move
    started_at: datetime
    under_way: bool
    ended_at: datetime | None = None
    landed: CardUuid | None = None
    id: str = ""
    phase: MovePhase = MovePhase.DONE
    ending: Ending | None = None
    disturbed: bool = True
    disturbed_at: datetime | None = None
    replacement_uid: str = ""
    claims: MoveClaims | None = None

    @property
    def claimed(self) -> MoveClaims:
        """What it keeps on cards; without a Move as its Move would say while it is under way."""
        return self.claims or claims_once_planned(
            self.move, reserves=self.under_way and self.landed is None, holds=self.under_way
        )

    def holds_cards(self, *, now: datetime) -> bool:
        """Report whether it keeps cards for its beneficiary: see `fracgpu.state.card_hold`."""
        beneficiary = self.move.beneficiary
        if beneficiary is None or self.phase in (MovePhase.ROLLING_BACK, MovePhase.ABORTED):
            return False
        if self.phase is MovePhase.RECOMMENDED:
            return self.under_way  # planned in this very cycle, to be shown
        return self.under_way or now < beneficiary.held_until

    @property
    def only_shown(self) -> bool:
        """Whether it was a dry run or a recommendation: nothing happened."""
        return self.phase is MovePhase.RECOMMENDED or self.ending is Ending.DRY_RUN

    @property
    def useless(self) -> bool:
        """Whether it was carried out, and the source stayed as busy as before."""
        return self.ending is Ending.USELESS

    @property
    def failed(self) -> bool:
        """Whether it disturbed a pod for nothing, and neither the owner nor people wanted that."""
        return self.disturbed and self.ending in FAILURES

    @property
    def lost(self) -> bool:
        """Whether its owner misses a pod."""
        return self.disturbed and self.ending is Ending.LOST


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

    moves: tuple[Move, ...] = ()
    held: tuple[HeldBack, ...] = ()
