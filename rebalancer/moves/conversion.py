"""From a planned move to the spec of a Move, and from a Move's JSON to its record and back."""

from datetime import datetime, timedelta
from typing import Any

import msgspec

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.move import Move
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import (
    CardReference,
    MoveMode,
    MoveObject,
    MoveReason,
    MoveSpec,
    OwnerReference,
    PodReference,
    RequestedShare,
    decode_move,
)
from rebalancer.moves.owners import OWNER_KINDS
from rebalancer.moves.record import MoveRecord


def spec_of(
    move: Move,
    state: DisruptionState,
    *,
    policy: RebalancerPolicy,
    config_hash: str,
    now: datetime,
    holds: bool = True,
) -> MoveSpec:
    """Return the spec of a move planned on *state*.

    Args:
        move: the decision.
        state: on which it was made.
        policy: by which it was made.
        config_hash: of the policy.
        now: the time of the plan.
        holds: the move reserves its target; one that is only rehearsed or shown does not.
    """
    pod = state.pods.get(move.pod_uid)
    kind, owner, _ = (pod.info.owner if pod else None) or ("ReplicaSet", "unknown", "")
    source = _card(state, move.source, node=move.source_node)
    target = _card(state, move.target, node=move.target_node)
    beneficiary = move.beneficiary
    why = (
        f"card {source.display} is busy {move.level_ratio:.0%} of the time"
        if beneficiary is None
        else f"pod {beneficiary.namespace}/{beneficiary.name} waits for card {source.display}"
    )
    message = f"{why}; card {target.display} has room"
    if beneficiary is not None and not holds:
        beneficiary = msgspec.structs.replace(beneficiary, held_until=now)
    return MoveSpec(
        pod=PodReference(namespace=move.namespace, name=move.name, uid=move.pod_uid),
        owner=OwnerReference(
            api_version=OWNER_KINDS[kind].group_version if kind in OWNER_KINDS else "v1",
            kind=kind,
            name=owner,
            uid=move.owner_uid,
        ),
        source=source,
        target=target,
        request=RequestedShare(mib=move.mib, cores=move.cores, slots=move.slots),
        mode=move.mode,
        method=move.method,
        plan=move.plan,
        reason=MoveReason(
            message=message,
            busy_ratio=move.busy_ratio,
            level_ratio=move.level_ratio,
            gain_points=move.gain_points,
        ),
        reserved_until=now + longest_before_bound(move.mode, policy) if holds else now,
        source_denied_until=now + timedelta(seconds=policy.return_cooldown_s) if holds else now,
        beneficiary=beneficiary,
        config_hash=config_hash,
    )


def longest_before_bound(mode: MoveMode, policy: RebalancerPolicy) -> timedelta:
    """Return how long after its plan a move may still need the reservation."""
    before = policy.plan_ttl_s + policy.notice_s + policy.replacement_ttl_s
    return timedelta(seconds=before + (policy.evict_ttl_s if mode is MoveMode.EVICT else 0.0))


def record_of(body: bytes) -> MoveRecord:
    """Return the record in a Move from the API server.

    Raises:
        WireError: *body* is no Move of this version.
    """
    return MoveRecord(object=decode_move(body))


def object_of(record: MoveRecord) -> dict[str, Any]:
    """Return a record as the JSON object that the API server stores."""
    found: dict[str, Any] = msgspec.to_builtins(record.object)
    found["status"]["phase"] = record.phase.value  # shown even where it is the default
    return found


def with_metadata_of(record: MoveRecord, stored: MoveObject) -> MoveRecord:
    """Return a record with the metadata under which it was stored."""
    merged = msgspec.structs.replace(record.object, metadata=stored.metadata)
    return MoveRecord(object=merged, dry_run=record.dry_run)


def _card(state: DisruptionState, card: CardUuid, *, node: str) -> CardReference:
    info = state.snapshot.card(card)
    index = info.card.index if info is not None else 0
    return CardReference(node=node, card=card, index=index, display=f"{node}/{index}")
