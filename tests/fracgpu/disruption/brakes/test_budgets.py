"""Budgets: what counts, what does not, and that none is ever exceeded, whatever happens."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.brakes import (
    Breaker,
    Budgets,
    effective_mode,
    open_breakers,
)
from fracgpu.disruption.move import HoldReason
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.move_object import Ending, Move
from tests.fakes.clock import NOON
from tests.support.rebalancing import ACTIVE, a_move, a_past_move

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
DRY_RUN = replace(ACTIVE, mode=Mode.DRY_RUN)

MINUTE = timedelta(minutes=1)


def budgets(*past: Move, policy: RebalancerPolicy = ACTIVE, now: datetime = NOON) -> Budgets:
    return Budgets(past, policy=policy, now=now)


def of_pod(found: Budgets, **changes: str) -> HoldReason | None:
    subject = {"pod_uid": "pod-1", "owner_uid": "owner-1", "namespace": "ml", **changes}
    return found.of_pod(
        subject["pod_uid"], owner_uid=subject["owner_uid"], namespace=subject["namespace"]
    )


def undisturbed(*, ended_ago_s: float = 0, **past: Any) -> Move:
    ended_at = NOON - timedelta(seconds=ended_ago_s)
    return a_past_move(disturbed=False, ending=Ending.OUTDATED, ended_at=ended_at, **past)


def test_a_move_that_disturbed_nobody_counts_against_no_budget() -> None:
    many = [undisturbed(minutes_ago=m, ended_ago_s=60 * m) for m in range(1, 50)]

    found = budgets(*many)

    assert (found.in_flight, found.this_hour, found.of_cluster()) == (0, 0, None)
    assert found.of_source(CardUuid("GPU-elsewhere")) is None
    assert found.closed_targets() == frozenset()
    assert of_pod(found) is None


def test_but_its_owner_is_left_alone_for_a_while() -> None:
    past = undisturbed(owner_uid="owner-1", ended_ago_s=299)

    assert of_pod(budgets(past)) is HoldReason.GIVEN_UP
    assert of_pod(budgets(past, now=NOON + timedelta(seconds=1))) is None


@pytest.mark.parametrize("policy", [DRY_RUN, replace(ACTIVE, mode=Mode.RECOMMEND)])
def test_what_was_only_shown_is_no_cooldown_and_is_shown_once_an_hour(
    policy: RebalancerPolicy,
) -> None:
    shown = [
        a_past_move(minutes_ago=m, owner_uid="owner-1", ending=Ending.DRY_RUN, disturbed=False)
        for m in range(ACTIVE.max_per_hour)
    ]
    source = shown[0].spec.source.card

    for found in (budgets(*shown), budgets(*shown, policy=policy)):
        assert found.of_cluster() is None
        assert found.of_source(source) is None
        assert of_pod(found) is None
    assert budgets(*shown).shown(source) is None
    last = budgets(*shown, policy=policy).shown(source)
    assert last is not None
    assert last.planned_at == NOON
    an_hour_later = budgets(*shown, policy=policy, now=NOON + timedelta(hours=1))
    assert an_hour_later.shown(source) is None


def test_a_move_that_helped_nobody_is_undone_once_and_then_its_owner_rests() -> None:
    def tried(minutes_ago: float, pod: str, came: str, ending: Ending = Ending.USELESS) -> Move:
        return a_past_move(
            minutes_ago=minutes_ago,
            owner_uid="owner-1",
            pod_uid=pod,
            ending=ending,
            replacement_uid=came,
        )

    failed, undone = tried(20, "first", "second"), tried(2, "second", "third")
    relieved = tried(20, "first", "second", Ending.RELIEVED)

    def why(pod_uid: str, *past: Move) -> HoldReason | None:
        return budgets(*past).of_pod(pod_uid, owner_uid="owner-1", namespace="ml")

    assert why("second", failed) is None
    given_up = undisturbed(owner_uid="owner-1", ended_ago_s=299)
    assert why("second", failed, given_up) is HoldReason.GIVEN_UP
    assert why("other", failed) is HoldReason.OWNER_COOLDOWN
    assert why("third", failed, undone) is HoldReason.OWNER_COOLDOWN
    assert why("second", relieved) is HoldReason.OWNER_COOLDOWN


def test_a_backlog_is_cleared_fast_and_no_day_has_more_than_four_moves_an_hour() -> None:
    spread = [a_past_move(minutes_ago=61 + 15 * m) for m in range(ACTIVE.max_per_day)]

    assert ACTIVE.max_per_day <= 4 * 24
    assert budgets(*spread).of_cluster() is HoldReason.DAILY_BUDGET
    assert budgets(*spread[1:]).of_cluster() is None
    assert budgets(*spread, now=NOON + timedelta(hours=4)).of_cluster() is None


def test_a_move_under_way_counts_before_it_disturbs_a_pod() -> None:
    planned = a_past_move(under_way=True, minutes_ago=90, disturbed=False)
    one = replace(ACTIVE, max_in_flight=1)

    found = budgets(planned, policy=one)

    assert (found.in_flight, found.this_hour) == (1, 1)
    assert found.of_cluster() is HoldReason.MOVE_IN_FLIGHT


def test_an_hour_is_counted_from_the_disturbance_not_from_the_plan() -> None:
    late = a_past_move(minutes_ago=65, disturbed_at=NOON - timedelta(minutes=55))

    assert budgets(late).this_hour == 1
    assert budgets(a_past_move(minutes_ago=65)).this_hour == 0


@pytest.mark.parametrize(
    ("past", "reason"),
    [
        ({"owner_uid": "owner-1", "minutes_ago": 59}, HoldReason.OWNER_COOLDOWN),
        ({"owner_uid": "owner-1", "minutes_ago": 61}, None),
        ({"namespace": "other"}, None),
    ],
)
def test_a_pod_is_held_back_by_its_owners_last_move(
    past: dict[str, Any], reason: HoldReason | None
) -> None:
    older = a_past_move(owner_uid="owner-1", minutes_ago=300)

    assert of_pod(budgets(a_past_move(**past), older)) is reason


def test_a_namespace_has_its_own_hour() -> None:
    past = [a_past_move(minutes_ago=m, owner_uid=f"o{m}", pod_uid=f"p{m}") for m in (10, 20)]

    assert of_pod(budgets(*past)) is HoldReason.NAMESPACE_BUDGET
    assert of_pod(budgets(*past), namespace="other") is None
    assert of_pod(budgets(*past, now=NOON + timedelta(minutes=40))) is None


def test_an_owner_has_its_day() -> None:
    short = replace(ACTIVE, owner_cooldown_s=1)
    one = a_past_move(minutes_ago=30, owner_uid="owner-1")
    more = [a_past_move(minutes_ago=m, owner_uid="owner-1") for m in (200, 300)]

    assert of_pod(budgets(one, policy=short)) is None
    assert of_pod(budgets(one, *more, policy=short)) is HoldReason.OWNER_BUDGET


def test_replacements_that_name_each_other_end_the_search() -> None:
    a = a_past_move(pod_uid="a", owner_uid="x", replacement_uid="b", ending=Ending.USELESS)
    b = a_past_move(pod_uid="b", owner_uid="x", replacement_uid="a", ending=Ending.USELESS)

    assert not budgets(a, b).may_undo("a")


def test_a_card_rests_as_source_and_as_target() -> None:
    source, target, landed = CardUuid("s"), CardUuid("t"), CardUuid("l")
    past = a_past_move(minutes_ago=9, source=source, target=target, landed=landed)

    found = budgets(past)

    assert found.of_source(source) is HoldReason.CARD_COOLDOWN
    assert found.of_source(target) is None
    assert found.closed_targets() == {target, landed}
    later = budgets(past, now=NOON + timedelta(minutes=1))
    assert later.of_source(source) is None
    assert later.closed_targets() == frozenset()


def test_each_useless_move_doubles_the_owners_rest() -> None:
    useless, relieved = (
        a_past_move(minutes_ago=90, owner_uid="owner-1", ending=ending)
        for ending in (Ending.USELESS, Ending.RELIEVED)
    )

    assert of_pod(budgets(useless)) is HoldReason.OWNER_COOLDOWN
    assert of_pod(budgets(useless, now=NOON + timedelta(minutes=30))) is None
    assert of_pod(budgets(relieved)) is None


def test_a_planned_move_counts_at_once() -> None:
    move = a_move(owner_uid="owner-1")

    found = budgets().with_(move)

    assert (found.in_flight, found.this_hour) == (1, 1)
    assert of_pod(found) is HoldReason.OWNER_COOLDOWN
    assert budgets(policy=DRY_RUN).with_(move).in_flight == 1


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Somebody wants to move a pod: what would happen to the move."""

    after_s: int
    owner: int
    namespace: int
    pod: int
    source: int
    target: int
    disturbs_after_s: int | None
    lasts_s: int
    useless: bool


