"""The phases before anybody is disturbed: planned, reserved, noticed.

========= ======================================================== ===========================
phase     what must be true to go on                               else
========= ======================================================== ===========================
planned   cordon visible (of a hot card), still right, owner       wait; aborted when outdated
          settled, preflight
reserved  nothing more                                             -
noticed   the notice is over, and all of that is still true        wait; aborted when outdated
========= ======================================================== ===========================
"""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import Heat, blindness
from fracgpu.disruption.move import Ending
from fracgpu.disruption.planner import validate_move
from fracgpu.disruption.policy import RebalancerPolicy
from fracgpu.state.move_object import MoveMode, MovePhase
from rebalancer.moves.evictor import EvictionOutcome, EvictionResult
from rebalancer.moves.record import MoveRecord
from rebalancer.moves.steps.facts import MoveFacts
from rebalancer.moves.steps.step import Action, Do, Enter, Step, StepContext, Wait, end, why_stopped

_FOR_NOW: Final = (
    EvictionOutcome.BLOCKED,
    EvictionOutcome.BUSY,
    EvictionOutcome.UNCLEAR,
    EvictionOutcome.CHANGED,
)

_Obstacle = tuple[Ending, str]


def planned(record: MoveRecord, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a planned move does next."""
    late = record.age(now=context.now) > timedelta(seconds=context.policy.plan_ttl_s)
    return _check(record, facts, context, late=late) or Do(Action.PREFLIGHT)


def reserved(record: MoveRecord, _: MoveFacts, context: StepContext) -> Step:
    """Return what a move does that was checked with its reservation in the ledger."""
    return Enter(record.to(MovePhase.NOTICED, now=context.now))


def noticed(record: MoveRecord, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does whose pod is told of it."""
    now, policy = context.now, context.policy
    notice = timedelta(seconds=policy.notice_s)
    if notice and facts.victim.there and not facts.victim.notice:
        return Do(Action.NOTICE)
    if record.age(now=now) < notice and not _why_not_begun(policy):
        return Wait(f"the notice of {policy.notice_s:g} s")
    if now > record.phase_since:  # else all of it was checked in this very cycle
        late = record.age(now=now) > notice + timedelta(seconds=policy.plan_ttl_s)
        found = _check(record, facts, context, late=late)
        if found is not None:
            return found
    return Enter(_begun(record, facts, context))


def preflight_answered(record: MoveRecord, result: EvictionResult, context: StepContext) -> Step:
    """Return what follows from the dry run of the steps that disturb the pod."""
    surge = record.mode is MoveMode.SURGE
    # A surge makes room in the budget: it counts the replacement beside the pod.
    allowed = result.outcome is EvictionOutcome.ALLOWED or (
        surge and result.outcome is EvictionOutcome.BLOCKED
    )
    if allowed:
        return Enter(record.to(MovePhase.RESERVED, now=context.now))
    if result.outcome in _FOR_NOW:
        return Wait(result.detail)
    gone = result.outcome in (EvictionOutcome.GONE, EvictionOutcome.OTHER_POD)
    ending = Ending.POD_GONE if gone else Ending.REFUSED
    return end(record, ending, result.detail, now=context.now)


def notice_answered(record: MoveRecord, result: EvictionResult, context: StepContext) -> Step:
    """Return what follows from telling the pod; the notice itself is read in the next cycle."""
    if result.outcome is EvictionOutcome.REFUSED:
        return end(record, Ending.REFUSED, result.detail, now=context.now)
    return Wait(result.detail or f"the notice of {context.policy.notice_s:g} s")


def without_move(state: DisruptionState, record: MoveRecord) -> DisruptionState:
    """Return the disruption state as if this move had never begun."""
    past = [past_move for past_move in state.past if past_move.id != record.id]
    return replace(state, past=past)


def _check(
    record: MoveRecord, facts: MoveFacts, context: StepContext, *, late: bool
) -> Step | None:
    """Return why the pod may not be disturbed now, as a step; None if it may be."""
    now = context.now
    stopped = _why_not_begun(context.policy)
    if stopped:
        return end(record, Ending.PAUSED, stopped, now=now)
    obstacle = _obstacle(record, facts)
    if obstacle is not None:
        return end(record, *obstacle, now=now)
    waiting_for = _not_yet(record, facts, context)
    if late:
        return end(record, Ending.EXPIRED, waiting_for or record.detail, now=now)
    if waiting_for:
        return Wait(waiting_for)
    outdated = _why_outdated(record, context)
    return end(record, Ending.OUTDATED, outdated, now=now) if outdated else None


def _why_not_begun(policy: RebalancerPolicy) -> str:
    """Return why nobody may be disturbed anew; what has begun is finished while it is paused."""
    return why_stopped(policy) or ("paused" if policy.paused else "")


def _obstacle(record: MoveRecord, facts: MoveFacts) -> _Obstacle | None:
    """Return what rules the move out for good, with the ending that it gives."""
    victim, owner = facts.victim, facts.owner
    surge = record.mode is MoveMode.SURGE
    rules: tuple[tuple[bool, Ending, str], ...] = (
        (not victim.there, Ending.POD_GONE, victim.why_gone),
        (not victim.running, Ending.REFUSED, "it is not running"),
        (not owner.there, Ending.OWNER_GONE, "its controller is gone or being deleted"),
        (
            victim.controller_uid != record.spec.owner.uid,
            Ending.POD_GONE,
            "it does not belong to its controller any more",
        ),
        (not owner.current, Ending.ROLLOUT, "its owner is being rolled out"),
        (
            surge and (not victim.hash_label or owner.selects_by != victim.hash_label),
            Ending.REFUSED,
            "its ReplicaSet does not select it by the label pod-template-hash",
        ),
        (bool(facts.target_problem), Ending.TARGET_LOST, facts.target_problem),
    )
    return next(((ending, why) for broken, ending, why in rules if broken), None)


def _not_yet(record: MoveRecord, facts: MoveFacts, context: StepContext) -> str:
    """Return what the move still waits for; empty when nothing."""
    move = record.move
    node = context.nodes.get(move.source_node)
    # Cards that are freed for a waiting pod are kept by the Move; a cordon would keep that pod off.
    if move.beneficiary is None and (
        node is None or move.source not in node.cordoned(now=context.now)
    ):
        return "the cordon of its card"
    state = context.state
    blind = blindness(state.usage, state.cards(), context.policy)
    if blind:
        return blind
    return "" if facts.owner.satisfied else "another pod of its owner is not ready"


def _why_outdated(record: MoveRecord, context: StepContext) -> str:
    state = without_move(context.state, record)
    heat = state.heat.get(record.move.target)
    if heat is None or heat.heat is not Heat.COOL or state.reading(record.move.target) is None:
        return f"card {record.spec.target.display} is not known to be cool any more"
    held = validate_move(state, record.move, policy=context.policy, now=context.now)
    return f"{held.subject}: {held.reason.value} {held.detail}".strip() if held else ""


def _begun(record: MoveRecord, facts: MoveFacts, context: StepContext) -> MoveRecord:
    """Return the record of the first phase that disturbs the pod; the reservation starts anew."""
    now, policy = context.now, context.policy
    if record.mode is MoveMode.SURGE:
        until = now + timedelta(seconds=policy.replacement_ttl_s)
        return record.to(
            MovePhase.SURGING,
            now=now,
            released_hash=facts.victim.hash_label,
            reserved_until=max(until, record.object.reserved_until),
        )
    until = now + timedelta(seconds=policy.evict_ttl_s + policy.replacement_ttl_s)
    return record.to(
        MovePhase.EVICTING, now=now, reserved_until=max(until, record.object.reserved_until)
    )
