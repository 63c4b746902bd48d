"""What follows from each answer of the API server, and what undoes a surge: pure, without one."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.heat import Heat
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.state.move_object import Ending, Move, MoveMode, MovePhase
from rebalancer.moves.steps import (
    Action,
    Do,
    Enter,
    EvictionOutcome,
    EvictionResult,
    MoveFacts,
    OwnerFacts,
    ReplacementFacts,
    Step,
    StepContext,
    VictimFacts,
    Wait,
    evict_answered,
    evicted,
    evicting,
    next_step,
    noticed,
    preflight_answered,
    replacement_ready,
    surging,
    verifying,
    why_roll_back,
)
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_move,
    a_node,
    a_placed_pod,
    a_reading,
)
from tests.support.records import a_record, a_replacement

ACTIVE = RebalancerPolicy(mode=Mode.ACTIVE, startup_grace_s=0)
OTHER_CARD = CardUuid("GPU-other")
OWNER = OwnerFacts(there=True, observed=True, desired=2, ready=2)
RELEASED = VictimFacts(there=True, running=True, hash_label="abc.moved", moved_by="m")
READY = ReplacementFacts(name="new", uid="new", node="n2", card=COOL_CARD, ready=True)


def a_context(**changes: Any) -> StepContext:
    defaults: dict[str, Any] = {"state": a_disruption_state(), "nodes": {}, "now": NOON}
    return StepContext(**({"policy": ACTIVE} | defaults | changes))


def facts(
    replacement: ReplacementFacts | None = None, *, victim: VictimFacts = RELEASED
) -> MoveFacts:
    return MoveFacts(victim=victim, owner=OWNER, replacement=replacement)


def moving(mode: MoveMode, phase: MovePhase) -> Move:
    return a_record(phase, move=a_move(mode=mode))


def ended(step: Step) -> Ending | None:
    return step.move.ending if isinstance(step, Enter) else None


def with_spec(record: Move, **changes: Any) -> Move:
    return structs.replace(record, spec=structs.replace(record.spec, **changes))


@pytest.mark.parametrize(("prepared", "after_s", "waits"), [
    (False, 10, True), (True, 10, False), (False, 601, False),
])  # fmt: skip
def test_a_pod_that_wants_time_is_waited_for_until_it_is_ready_or_the_time_is_over(
    prepared: bool, after_s: float, waits: bool
) -> None:
    record = with_spec(moving(MoveMode.EVICT, MovePhase.NOTICED), grace_s=600.0)
    told = VictimFacts(
        there=True,
        running=True,
        notice="2026-01-05T12:10:00Z",
        prepared=prepared,
        controller_uid=record.spec.owner.uid,
    )
    context = a_context(now=NOON + timedelta(seconds=after_s))

    step = noticed(record, facts(victim=told), context)

    # Without a cordon it then waits for that.
    said = "the notice of 600 s" if waits else "the cordon of its card"
    assert step == Wait(said)
    assert noticed(record, facts(victim=replace(told, notice="")), context) == Do(Action.NOTICE)


@pytest.mark.parametrize("phase", [MovePhase.PLANNED, MovePhase.NOTICED, MovePhase.EVICTING])
def test_a_pod_stays_whose_target_another_pod_of_its_owner_got_before(phase: MovePhase) -> None:
    """Whoever is scaled up takes what is reserved, and nothing would be left for this pod."""
    record = moving(MoveMode.EVICT, phase)
    pod = VictimFacts(there=True, running=True, controller_uid=record.spec.owner.uid)

    step = next_step(record, facts(READY, victim=pod), a_context(now=NOON + timedelta(seconds=15)))

    assert ended(step.then or step if isinstance(step, Do) else step) is Ending.TARGET_LOST


@pytest.mark.parametrize("phase", [MovePhase.PLANNED, MovePhase.EVICTING])
def test_a_pod_stays_whose_job_its_eviction_would_fail(phase: MovePhase) -> None:
    record = moving(MoveMode.EVICT, phase)
    pod = VictimFacts(there=True, running=True, controller_uid=record.spec.owner.uid)
    found = replace(facts(victim=pod), owner=replace(OWNER, fragile=True))

    step = next_step(record, found, a_context())

    assert ended(step.then or step if isinstance(step, Do) else step) is Ending.REFUSED


def test_a_replacement_may_take_twice_as_long_as_others_of_its_owner() -> None:
    slow = with_spec(moving(MoveMode.EVICT, MovePhase.EVICTED), startup_s=900.0)
    usual = moving(MoveMode.EVICT, MovePhase.EVICTED)
    late = a_context(now=NOON + timedelta(seconds=1700))

    assert evicted(slow, facts(), late) == Wait("the replacement is not Ready yet")
    assert ended(evicted(usual, facts(), late)) is Ending.LOST


def test_a_pod_that_ends_slowly_is_not_lost_and_its_target_is_held_until_it_is_replaced() -> None:
    """A StatefulSet makes the next pod of a name only then."""
    ends_by = NOON + timedelta(hours=1)
    pod = a_placed_pod("pod-x", record={"terminating": True}, ends_by=ends_by)
    old = a_disruption_state(pods=[pod])
    record = moving(MoveMode.EVICT, MovePhase.EVICTED)
    for minutes in range(0, 60, 5):
        now = NOON + timedelta(minutes=minutes)
        step = evicted(record, facts(), a_context(state=old, now=now))
        record = step.move if isinstance(step, Enter) else record
        assert record.phase is MovePhase.EVICTED
        assert record.reserved_until - now >= timedelta(minutes=5)

    over = a_context(state=old, now=ends_by)
    assert evicted(record, facts(), over) == Wait("the replacement is not Ready yet")
    late = a_context(state=old, now=ends_by + timedelta(minutes=10))  # as on a node that is lost
    assert ended(evicted(record, facts(), late)) is Ending.LOST


def test_a_move_is_verified_once_the_old_pod_is_gone() -> None:
    """With a grace period of an hour it uses the source long after its replacement is Ready."""
    old = a_placed_pod("pod-x", record={"terminating": True})
    there = a_context(state=a_disruption_state(pods=[old]), now=NOON + timedelta(seconds=900))
    record = moving(MoveMode.EVICT, MovePhase.VERIFYING)

    step = verifying(record, facts(), there)
    assert isinstance(step, Enter)
    assert step.move.phase is MovePhase.VERIFYING
    assert verifying(step.move, facts(), there) == Wait("the old pod has not ended yet")
    gone = a_context(now=NOON + timedelta(seconds=930))
    assert verifying(step.move, facts(), gone) == Wait("the cards have to settle")
    settled = verifying(step.move, facts(), a_context(now=NOON + timedelta(seconds=1501)))
    assert ended(settled) is not None


@pytest.mark.parametrize("mode", MoveMode)
@pytest.mark.parametrize(
    ("outcome", "ending"),
    [
        (EvictionOutcome.GONE, Ending.POD_GONE),
        (EvictionOutcome.OTHER_POD, Ending.POD_GONE),
        (EvictionOutcome.REFUSED, Ending.REFUSED),
        (EvictionOutcome.BUSY, None),
        (EvictionOutcome.UNCLEAR, None),
        (EvictionOutcome.CHANGED, None),
    ],
)
def test_a_dry_run_that_is_refused_for_good_ends_the_plan_and_else_it_waits(
    mode: MoveMode, outcome: EvictionOutcome, ending: Ending | None
) -> None:
    result = EvictionResult(outcome=outcome, detail="said so")

    step = preflight_answered(moving(mode, MovePhase.PLANNED), result, a_context())

    assert ended(step) is ending
    if ending is None:
        assert step == Wait("said so")


@pytest.mark.parametrize(
    ("mode", "phase"),
    [(MoveMode.EVICT, MovePhase.ABORTED), (MoveMode.SURGE, MovePhase.ROLLING_BACK)],
)
def test_an_eviction_that_is_refused_for_good_is_withdrawn_and_given_up(
    mode: MoveMode, phase: MovePhase
) -> None:
    result = EvictionResult(outcome=EvictionOutcome.REFUSED, detail="a webhook denied it")

    step = evict_answered(
        moving(mode, MovePhase.EVICTING), result, facts(READY), a_context(), jitter=0.0
    )

    assert isinstance(step, Do)
    assert (step.action, ended(step.then or Wait(""))) == (Action.WITHDRAW, Ending.REFUSED)
    assert step.then is not None
    assert (step.then.move.phase, step.then.move.status.message) == (
        phase,
        "a webhook denied it",
    )


def test_a_pod_whose_target_was_closed_while_its_eviction_was_refused_stays() -> None:
    nodes = (
        a_node("n1", HOT_CARD),
        replace(a_node("n2", COOL_CARD), drained=frozenset({COOL_CARD})),
    )
    context = a_context(state=a_disruption_state(nodes=nodes))
    record = moving(MoveMode.EVICT, MovePhase.EVICTING)

    step = evicting(record, facts(), context)

    assert isinstance(step, Do)
    assert (step.action, ended(step.then or Wait(""))) == (Action.WITHDRAW, Ending.TARGET_LOST)
    assert evicting(record, facts(), a_context()) == Do(Action.EVICT)


@pytest.mark.parametrize(("jitter", "pause_s"), [(0.0, 5.0), (1.0, 10.0)])
def test_an_eviction_that_is_blocked_is_tried_again_after_half_to_a_whole_pause(
    jitter: float, pause_s: float
) -> None:
    record = moving(MoveMode.EVICT, MovePhase.EVICTING)
    result = EvictionResult(outcome=EvictionOutcome.BLOCKED)

    step = evict_answered(record, result, facts(), a_context(), jitter=jitter)

    assert isinstance(step, Enter)
    assert step.move.status.retry_at == NOON + timedelta(seconds=pause_s)


@pytest.mark.parametrize(
    ("card", "heat", "level_ratio", "ending"),
    [
        (OTHER_CARD, Heat.COOL, 0.05, None),
        (OTHER_CARD, Heat.HOT, 0.05, Ending.MISPLACED),
        (OTHER_CARD, Heat.COOL, None, Ending.MISPLACED),
        # With what the replacement is going to use it would be hot.
        (OTHER_CARD, Heat.COOL, 0.5, Ending.MISPLACED),
        # Calm by now, and it is still the card that the pod was to leave.
        (HOT_CARD, Heat.COOL, 0.05, Ending.MISPLACED),
    ],
)
def test_a_replacement_on_another_card_stays_only_where_that_is_known_to_be_cool(
    card: CardUuid, heat: Heat, level_ratio: float | None, ending: Ending | None
) -> None:
    state = a_disruption_state(
        nodes=[a_node("n1", HOT_CARD), a_node("n2", COOL_CARD, OTHER_CARD)],
        readings={card: None if level_ratio is None else a_reading(level_ratio)},
        heat={card: heat},
    )
    record = moving(MoveMode.SURGE, MovePhase.SURGING)

    found = why_roll_back(record, facts(replace(READY, card=card)), a_context(state=state))

    where = f"the replacement got card {card} on n2, which is not known to be cool"
    assert found == (None if ending is None else (ending, where))


def test_a_replacement_without_a_card_is_misplaced() -> None:
    record = moving(MoveMode.SURGE, MovePhase.SURGING)

    found = why_roll_back(record, facts(replace(READY, card=None)), a_context())

    assert found == (Ending.MISPLACED, "the replacement has no card")


def test_a_surge_is_undone_once_its_reservation_has_lapsed_unless_the_replacement_is_bound() -> (
    None
):
    record = moving(MoveMode.SURGE, MovePhase.SURGING)
    lapsed = a_context(now=record.reserved_until)

    assert why_roll_back(record, facts(), a_context()) is None
    assert why_roll_back(record, facts(), lapsed) == (
        Ending.LAPSED,
        "the reservation lapsed before it was used",
    )
    assert why_roll_back(record, facts(READY), lapsed) is None


def test_a_pod_is_not_evicted_for_a_replacement_if_its_owner_lacks_another_pod_or_that_is_hot() -> (
    None
):
    """One that an autoscaler adds may get what is reserved, and the replacement find no room."""
    record = moving(MoveMode.SURGE, MovePhase.REPLACEMENT_READY).with_status(
        replacement=a_replacement("new", "new", node="n2", card=COOL_CARD)
    )
    later = a_context(now=NOON + timedelta(seconds=ACTIVE.ready_s))
    ready = replace(facts(READY), owner=replace(OWNER, others=2))
    hot = replace(ready, replacement=replace(READY, card=HOT_CARD))

    steps = [replacement_ready(record, each, later) for each in (ready, facts(READY), hot)]

    assert [step.move.phase for step in steps if isinstance(step, Enter)] == [
        MovePhase.EVICTING,
        MovePhase.SURGING,
        MovePhase.ROLLING_BACK,
    ]
    assert ended(steps[-1]) is Ending.MISPLACED
    waiting = surging(moving(MoveMode.SURGE, MovePhase.SURGING), facts(READY), later)
    assert isinstance(waiting, Enter)  # the replacement is noted first
    assert surging(waiting.move, facts(READY), later) == Wait(
        "another pod of its owner is not Ready"
    )