ATTEMPTS = st.lists(
    st.builds(
        Attempt,
        after_s=st.integers(0, 2400),
        owner=st.integers(0, 3),
        namespace=st.integers(0, 1),
        pod=st.integers(0, 4),
        source=st.integers(0, 5),
        target=st.integers(0, 5),
        disturbs_after_s=st.none() | st.integers(0, 600),
        lasts_s=st.integers(0, 900),
        useless=st.booleans(),
    ),
    max_size=60,
)
POLICIES = st.builds(
    RebalancerPolicy,
    mode=st.just(Mode.ACTIVE),
    max_in_flight=st.integers(1, 3),
    max_per_hour=st.integers(1, 6),
    max_per_day=st.integers(1, 9),
    max_per_namespace_per_hour=st.integers(1, 4),
    max_per_owner_per_day=st.integers(1, 4),
    owner_cooldown_s=st.sampled_from([1.0, 600.0]),
    card_cooldown_s=st.sampled_from([1.0, 600.0]),
    give_up_cooldown_s=st.sampled_from([0.0, 300.0]),
)


def observed_at(attempt: Attempt, began: datetime, now: datetime) -> Move:
    """Return a move as it is remembered at *now*."""
    end = began + timedelta(seconds=(attempt.disturbs_after_s or 0) + attempt.lasts_s)
    disturbed_at = (
        None
        if attempt.disturbs_after_s is None
        else began + timedelta(seconds=attempt.disturbs_after_s)
    )
    disturbed = disturbed_at is not None and disturbed_at <= now
    over = end <= now
    return a_past_move(
        minutes_ago=(NOON - began) / MINUTE,
        under_way=not over,
        ended_at=end if over else None,
        disturbed=disturbed,
        disturbed_at=disturbed_at if disturbed else None,
        ending=Ending.USELESS if over and disturbed and attempt.useless else None,
        pod_uid=f"pod-{attempt.pod}",
        owner_uid=f"owner-{attempt.owner}",
        namespace=f"ns-{attempt.namespace}",
        source=CardUuid(f"card-{attempt.source}"),
        source_node=f"node-{attempt.source // 2}",
        target=CardUuid(f"card-{attempt.target}"),
        target_node=f"node-{attempt.target // 2}",
    )


