"""A planned move becomes a spec, and a record the JSON of a Move and back."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.disruption.move import Ending
from fracgpu.errors import WireError
from fracgpu.state.move_object import MoveMode, MovePhase, RequestedShare, decode_move
from rebalancer.moves.record import MoveRecord, longest_before_bound, move_of, spec_of
from rebalancer.moves.store import object_of
from tests.fakes.clock import NOON
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_move,
    a_placed_pod,
)
from tests.support.records import a_record

POD = a_placed_pod("pod-a", owner=("ReplicaSet", "web-5d4f8c", "owner-1"))
MOVE = a_move(pod_uid="pod-a", name="pod-a", owner_uid="owner-1")


def test_a_spec_says_who_moves_from_where_to_where_and_why() -> None:
    spec = spec_of(MOVE, a_disruption_state(pods=[POD]), policy=ACTIVE, config_hash="abc", now=NOON)

    assert (spec.pod.namespace, spec.pod.name, spec.pod.uid) == ("ml", "pod-a", "pod-a")
    assert (spec.owner.api_version, spec.owner.kind) == ("apps/v1", "ReplicaSet")
    assert (spec.owner.name, spec.owner.uid) == ("web-5d4f8c", "owner-1")
    assert (spec.source.card, spec.source.display) == (HOT_CARD, "n1/0")
    assert (spec.target.card, spec.target.display) == (COOL_CARD, "n2/0")
    assert spec.request == RequestedShare(mib=4000, cores=0, slots=1)
    assert spec.reason.message == "card n1/0 is busy 90% of the time; card n2/0 has room"
    assert spec.config_hash == "abc"


@pytest.mark.parametrize("mode", MoveMode)
def test_the_decision_can_be_read_back_from_the_spec(mode: MoveMode) -> None:
    move = a_move(mode=mode, plan="p", method="make-room", cores=30)

    spec = spec_of(move, a_disruption_state(), policy=ACTIVE, config_hash="", now=NOON)

    assert move_of(spec) == move


def test_the_reservation_outlives_every_step_before_the_replacement_is_bound() -> None:
    state = a_disruption_state()
    spec = spec_of(MOVE, state, policy=ACTIVE, config_hash="", now=NOON)
    shown = spec_of(MOVE, state, policy=ACTIVE, config_hash="", now=NOON, holds=False)

    assert spec.reserved_until == NOON + timedelta(seconds=120 + 0 + 600)
    assert spec.source_denied_until == NOON + timedelta(seconds=ACTIVE.return_cooldown_s)
    evict = longest_before_bound(MoveMode.EVICT, ACTIVE)
    assert evict - longest_before_bound(MoveMode.SURGE, ACTIVE) == timedelta(seconds=600)
    assert shown.reserved_until == shown.source_denied_until == NOON


@given(
    st.sampled_from(MovePhase),
    st.integers(0, 9),
    st.none() | st.just(NOON),
    st.sampled_from(["", *(ending.value for ending in Ending)]),
    st.text(max_size=50),
)
def test_records_survive_json(
    phase: MovePhase, attempts: int, retry_at: object, result: str, message: str
) -> None:
    record = a_record(phase, attempts=attempts, retry_at=retry_at, result=result, message=message)

    body = object_of(record)

    assert MoveRecord(object=decode_move(msgspec.json.encode(body))) == record
    assert body["status"]["phase"] == phase.value


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"metadata": {"name": "x"}, "spec": {}}'])
def test_what_is_no_move_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        decode_move(body)
