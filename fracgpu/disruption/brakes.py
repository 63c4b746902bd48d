"""What keeps moves few: budgets and circuit breakers.

Budgets say how many moves there may be: at once, in an hour and in a day. They are counted from
past moves alone.

The moves of one plan count as one, but for the owners and the pods of each: without the rest of
them a part of a plan helps nobody.

A move counts from the moment it is planned, because it may disturb a pod from then on. One that
ended before it disturbed a pod counts no longer. Dry runs and recommendations disturb nobody and
count against no budget; while moves are only shown, one off each card is shown in an hour.

A circuit breaker opens after something went wrong, and the rebalancer then only shows for a while
what it would do. Each closes by itself when what opened it is long enough ago, or when an
administrator sets ``reset_breakers_at`` to a later time. They are counted from past moves too, so
they stay open across restarts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.move import HoldReason
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.errors import counted
from fracgpu.state.move_object import Move, MoveSpec, new_move

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

    def __init__(self, past: Sequence[Move], *, policy: RebalancerPolicy, now: datetime) -> None:
        self._past = tuple(past)
        self._policy = policy
        self._now = now
        counted = [(past_move, _age(past_move, now)) for past_move in past if counts(past_move)]
        this_hour = [past_move for past_move, age in counted if age < _HOUR]
        today = [past_move for past_move, age in counted if age < _DAY]
        cooling = timedelta(seconds=policy.card_cooldown_s)
        recent = [past_move for past_move, age in counted if age < cooling]
        in_flight = [past_move for past_move, _ in counted if past_move.under_way]
        self.in_flight = len(set(map(_plan, in_flight)))
        self.this_hour = len(set(map(_plan, this_hour)))
        self.today = len(set(map(_plan, today)))
        self._of_namespace: dict[str, set[object]] = defaultdict(set)
        for past_move in this_hour:
            self._of_namespace[past_move.spec.pod.namespace].add(_plan(past_move))
        self._per_owner_day = Counter(past_move.spec.owner.uid for past_move in today)
        self._shown = {
            past_move.spec.source.card: past_move
            for past_move in sorted(past, key=lambda past_move: past_move.planned_at)
            if past_move.only_shown and now - past_move.planned_at < _HOUR
        }
        self._sources = {past_move.spec.source.card for past_move in recent}
        self._targets = {
            card
            for past_move in recent
            for card in (past_move.spec.target.card, past_move.landed)
            if card is not None
        }
        self._resting = _resting_owners(counted, policy=policy)
        self._failed = _last_failed(today)
        self._given_up = _given_up(past, policy=policy, now=now)

    def with_(self, move: MoveSpec) -> "Budgets":
        """Return the budgets as if *move* were under way as well."""
        planned = new_move(move, now=self._now)
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

    def shown(self, card: CardUuid) -> Move | None:
        """Return the move off a card that was shown this hour, while moves are only shown."""
        return None if self._policy.mode is Mode.ACTIVE else self._shown.get(card)

    def of_source(self, card: CardUuid) -> HoldReason | None:
        """Return why no pod may be moved off a card, or None."""
        return HoldReason.CARD_COOLDOWN if card in self._sources else None

    def closed_targets(self) -> frozenset[CardUuid]:
        """Return the cards onto which a pod was moved so lately that none may follow."""
        return frozenset(self._targets)

    def may_undo(self, pod_uid: str) -> bool:
        """Report whether a pod came by a move that helped nobody: it may move once more, at once.

        Back or onwards, whichever is expected to save more. After that its owner rests.
        """
        return pod_uid in self._failed

    def of_pod(
        self, pod_uid: str, *, owner_uid: str, namespace: str, plan: str = ""
    ) -> HoldReason | None:
        """Return why one pod may not be moved, for a plan if it is one of several, or None."""
        policy = self._policy
        if self.may_undo(pod_uid):
            return HoldReason.GIVEN_UP if owner_uid in self._given_up else None
        rules = (
            (owner_uid in self._resting, HoldReason.OWNER_COOLDOWN),
            (owner_uid in self._given_up, HoldReason.GIVEN_UP),
            (
                self._per_owner_day[owner_uid] >= policy.max_per_owner_per_day,
                HoldReason.OWNER_BUDGET,
            ),
            (
                len(self._of_namespace.get(namespace, set()) - {plan})
                >= policy.max_per_namespace_per_hour,
                HoldReason.NAMESPACE_BUDGET,
            ),
        )
        return next((reason for broken, reason in rules if broken), None)


def _plan(past_move: Move) -> object:
    """Return what the moves of one plan have in common; a move without one is its own."""
    return past_move.spec.plan or id(past_move)


def counts(past_move: Move) -> bool:
    """Report whether a move counts against the budgets: one that was only shown does not."""
    return not past_move.only_shown and (past_move.disturbed or past_move.under_way)


def counted_at(past_move: Move) -> datetime:
    """Return from when on a move counts: when it disturbed its pod, before that when it began."""
    return past_move.disturbed_at or past_move.planned_at


def _last_failed(today: Sequence[Move]) -> frozenset[str]:
    """Return the pods that a useless move brought, unless it was itself a move once more."""
    brought = {past_move.replacement_uid for past_move in today}
    moved = {past_move.spec.pod.uid for past_move in today}
    return frozenset(
        past_move.replacement_uid
        for past_move in today
        if past_move.useless
        and past_move.spec.pod.uid not in brought
        and past_move.replacement_uid not in moved
    ) - {""}


def _age(past_move: Move, now: datetime) -> timedelta:
    # A move under way has disturbed nobody yet, or only now: it counts however long ago it began.
    return timedelta.min if past_move.under_way else now - counted_at(past_move)


def _resting_owners(
    counted: Sequence[tuple[Move, timedelta]], *, policy: RebalancerPolicy
) -> frozenset[str]:
    """Return the owners that had a move lately; each move has its age.

    Each useless move doubles the cooldown, up to a day.
    """
    useless = Counter(past_move.spec.owner.uid for past_move, _ in counted if past_move.useless)
    latest: dict[str, timedelta] = {}
    for past_move, age in counted:
        owner = past_move.spec.owner.uid
        latest[owner] = min(age, latest.get(owner, age))

    def cooldown(owner: str) -> timedelta:
        doubled_s = policy.owner_cooldown_s * 2 ** min(useless[owner], _MOST_DOUBLINGS)
        return min(timedelta(seconds=doubled_s), _DAY)

    return frozenset(owner for owner, age in latest.items() if age < cooldown(owner))


def _given_up(past: Sequence[Move], *, policy: RebalancerPolicy, now: datetime) -> frozenset[str]:
    """Return the owners of which a move ended a short while ago before it disturbed a pod."""
    pause = timedelta(seconds=policy.give_up_cooldown_s)
    return frozenset(
        past_move.spec.owner.uid
        for past_move in past
        if not past_move.only_shown
        and not past_move.disturbed
        and past_move.ended_at is not None
        and now - past_move.ended_at < pause
    )


class Breaker(Enum):
    """What may open; the value is a metric label."""

    ABORTS = "aborts"
    LOST_POD = "lost_pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBreaker:
    """A breaker that is open, and why.

    Attributes:
        until: when it closes by itself if nothing more happens.
    """

    breaker: Breaker
    why: str
    until: datetime

    def __str__(self) -> str:
        return f"{self.breaker.value}: {self.why}; until {self.until:%Y-%m-%d %H:%M:%S %Z}"


def open_breakers(
    past: Sequence[Move], *, policy: RebalancerPolicy, now: datetime
) -> tuple[OpenBreaker, ...]:
    """Return every breaker that is open at *now*; the same input always gives the same answer."""
    since = policy.reset_breakers_at
    forgotten = since if since is not None and since <= now else None
    real = [
        past_move
        for past_move in past
        if not past_move.only_shown
        and past_move.ended_at is not None
        and (forgotten is None or past_move.ended_at > forgotten)
    ]
    return tuple(_from_moves(real, policy=policy, now=now))


def effective_mode(policy: RebalancerPolicy, breakers: Sequence[OpenBreaker]) -> Mode:
    """Return the mode in which new moves are planned: while a breaker is open, none is active."""
    return Mode.DRY_RUN if breakers and policy.mode is Mode.ACTIVE else policy.mode


def _from_moves(
    ended: Sequence[Move], *, policy: RebalancerPolicy, now: datetime
) -> Iterator[OpenBreaker]:
    window = timedelta(seconds=policy.breaker_window_s)
    aborted = _ends([past_move for past_move in ended if past_move.failed], window, now)
    if len(aborted) >= policy.breaker_aborts:
        were = "was" if len(aborted) == 1 else "were"
        why = f"{counted(len(aborted), 'move')} {were} aborted after a pod was disturbed"
        yield OpenBreaker(
            breaker=Breaker.ABORTS, why=why, until=aborted[-policy.breaker_aborts] + window
        )
    memory = timedelta(seconds=policy.breaker_lost_s)
    lost = _ends([past_move for past_move in ended if past_move.lost], memory, now)
    if lost:
        why = f"{len(lost)} pods were lost" if len(lost) > 1 else "a pod was lost"
        yield OpenBreaker(breaker=Breaker.LOST_POD, why=why, until=lost[-1] + memory)


def _ends(moves: Sequence[Move], memory: timedelta, now: datetime) -> list[datetime]:
    """Return when the moves that are still remembered ended, oldest first."""
    ends = sorted(past_move.ended_at for past_move in moves if past_move.ended_at is not None)
    return [at for at in ends if now - at < memory]