def allowed(found: Budgets, attempt: Attempt) -> bool:
    """Ask as the planner asks."""
    return not (
        found.of_cluster()
        or found.of_source(CardUuid(f"card-{attempt.source}"))
        or f"card-{attempt.target}" in found.closed_targets()
        or found.of_pod(
            f"pod-{attempt.pod}",
            owner_uid=f"owner-{attempt.owner}",
            namespace=f"ns-{attempt.namespace}",
        )
    )


def most_within(times: Iterable[datetime], span: timedelta) -> int:
    """Return the largest number of *times* in any half-open window of *span*."""
    ordered = sorted(times)
    return max((sum(first <= at < first + span for at in ordered) for first in ordered), default=0)


def grouped(
    begun: Sequence[tuple[Attempt, datetime]], key: Callable[[Attempt], object]
) -> list[list[datetime]]:
    """Return when pods were disturbed, by *key*."""
    found = defaultdict(list)
    for attempt, began in begun:
        if attempt.disturbs_after_s is not None:
            found[key(attempt)].append(began + timedelta(seconds=attempt.disturbs_after_s))
    return list(found.values())


@settings(deadline=None)
@given(ATTEMPTS, POLICIES)
def test_over_any_history_no_budget_is_ever_exceeded(
    attempts: list[Attempt], policy: RebalancerPolicy
) -> None:
    now, begun = NOON, list[tuple[Attempt, datetime]]()
    for attempt in attempts:
        now += timedelta(seconds=attempt.after_s)
        past = [observed_at(earlier, began, now) for earlier, began in begun]
        if allowed(budgets(*past, policy=policy, now=now), attempt):
            begun.append((attempt, now))
            flying = [observed_at(earlier, began, now) for earlier, began in begun]
            in_flight = [past_move for past_move in flying if past_move.under_way]
            assert len(in_flight) <= policy.max_in_flight

    limits: tuple[tuple[Callable[[Attempt], object], timedelta, int], ...] = (
        (lambda _: "cluster", HOUR, policy.max_per_hour),
        (lambda _: "cluster", DAY, policy.max_per_day),
        (lambda attempt: attempt.namespace, HOUR, policy.max_per_namespace_per_hour),
        (lambda attempt: attempt.owner, timedelta(seconds=policy.owner_cooldown_s), 1),
        (lambda attempt: attempt.owner, DAY, policy.max_per_owner_per_day),
        (lambda attempt: attempt.source, timedelta(seconds=policy.card_cooldown_s), 1),
        (lambda attempt: attempt.target, timedelta(seconds=policy.card_cooldown_s), 1),
    )
    for key, span, limit in limits:
        assert all(most_within(times, span) <= limit for times in grouped(begun, key))


def ended(*, minutes_ago: float, **changes: Any) -> Move:
    ended_at = NOON - timedelta(minutes=minutes_ago)
    return a_past_move(minutes_ago=minutes_ago + 5, ended_at=ended_at, **changes)


