"""A move that makes room: what its object says, and how it is judged by the pod that waited."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fracgpu.disruption.planner import cards_to_cordon, plan_moves
from fracgpu.disruption.policy import MakeRoom
from fracgpu.state.cluster_state import PlacedPod
from fracgpu.state.move_object import Ending, MovePhase, MoveSpec, new_move
from rebalancer.moves.steps import (
    Action,
    Do,
    Enter,
    MoveFacts,
    OwnerFacts,
    StepContext,
    VictimFacts,
    Wait,
    planned,
    verifying,
)
from tests.fakes.clock import NOON
from tests.support.moves import a_beneficiary
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    a_cluster,
    a_disruption_state,
    a_move,
    a_reading,
    a_waiting_pod,
)
from tests.support.records import a_record

KEPT = a_beneficiary("GPU-hot", uid="big", held_until=NOON + timedelta(minutes=30))


def making_room(**changes: Any) -> MoveSpec:
    facts = {"method": "make-room", "plan": "make-room-big", "beneficiary": KEPT}
    return a_move(**(facts | changes))


def test_it_begins_without_a_cordon_since_the_move_itself_keeps_the_cards() -> None:
    policy = replace(ACTIVE, make_room=MakeRoom.ACTIVE)
    state = a_cluster({"n1": {"a0": 4000}, "n2": {"b0": 8000}}, a_waiting_pod())
    (move,) = plan_moves(state, policy=policy, now=NOON).moves
    record = new_move(move, now=NOON)
    shown = replace(state, past=(record,))
    nodes = {name: info.node for name, info in state.snapshot.nodes.items()}
    facts = MoveFacts(
        victim=VictimFacts(there=True, running=True, controller_uid=move.owner.uid),
        owner=OwnerFacts(there=True, observed=True, desired=1, ready=1),
    )

    assert move.reason.message == "pod ml/big waits for card n1/0; card n2/0 has room"
    assert move.source.card not in cards_to_cordon(shown, policy=policy, now=NOON)
    context = StepContext(state=shown, nodes=nodes, policy=policy, now=NOON)
    assert planned(record, facts, context) == Do(Action.PREFLIGHT)


def judged(*waiting: PlacedPod, minutes: float, target: float = 0.1) -> Any:
    """Return the step of a move whose replacement runs since that many minutes."""
    since = NOON - timedelta(minutes=minutes)
    record = a_record(MovePhase.VERIFYING, move=making_room(), now=since, phase_since=since)
    state = a_disruption_state(pods=waiting, readings={COOL_CARD: a_reading(target)})
    context = StepContext(state=state, nodes={}, policy=ACTIVE, now=NOON)
    return verifying(record, None, context)  # type: ignore[arg-type]


def ending(step: Any) -> Ending | None:
    assert isinstance(step, Enter)
    return step.move.ending


def test_it_helped_if_the_pod_has_started_and_the_target_stayed_cool() -> None:
    started = a_waiting_pod(node="n1")
    assert ending(judged(started, minutes=11)) is Ending.RELIEVED
    assert ending(judged(started, minutes=11, target=0.9)) is Ending.USELESS


def test_it_is_not_judged_while_the_cards_are_kept_for_the_pod() -> None:
    assert isinstance(judged(a_waiting_pod(), minutes=11), Wait)


@pytest.mark.parametrize("waiting", [(), (a_waiting_pod(),)])
def test_it_was_useless_if_the_pod_did_not_start_in_time(waiting: tuple[PlacedPod, ...]) -> None:
    late = making_room(beneficiary=a_beneficiary("GPU-hot", uid="big", held_until=NOON))
    since = NOON - timedelta(minutes=31)
    record = a_record(MovePhase.VERIFYING, move=late, now=since, phase_since=since)
    context = StepContext(state=a_disruption_state(pods=waiting), nodes={}, policy=ACTIVE, now=NOON)
    assert ending(verifying(record, None, context)) is Ending.USELESS  # type: ignore[arg-type]
