"""How many moves there may be: at once, in an hour and in a day; counted from past moves alone.

A move counts from the moment it is planned, because it may disturb a pod from then on. One that
ended before it disturbed a pod counts no longer. Dry runs and recommendations disturb nobody: they
count only against each other, so that a dry run shows what the active mode would do.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.move import HoldReason, Move, PastMove
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.move_object import MovePhase

_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_MOST_DOUBLINGS: Final = 10


class Budgets:
    """What of each budget is left at one moment; every question is answered in constant time.

    Args:
        past: the moves that are remembered; a day of them is enough.
        policy: the limits.
        now: the moment.
    """

    def __init__(
        self, past: Sequence[PastMove], *, policy: RebalancerPolicy, now: datetime
    ) -> None:
        self._past = tuple(past)
        self._policy = policy
        self._now = now
        counted = [
            (past_move, _age(past_move, now))
            for past_move in past
            if counts(past_move, policy.mode)
        ]
        in_flight = [past_move for past_move, _ in counted if past_move.under_way]
        this_hour = [past_move for past_move, age in counted if age < _HOUR]
        today = [past_move for past_move, age in counted if age < _DAY]
        cooling = timedelta(seconds=policy.card_cooldown_s)
        recent = [past_move for past_move, age in counted if age < cooling]
        self.in_flight = len(in_flight)
        self.this_hour = len(this_hour)
        self.today = len(today)
        self._per_node = Counter(node for past_move in in_flight for node in _nodes(past_move.move))
        self._per_namespace = Counter(past_move.move.namespace for past_move in this_hour)
        self._per_owner_hour = Counter(past_move.move.owner_uid for past_move in this_hour)
        self._per_owner_day = Counter(past_move.move.owner_uid for past_move in today)
        self._lineage = _Lineages(past)
        self._per_lineage = Counter(
            self._lineage.of(past_move.move.pod_uid) for past_move in this_hour
        )
        self._sources = {past_move.move.source for past_move in recent}
        self._targets = {
            card
            for past_move in recent
            for card in (past_move.move.target, past_move.landed)
            if card is not None
        }
        self._resting = _resting_owners(counted, policy=policy)
        self._given_up = _given_up(past, policy=policy, now=now)

    def with_(self, move: Move) -> "Budgets":
        """Return the budgets as if *move* were under way as well."""
        shown = MovePhase.PLANNED if self._policy.mode is Mode.ACTIVE else MovePhase.RECOMMENDED
        planned = PastMove(
            move=move, started_at=self._now, under_way=True, phase=shown, disturbed=False
        )
        return Budgets((*self._past, planned), policy=self._policy, now=self._now)

    def of_cluster(self) -> HoldReason | None:
        """Return why nothing at all may be moved, or None."""
        if self.in_flight >= self._policy.max_in_flight:
            return HoldReason.MOVE_IN_FLIGHT
        if self.this_hour >= self._policy.max_per_hour:
            return HoldReason.HOURLY_BUDGET
        if self.today >= self._policy.max_per_day:
            return HoldReason.DAILY_BUDGET
        return None

    def of_source(self, card: CardUuid, *, node: str) -> HoldReason | None:
        """Return why no pod may be moved off a card, or None."""
        if card in self._sources:
            return HoldReason.CARD_COOLDOWN
        if self.node_is_busy(node):
            return HoldReason.NODE_BUSY
        return None

    def node_is_busy(self, node: str) -> bool:
        """Report whether as many moves as allowed are under way off or onto a node."""
        return self._per_node[node] >= self._policy.max_in_flight_per_node

    def busy_nodes(self) -> frozenset[str]:
        """Return the nodes off or onto which as many moves as allowed are under way."""
        return frozenset(node for node in self._per_node if self.node_is_busy(node))

    def closed_targets(self) -> frozenset[CardUuid]:
        """Return the cards onto which a pod was moved so lately that none may follow."""
        return frozenset(self._targets)

    def of_pod(self, pod_uid: str, *, owner_uid: str, namespace: str) -> HoldReason | None:
        """Return why one pod may not be moved, or None."""
        policy = self._policy
        rules = (
            (owner_uid in self._resting, HoldReason.OWNER_COOLDOWN),
            (owner_uid in self._given_up, HoldReason.GIVEN_UP),
            (
                self._per_owner_hour[owner_uid] >= policy.max_per_owner_per_hour,
                HoldReason.OWNER_HOUR,
            ),
            (
                self._per_owner_day[owner_uid] >= policy.max_per_owner_per_day,
                HoldReason.OWNER_BUDGET,
            ),
            (
                self._per_lineage[self._lineage.of(pod_uid)] >= policy.max_per_pod_per_hour,
                HoldReason.POD_BUDGET,
            ),
            (
                self._per_namespace[namespace] >= policy.max_per_namespace_per_hour,
                HoldReason.NAMESPACE_BUDGET,
            ),
        )
        return next((reason for broken, reason in rules if broken), None)


def counts(past_move: PastMove, mode: Mode) -> bool:
    """Report whether a move counts against the budgets of *mode*."""
    if past_move.only_shown:
        return mode is not Mode.ACTIVE
    return past_move.disturbed or past_move.under_way


def counted_at(past_move: PastMove) -> datetime:
    """Return from when on a move counts: when it disturbed its pod, before that when it began."""
    return past_move.disturbed_at or past_move.started_at


class _Lineages:
    """Which pods took the place of which: a pod and its replacements are one lineage."""

    def __init__(self, past: Iterable[PastMove]) -> None:
        self._before = {
            past_move.replacement_uid: past_move.move.pod_uid
            for past_move in past
            if past_move.replacement_uid
        }
        self._first: dict[str, str] = {}

    def of(self, pod_uid: str) -> str:
        """Return the first pod of the lineage, as far as it is remembered."""
        seen = {pod_uid: None}  # a dict, because it keeps the order
        last = pod_uid
        while last in self._before and self._before[last] not in seen and last not in self._first:
            last = self._before[last]
            seen[last] = None
        first = self._first.get(last, last)
        self._first.update(dict.fromkeys(seen, first))
        return first


def _age(past_move: PastMove, now: datetime) -> timedelta:
    # A move under way has disturbed nobody yet, or only now: it counts however long ago it began.
    return timedelta.min if past_move.under_way else now - counted_at(past_move)


def _nodes(move: Move) -> frozenset[str]:
    return frozenset({move.source_node, move.target_node})


def _resting_owners(
    counted: Sequence[tuple[PastMove, timedelta]], *, policy: RebalancerPolicy
) -> frozenset[str]:
    """Return the owners that had a move lately; each move has its age.

    Each useless move doubles the cooldown, up to a day.
    """
    useless = Counter(past_move.move.owner_uid for past_move, _ in counted if past_move.useless)
    latest: dict[str, timedelta] = {}
    for past_move, age in counted:
        owner = past_move.move.owner_uid
        latest[owner] = min(age, latest.get(owner, age))

    def cooldown(owner: str) -> timedelta:
        doubled_s = policy.owner_cooldown_s * 2 ** min(useless[owner], _MOST_DOUBLINGS)
        return min(timedelta(seconds=doubled_s), _DAY)

    return frozenset(owner for owner, age in latest.items() if age < cooldown(owner))


def _given_up(
    past: Sequence[PastMove], *, policy: RebalancerPolicy, now: datetime
) -> frozenset[str]:
    """Return the owners of which a move ended a short while ago before it disturbed a pod."""
    pause = timedelta(seconds=policy.give_up_cooldown_s)
    return frozenset(
        past_move.move.owner_uid
        for past_move in past
        if not past_move.only_shown
        and not past_move.disturbed
        and past_move.ended_at is not None
        and now - past_move.ended_at < pause
    )