def aborted(minutes_ago: float, **changes: Any) -> Move:
    return ended(minutes_ago=minutes_ago, ending=Ending.NOT_READY, **changes)


def opened(
    *past: Move, policy: RebalancerPolicy = ACTIVE, now: datetime = NOON
) -> dict[Breaker, datetime]:
    found = open_breakers(past, policy=policy, now=now)
    return {breaker.breaker: breaker.until for breaker in found}


def test_two_aborts_after_a_disturbance_open_it_until_the_older_one_is_forgotten() -> None:
    past = (aborted(29), aborted(3))

    assert opened(past[1]) == {}
    assert opened(*past) == {Breaker.ABORTS: NOON + MINUTE}
    assert opened(*past, now=NOON + MINUTE) == {}


def test_what_was_given_up_before_it_disturbed_a_pod_opens_nothing() -> None:
    past = [aborted(m, disturbed=False) for m in range(1, 20)]

    assert opened(*past) == {}


@pytest.mark.parametrize(
    "ending",
    [
        Ending.SCALED_DOWN,
        Ending.ROLLOUT,
        Ending.POD_GONE,
        Ending.OWNER_GONE,
        Ending.PAUSED,
        Ending.DRY_RUN,
    ],
)
def test_what_users_did_meanwhile_or_was_only_shown_opens_nothing(ending: Ending) -> None:
    assert opened(*(ended(minutes_ago=m, ending=ending) for m in range(1, 20))) == {}


def test_it_says_how_many_pods_were_lost() -> None:
    one, two = (ended(minutes_ago=minutes, ending=Ending.LOST) for minutes in (10, 20))

    def why(*past: Move) -> list[str]:
        found = open_breakers(past, policy=ACTIVE, now=NOON)
        return [breaker.why for breaker in found if breaker.breaker is Breaker.LOST_POD]

    assert why(one) == ["a pod was lost"]
    assert why(one, two) == ["2 pods were lost"]


def test_one_lost_pod_opens_it_for_a_day() -> None:
    lost = ended(minutes_ago=10, ending=Ending.LOST)

    assert opened(lost) == {Breaker.LOST_POD: NOON + timedelta(days=1) - 10 * MINUTE}
    assert opened(lost, now=NOON + timedelta(days=1)) == {}


def test_an_administrator_closes_them_and_they_open_again_on_what_comes_after() -> None:
    past = [aborted(3), aborted(2), ended(minutes_ago=2, ending=Ending.LOST)]
    reset = replace(ACTIVE, reset_breakers_at=NOON - timedelta(seconds=30))

    assert len(opened(*past)) == 2
    assert opened(*past, policy=reset) == {}
    after = ended(minutes_ago=0.25, ending=Ending.LOST)
    assert set(opened(*past, after, policy=reset)) == {Breaker.LOST_POD}


def test_a_reset_in_the_future_closes_nothing_yet() -> None:
    reset = replace(ACTIVE, reset_breakers_at=NOON + MINUTE)

    assert set(opened(aborted(3), aborted(2), policy=reset)) == {Breaker.ABORTS}


def test_while_one_is_open_active_becomes_a_dry_run_and_no_other_mode_changes() -> None:
    breakers = open_breakers([aborted(3), aborted(2)], policy=ACTIVE, now=NOON)

    assert effective_mode(ACTIVE, ()) is Mode.ACTIVE
    assert effective_mode(ACTIVE, breakers) is Mode.DRY_RUN
    for mode in (Mode.OFF, Mode.RECOMMEND, Mode.DRY_RUN):
        assert effective_mode(replace(ACTIVE, mode=mode), breakers) is mode


def test_it_says_why_and_until_when() -> None:
    (breaker,) = open_breakers([aborted(29), aborted(3)], policy=ACTIVE, now=NOON)

    assert str(breaker) == (
        f"aborts: 2 moves were aborted after a pod was disturbed; until {NOON:%Y-%m-%d} "
        "12:01:00 UTC"
    )


@given(
    st.lists(
        st.builds(
            ended,
            minutes_ago=st.floats(0, 10_000),
            disturbed=st.booleans(),
            ending=st.sampled_from(Ending),
        ),
        max_size=30,
    )
)
def test_every_breaker_closes_by_itself_when_it_said(past: list[Move]) -> None:
    for breaker in open_breakers(past, policy=ACTIVE, now=NOON):
        assert NOON < breaker.until <= NOON + timedelta(days=7)
        just_before = breaker.until - timedelta(microseconds=1)
        assert breaker.breaker in opened(*past, now=just_before)
        assert breaker.breaker not in opened(*past, now=breaker.until)
