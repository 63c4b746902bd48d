"""What the decision to move a pod says, made, only shown or approved."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from msgspec import structs

from fracgpu import names
from fracgpu.disruption.candidates import approved, make_move, shown
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.request.need import Rebalance
from fracgpu.state.move_object import MoveMode, MoveSpec, RequestedShare
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.moves import a_beneficiary
from tests.support.rebalancing import (
    ACTIVE,
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_move,
    a_placed_pod,
)

SURGES: dict[str, Any] = {"labels": {"pod-template-hash": "5d4f8c"}}


def decided(*, policy: RebalancerPolicy = ACTIVE, requested: bool = False, **pod: Any) -> MoveSpec:
    owner = ("ReplicaSet", "web-5d4f8c", "owner-1")
    moved = a_placed_pod("pod-a", owner=owner, **(SURGES | pod))
    return make_move(
        a_disruption_state(pods=[moved]),
        moved,
        source=("n1", HOT_CARD),
        target=("n2", COOL_CARD),
        busy_ratio=0.45,
        level_ratio=0.9,
        gain_points=10.1234567,
        method="hot-card",
        policy=policy,
        now=NOON,
        requested=requested,
    )


def test_it_says_who_moves_from_where_to_where_and_why() -> None:
    spec = decided()

    assert (spec.pod.namespace, spec.pod.name, spec.pod.uid) == ("ml", "pod-a", "pod-a")
    assert (spec.owner.api_version, spec.owner.kind) == ("apps/v1", "ReplicaSet")
    assert (spec.owner.name, spec.owner.uid) == ("web-5d4f8c", "owner-1")
    assert (spec.source.card, spec.source.display) == (HOT_CARD, "n1/0")
    assert (spec.target.card, spec.target.display) == (COOL_CARD, "n2/0")
    assert spec.request == RequestedShare(mib=Mib(4000), cores=0, slots=1)
    assert spec.reason.message == "card n1/0 is busy 90% of the time; card n2/0 has room"
    assert (spec.reason.busy_ratio, spec.reason.level_ratio) == (0.45, 0.9)
    assert spec.reason.gain_points == 10.123457
    assert (spec.mode, spec.method, spec.plan) == (MoveMode.SURGE, "hot-card", "")
    assert not spec.approved


def test_what_people_want_needs_no_approval() -> None:
    spec = decided(requested=True)

    assert spec.approved
    assert spec.reason.message == "people want it off card n1/0; card n2/0 has room"


def test_the_reservation_outlives_every_step_before_the_replacement_is_bound() -> None:
    surge, evict = decided(), decided(rebalance=Rebalance.EVICT)

    assert surge.reserved_until == NOON + timedelta(seconds=120 + 0 + 600)
    assert surge.source_denied_until == NOON + timedelta(seconds=ACTIVE.return_cooldown_s)
    assert evict.reserved_until - surge.reserved_until == timedelta(seconds=ACTIVE.evict_ttl_s)


def test_notice_makes_it_last_longer_that_of_the_policy_or_what_the_pod_asks_for() -> None:
    lasts = [
        decided(
            policy=replace(ACTIVE, notice_s=30), annotations={names.MOVE_GRACE: wish}
        ).reserved_until
        - decided().reserved_until
        for wish in ("", "60", "86400", "-1", "1.5", "²")
    ]

    assert [each.total_seconds() for each in lasts] == [30, 90, 3630, 30, 30, 30]


def test_what_is_only_shown_keeps_nothing() -> None:
    kept = a_beneficiary("GPU-hot", held_until=NOON + timedelta(minutes=30))
    spec = shown(a_move(beneficiary=kept), now=NOON)

    assert spec.reserved_until == spec.source_denied_until == NOON
    assert spec.beneficiary == structs.replace(kept, held_until=NOON)
    assert shown(a_move(), now=NOON).beneficiary is None


def test_once_approved_it_keeps_what_one_that_is_decided_then_does() -> None:
    later = NOON + timedelta(minutes=50)
    afresh = approved(shown(decided(), now=NOON), policy=ACTIVE, now=later)
    kept = approved(shown(a_move(beneficiary=a_beneficiary()), now=NOON), policy=ACTIVE, now=later)

    assert afresh.approved
    assert kept.beneficiary is not None
    assert kept.beneficiary.held_until - later == timedelta(seconds=ACTIVE.make_room_hold_s)
    assert afresh.reserved_until - later == decided().reserved_until - NOON
    assert afresh.source_denied_until - later == decided().source_denied_until - NOON
