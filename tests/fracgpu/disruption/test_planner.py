"""Plans: the best pair, within every budget, and never onto a card without a trusted reading."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid, Health, NodeCards
from fracgpu.disruption.change_freeze import ChangeFreeze, parse_schedule
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import CardHeat, Heat, ReadingQuality
from fracgpu.disruption.move import HeldBack, HoldReason, Plan
from fracgpu.disruption.planner import (
    advance_all,
    cards_to_avoid,
    cards_to_cordon,
    first_heat,
    plan_moves,
    validate_move,
)
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.placement.snapshot_index import SnapshotIndex
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import Ending, Move
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.moves import a_beneficiary
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_move,
    a_node,
    a_past_move,
    a_placed_pod,
    a_reading,
    usage_of,
)


def plan(state: DisruptionState, policy: RebalancerPolicy = ACTIVE) -> Plan:
    return plan_moves(state, policy=policy, now=NOON)


def avoided_in(state: DisruptionState) -> frozenset[CardUuid]:
    cordoned = cards_to_cordon(state, policy=ACTIVE, now=NOON)
    return cards_to_avoid(state, cordoned=cordoned, policy=ACTIVE, now=NOON)


def reasons(found: Plan) -> set[HoldReason]:
    return {held.reason for held in found.held}


BUSY = a_reading(0.9, pods={"pod-a": 0.45, "pod-b": 0.45})
FAILING = replace(
    a_node("n1", HOT_CARD),
    cards=(replace(a_node("n1", HOT_CARD).cards[0], health=Health.UNHEALTHY),),
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"readings": {HOT_CARD: a_reading(0.9, pods={"pod-a": 0.85})}}, HoldReason.ONE_POD_ALONE),
        ({"readings": {HOT_CARD: replace(BUSY, repeating=True)}}, HoldReason.BLIND),
        ({"readings": {HOT_CARD: replace(BUSY, latest_ratio=0.0)}}, HoldReason.CALM_NOW),
        ({"nodes": [FAILING, a_node("n2", COOL_CARD)]}, HoldReason.BROKEN),
        ({"readings": {COOL_CARD: None}}, HoldReason.BLIND),
        ({"readings": {HOT_CARD: None}, "heat": {HOT_CARD: Heat.HOT}}, HoldReason.BLIND),
        ({"leading_since": NOON - timedelta(minutes=9)}, HoldReason.STARTING),
        ({"past": [a_past_move(under_way=True) for _ in range(3)]}, HoldReason.MOVE_IN_FLIGHT),
        ({"past": [a_past_move(minutes_ago=9, source=HOT_CARD)]}, HoldReason.CARD_COOLDOWN),
        ({"heat": {COOL_CARD: Heat.WARMING}}, HoldReason.NO_TARGET),
        ({"readings": {COOL_CARD: a_reading(0.6)}}, HoldReason.NO_TARGET),
        ({"past": [a_past_move(minutes_ago=9, target=COOL_CARD)]}, HoldReason.NO_TARGET),
        (
            {
                "past": [
                    a_past_move(
                        minutes_ago=30, owner_uid="owner-1", source=COOL_CARD, namespace="x"
                    )
                ]
            },
            HoldReason.OWNER_COOLDOWN,
        ),
        ({"nodes": [a_node("n1", HOT_CARD)], "readings": {}}, HoldReason.NO_TARGET),
        (
            {"nodes": [a_node("n1", HOT_CARD), a_node("n2", COOL_CARD, model="A100")]},
            HoldReason.NO_TARGET,
        ),
    ],
)
def test_nothing_moves_and_the_plan_says_why(changes: dict[str, Any], reason: HoldReason) -> None:
    found = plan(a_disruption_state(**changes))

    assert found.moves == ()
    assert reason in reasons(found)


def test_a_card_that_a_replacement_is_on_its_way_to_is_no_target() -> None:
    policy = replace(ACTIVE, max_in_flight=2, card_cooldown_s=1)
    coming, there = (
        a_past_move(
            under_way=under_way, target=COOL_CARD, target_node="n2", mib=Mib(1), busy_ratio=0.0
        )
        for under_way in (True, False)
    )

    assert reasons(plan(a_disruption_state(past=[coming]), policy)) == {HoldReason.NO_TARGET}
    assert len(plan(a_disruption_state(past=[there]), policy).moves) == 1


def test_a_pod_is_not_moved_back_to_a_card_its_owner_left() -> None:
    policy = replace(ACTIVE, owner_cooldown_s=60)

    def planned(minutes_ago: float) -> Plan:
        left = a_past_move(minutes_ago=minutes_ago, owner_uid="owner-1", source=COOL_CARD)
        return plan(a_disruption_state(past=[left]), policy)

    assert reasons(planned(59)) == {HoldReason.NO_TARGET}
    assert len(planned(60).moves) == 1


def test_a_card_that_a_pod_is_being_moved_off_is_no_target_whatever_its_heat() -> None:
    policy = replace(ACTIVE, max_in_flight=2)
    leaving = a_past_move(under_way=True, source=COOL_CARD, source_node="n2")

    assert reasons(plan(a_disruption_state(past=[leaving]), policy)) == {HoldReason.NO_TARGET}


def test_switched_off_it_plans_nothing() -> None:
    found = plan(a_disruption_state(), replace(ACTIVE, mode=Mode.OFF))

    assert found.moves == ()
    assert reasons(found) == {HoldReason.OFF}


def test_a_dry_run_decides_like_a_real_one() -> None:
    assert plan(a_disruption_state(), replace(ACTIVE, mode=Mode.DRY_RUN)) == plan(
        a_disruption_state()
    )


def test_a_cluster_that_is_hot_throughout_keeps_most_cards_open_and_avoids_them() -> None:
    uuids = [f"GPU-{n:02}" for n in range(12)]
    readings = {uuid: a_reading(0.9 + n / 200) for n, uuid in enumerate(uuids)}
    state = a_disruption_state(
        nodes=[a_node("n1", *uuids)], pods=[], readings={**readings, HOT_CARD: None}
    )
    closed = cards_to_cordon(state, policy=ACTIVE, now=NOON)

    assert closed == {"GPU-11", "GPU-10", "GPU-09"}
    assert avoided_in(state) == set(uuids) - closed


def test_a_card_that_is_freed_for_a_waiting_pod_is_neither_cordoned_nor_taken_for_hot() -> None:
    kept = a_beneficiary("GPU-cool")
    moved = a_past_move(source=COOL_CARD, under_way=True, beneficiary=kept)
    state = a_disruption_state(past=[moved])

    assert COOL_CARD not in cards_to_cordon(state, policy=ACTIVE, now=NOON)
    assert first_heat(COOL_CARD, [moved], policy=ACTIVE, now=NOON).heat is Heat.COOL


@pytest.mark.parametrize(
    ("heat", "since_minutes", "cordoned", "avoided"),
    [
        (Heat.COOL, 1, False, False),
        (Heat.WARMING, 1, False, True),
        (Heat.HOT, 1, True, False),
        (Heat.RELIEVING, 1, True, False),
        (Heat.SETTLING, 9, True, False),
        (Heat.SETTLING, 11, False, True),
    ],
)
def test_new_slices_are_kept_off_cards_by_their_heat(
    heat: Heat, since_minutes: int, cordoned: bool, avoided: bool
) -> None:
    since = NOON - timedelta(minutes=since_minutes)
    state = replace(a_disruption_state(), heat={HOT_CARD: CardHeat(heat=heat, since=since)})
    assert (HOT_CARD in cards_to_cordon(state, policy=ACTIVE, now=NOON)) is cordoned
    assert (HOT_CARD in avoided_in(state)) is avoided


def relieved(
    *,
    minutes_ago: float,
    level_ratio: float | None,
    others: Mapping[str, float] = MappingProxyType({}),
    **changes: Any,
) -> DisruptionState:
    """Return a state in which a pod left the card that was hot, and another card is at 0.3."""
    levels = {COOL_CARD: 0.3, **others}
    past = a_past_move(
        minutes_ago=minutes_ago + 5,
        source=HOT_CARD,
        ended_at=NOON - timedelta(minutes=minutes_ago),
        **changes,
    )
    return a_disruption_state(
        readings={
            **{uuid: a_reading(level) for uuid, level in levels.items()},
            HOT_CARD: None if level_ratio is None else a_reading(level_ratio),
        },
        past=[past],
        pods=[],
    )


@pytest.mark.parametrize(
    ("level_ratio", "others"),
    [(0.31, {}), (0.31, dict.fromkeys("abc", 0.7)), (None, {})],
    ids=["others are cooler", "one card is cooler", "it is not measured any more"],
)
def test_a_relieved_card_is_avoided_unless_it_is_known_to_be_the_coolest(
    level_ratio: float | None, others: dict[str, float]
) -> None:
    state = relieved(minutes_ago=20, level_ratio=level_ratio, others=others)
    assert avoided_in(state) == {HOT_CARD}


def test_a_closed_card_is_not_compared_with_a_relieved_one() -> None:
    """No pod would get it instead."""
    state = relieved(minutes_ago=20, level_ratio=0.5)
    hot = replace(state.heat[COOL_CARD], heat=Heat.HOT)
    closed = replace(state, heat={**state.heat, COOL_CARD: hot})

    assert cards_to_cordon(closed, policy=ACTIVE, now=NOON) == {COOL_CARD}
    assert avoided_in(closed) == frozenset()


@pytest.mark.parametrize(
    "state",
    [
        relieved(minutes_ago=20, level_ratio=0.2),
        relieved(minutes_ago=20, level_ratio=0.3),
        relieved(minutes_ago=61, level_ratio=0.5),
        relieved(minutes_ago=20, level_ratio=0.5, disturbed=False),
        relieved(minutes_ago=20, level_ratio=0.5, ending=Ending.DRY_RUN),
    ],
    ids=["it is the coolest", "no other is cooler", "long ago", "no pod left it", "only shown"],
)
def test_a_card_that_nobody_needs_to_keep_off_is_not_avoided(state: DisruptionState) -> None:
    assert avoided_in(state) == frozenset()


def test_a_warm_card_that_is_not_measured_any_more_is_not_avoided_anew() -> None:
    state = a_disruption_state(readings={HOT_CARD: None}, heat={HOT_CARD: Heat.WARMING})

    assert avoided_in(state) == frozenset()


def test_a_hot_card_that_is_not_measured_any_more_is_left_to_its_lapsing_cordon() -> None:
    state = a_disruption_state(readings={HOT_CARD: None}, heat={HOT_CARD: Heat.HOT})
    moving = replace(state, past=[a_past_move(source=HOT_CARD, under_way=True)])

    assert cards_to_cordon(state, policy=ACTIVE, now=NOON) == frozenset()
    assert cards_to_cordon(moving, policy=ACTIVE, now=NOON) == {HOT_CARD}


def test_a_restarted_rebalancer_knows_from_its_record_which_cards_it_was_working_on() -> None:
    def heat(*past: Move) -> CardHeat:
        return first_heat(HOT_CARD, past, policy=ACTIVE, now=NOON)

    lately = NOON - timedelta(minutes=9)
    ended = a_past_move(source=HOT_CARD, ended_at=lately)
    before = a_past_move(source=HOT_CARD, ended_at=NOON - timedelta(minutes=11))
    cool = CardHeat(heat=Heat.COOL, since=NOON)
    assert heat() == cool
    assert heat(a_past_move()) == cool
    assert heat(a_past_move(source=HOT_CARD, under_way=True)).heat is Heat.RELIEVING
    assert heat(ended, before) == CardHeat(heat=Heat.SETTLING, since=lately)
    assert heat(before) == cool


def test_a_card_is_being_relieved_while_a_pod_is_on_its_way_off_it() -> None:
    hot = CardHeat(heat=Heat.HOT, since=NOON - timedelta(minutes=5))
    usage = {HOT_CARD: usage_of(HOT_CARD, BUSY), COOL_CARD: usage_of(COOL_CARD, a_reading(0.5))}
    leaving = a_past_move(source=HOT_CARD, under_way=True)
    left = a_past_move(source=COOL_CARD, ended_at=NOON - timedelta(minutes=1))

    def heat(*past: Move) -> dict[CardUuid, Heat]:
        after = advance_all({HOT_CARD: hot}, usage, past, policy=ACTIVE, now=NOON)
        return {uuid: card_heat.heat for uuid, card_heat in after.items()}

    assert heat() == {HOT_CARD: Heat.HOT, COOL_CARD: Heat.COOL}
    assert heat(leaving, left) == {HOT_CARD: Heat.RELIEVING, COOL_CARD: Heat.SETTLING}


def test_a_card_has_no_heat_before_its_first_trusted_reading() -> None:
    usage = {HOT_CARD: usage_of(HOT_CARD, None), COOL_CARD: usage_of(COOL_CARD, a_reading())}

    heat = advance_all({}, usage, (), policy=ACTIVE, now=NOON)

    assert {uuid: card_heat.heat for uuid, card_heat in heat.items()} == {COOL_CARD: Heat.COOL}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"readings": {HOT_CARD: None}}, HoldReason.NOT_MEASURED),
        ({"readings": {HOT_CARD: a_reading(0.6)}}, HoldReason.NO_GAIN),
        ({"readings": {HOT_CARD: replace(BUSY, repeating=True)}}, HoldReason.REPEATING),
        ({"readings": {HOT_CARD: replace(BUSY, latest_ratio=0.6)}}, HoldReason.CALM_NOW),
        ({"pods": [a_placed_pod("pod-b")]}, HoldReason.NOT_KNOWN),
        ({"heat": {COOL_CARD: Heat.HOT}}, HoldReason.NO_TARGET),
        (
            {"pods": [a_placed_pod("pod-a"), a_placed_pod("pod-b", ready=False)]},
            HoldReason.REPLICAS_NOT_READY,
        ),
        ({"pods": [a_placed_pod("pod-a", COOL_CARD, node="n2")]}, HoldReason.NOT_KNOWN),
    ],
)
def test_a_planned_move_is_looked_at_again(
    changes: dict[str, Any], reason: HoldReason | None
) -> None:
    move = a_move(pod_uid="pod-a", name="pod-a", owner_uid="owner-1")
    changes = {"heat": {HOT_CARD: Heat.RELIEVING}, **changes}

    held = validate_move(a_disruption_state(**changes), move, policy=ACTIVE, now=NOON)

    assert (held.reason if held else None) is reason


FREEZE = ChangeFreeze(
    text="", schedule=parse_schedule("0 11 * * *"), zone=UTC, duration=timedelta(hours=2)
)


@pytest.mark.parametrize(
    ("policy", "reason", "detail"),
    [
        ({"paused": True}, HoldReason.PAUSED, ""),
        ({"change_freezes": (FREEZE,)}, HoldReason.CHANGE_FREEZE, "until 2026-01-05 13:00 UTC"),
    ],
)
def test_paused_or_in_a_change_freeze_nothing_is_begun_and_the_plan_says_why(
    policy: dict[str, Any], reason: HoldReason, detail: str
) -> None:
    found = plan(a_disruption_state(), replace(ACTIVE, **policy))

    assert found.moves == ()
    assert found.held == (HeldBack(subject="cluster", reason=reason, detail=detail),)


HEATS = (*[Heat.COOL] * 5, *Heat)  # else hardly any state has two targets


@st.composite
def states(draw: st.DrawFn) -> DisruptionState:
    """Small clusters with any heat, reading quality, allocations and past moves."""
    nodes: list[NodeCards] = []
    readings: dict[str, Any] = {HOT_CARD: None, COOL_CARD: None}
    heat: dict[str, Heat] = {HOT_CARD: Heat.COOL, COOL_CARD: Heat.COOL}
    pods: list[PlacedPod] = []
    for n in range(draw(st.integers(1, 3))):
        cards = [f"GPU-{n}-{c}" for c in range(draw(st.integers(1, 3)))]
        nodes.append(a_node(f"n{n}", *cards))
        for uuid in cards:
            busy = {}
            for _ in range(draw(st.integers(0, 4))):
                uid = f"pod-{len(pods)}"
                owner = ("ReplicaSet", "web", f"owner-{draw(st.integers(0, 3))}")
                mib = draw(st.integers(500, 9000))
                pods.append(a_placed_pod(uid, CardUuid(uuid), node=f"n{n}", mib=mib, owner=owner))
                busy[uid] = draw(st.sampled_from([0.0, 0.05, 0.2, 0.3, 0.45, 0.7]))
            trusted = draw(st.sampled_from([True, True, True, True, False]))
            level = min(1.0, sum(busy.values()))
            readings[uuid] = a_reading(level, pods=busy) if trusted else None
            heat[uuid] = Heat.HOT if level > ACTIVE.hot_ratio else draw(st.sampled_from(HEATS))
    past = [
        a_past_move(
            minutes_ago=draw(st.integers(0, 1500)),
            under_way=draw(st.booleans()),
            owner_uid=f"owner-{draw(st.integers(0, 3))}",
            pod_uid=f"gone-{n}",
        )
        for n in range(draw(st.integers(0, 3)))
    ]
    return a_disruption_state(nodes=nodes, pods=pods, readings=readings, heat=heat, past=past)


def policies() -> st.SearchStrategy[RebalancerPolicy]:
    return st.builds(
        RebalancerPolicy,
        mode=st.sampled_from([Mode.ACTIVE, Mode.DRY_RUN]),
        max_in_flight=st.integers(1, 4),
        max_per_hour=st.integers(1, 6),
        max_per_namespace_per_hour=st.integers(1, 6),
        fresh_cards_ratio=st.sampled_from([0.1, 0.5, 0.8]),
        min_pod_busy_ratio=st.sampled_from([0.05, 0.1]),
        startup_grace_s=st.just(0),
    )


@given(states(), policies())
def test_a_plan_never_exceeds_its_budgets(state: DisruptionState, policy: RebalancerPolicy) -> None:
    moves = plan(state, policy).moves
    hour = [
        past_move for past_move in state.past if NOON - past_move.planned_at < timedelta(hours=1)
    ]
    under_way = [past_move for past_move in state.past if past_move.under_way]

    if moves:
        assert len(under_way) + len(moves) <= policy.max_in_flight
        assert len(hour) + len(moves) <= policy.max_per_hour
        in_namespace = len(moves) + sum(past_move.spec.pod.namespace == "ml" for past_move in hour)
        assert in_namespace <= policy.max_per_namespace_per_hour
    for part in ("source", "target", "owner", "pod"):
        values = [getattr(move, part) for move in moves]
        assert len(set(values)) == len(values), part


@given(states(), policies())
def test_a_plan_never_targets_a_card_that_is_not_trusted_and_cool(
    state: DisruptionState, policy: RebalancerPolicy
) -> None:
    for move in plan(state, policy).moves:
        assert state.usage[move.target.card].quality is ReadingQuality.OK
        assert state.heat[move.target.card].heat is Heat.COOL
        assert state.usage[move.source.card].quality is ReadingQuality.OK
        assert state.heat[move.source.card].heat is Heat.HOT
        assert move.reason.gain_points > 0
        reading = state.usage[move.target.card].reading
        assert reading is not None
        assert reading.level_ratio + move.reason.busy_ratio <= 1 + 1e-9


@given(states(), policies())
def test_a_plan_never_overcommits_a_card(state: DisruptionState, policy: RebalancerPolicy) -> None:
    taken: dict[CardUuid, int] = {}
    for move in plan(state, policy).moves:
        taken[move.target.card] = taken.get(move.target.card, 0) + move.request.mib
    for card, mib in taken.items():
        load = state.snapshot.card(card)
        assert load is not None
        coming = sum(
            past_move.spec.request.mib
            for past_move in state.past
            if past_move.under_way and past_move.spec.target.card == card
        )
        assert load.held_mib + coming + mib <= load.card.capacity_mib


@given(states(), policies(), st.randoms())
def test_the_same_state_gives_the_same_plan_in_any_order(
    state: DisruptionState, policy: RebalancerPolicy, order: Any
) -> None:
    pods = list(state.pods.items())
    heat = list(state.heat.items())
    usage = list(state.usage.items())
    past = list(state.past)
    nodes = list(state.snapshot.nodes.items())
    for inputs in (pods, heat, usage, past, nodes):
        order.shuffle(inputs)
    shuffled = replace(
        state,
        snapshot=replace(state.snapshot, nodes=dict(nodes)),
        pods=dict(pods),
        heat=dict(heat),
        usage=dict(usage),
        past=past,
        index=SnapshotIndex(),
    )

    assert plan(shuffled, policy) == plan(state, policy)


@given(states(), policies())
def test_what_is_unknown_never_moves(state: DisruptionState, policy: RebalancerPolicy) -> None:
    unknown = {uuid: usage_of(uuid, None) for uuid in state.usage}

    assert plan(replace(state, usage=unknown), policy).moves == ()


def test_the_properties_see_plans_that_move_several_pods() -> None:
    """Guards the properties above, which prove nothing if no generated state has a move.

    Hypothesis also draws constants of the modules that are loaded, so how soon it finds one varies.
    """
    bold = RebalancerPolicy(mode=Mode.ACTIVE, max_in_flight=4, startup_grace_s=0)

    moves = find(
        states().map(lambda state: len(plan(state, bold).moves)),
        lambda count: count > 1,
        settings=settings(max_examples=20_000, phases=[Phase.generate], derandomize=True),
    )

    assert moves > 1
