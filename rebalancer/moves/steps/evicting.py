"""The phases of the eviction and after: evicting, evicted, verifying.

========= ========================================================== ==========================
phase     what must be true to go on                                 else
========= ========================================================== ==========================
evicting  the pod is evicted, or gone already                        retry, with longer pauses;
                                                                     withdrawn, then given up
evicted   its replacement is Ready                                   wait; lost after a while
verifying settled: the source has cooled and the target has not      useless; longer rest
          become hot
========= ========================================================== ==========================
"""

from datetime import timedelta
from typing import Final

from fracgpu.disruption.move import Ending
from fracgpu.disruption.verification import Verification, verify, verify_room
from fracgpu.state.move_object import MoveMode, MovePhase
from rebalancer.moves.evictor import EvictionOutcome, EvictionResult
from rebalancer.moves.record import MoveRecord
from rebalancer.moves.steps.facts import MoveFacts
from rebalancer.moves.steps.step import Action, Do, Enter, Step, StepContext, Wait, end, why_stopped
from rebalancer.moves.steps.surging import noted, roll_back, still_replaced

_FIRST_PAUSE_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 60.0


def evicting(record: MoveRecord, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does whose pod may have been evicted; the facts show whether it was."""
    if not facts.victim.there:
        message = facts.victim.why_gone
        return Enter(record.to(MovePhase.EVICTED, now=context.now, message=message))
    now = context.now
    surge = record.mode is MoveMode.SURGE
    instead = still_replaced(record, facts, context) if surge else _why_not(record, facts, context)
    if instead is not None:
        return _withdraw(record, instead, context)
    if record.age(now=now) > timedelta(seconds=context.policy.evict_ttl_s):
        return _give_up(record, facts, context, Ending.BLOCKED, record.detail)
    if record.retry_at is not None and now < record.retry_at:
        return Wait(record.detail)
    return Do(Action.EVICT)


def evict_answered(
    record: MoveRecord,
    result: EvictionResult,
    facts: MoveFacts,
    context: StepContext,
    *,
    jitter: float,
) -> Step:
    """Return what follows from the answer of the Eviction API.

    Args:
        record: of the move, in phase Evicting, or RollingBack if its controller was deleted.
        result: the answer.
        facts: what was known before the eviction was asked for.
        context: of this cycle.
        jitter: 0..1; spreads the retries.
    """
    gone = (EvictionOutcome.GONE, EvictionOutcome.OTHER_POD, EvictionOutcome.CHANGED)
    undoing = record.phase is MovePhase.ROLLING_BACK
    if result.outcome in gone or (undoing and result.outcome is EvictionOutcome.ALLOWED):
        return Wait(record.detail if undoing else result.detail)  # the next cycle reads the pod
    if undoing:
        return Enter(_later(record, result, context, jitter=jitter, message=record.detail))
    if result.outcome is EvictionOutcome.ALLOWED:
        return Enter(record.to(MovePhase.EVICTED, now=context.now))
    if result.outcome is EvictionOutcome.REFUSED:
        return _give_up(record, facts, context, Ending.REFUSED, result.detail)
    return Enter(_later(record, result, context, jitter=jitter, message=result.detail))


def evicted(record: MoveRecord, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does whose pod is gone."""
    now, found, owner = context.now, facts.replacement, facts.owner
    if found is not None and found.node and found.ready:
        return Enter(noted(record, found).to(MovePhase.VERIFYING, now=now))
    if not owner.there:
        return end(record, Ending.OWNER_GONE, "its controller is gone or being deleted", now=now)
    if record.age(now=now) <= timedelta(seconds=context.policy.replacement_ttl_s):
        return Wait("the replacement is not Ready yet")
    # Lost is what the owner misses, not what is not seen: it may have been scaled down meanwhile.
    if owner.satisfied:
        detail = "its owner has all the pods that it should have, without a replacement"
        return end(record, Ending.SCALED_DOWN, detail, now=now)
    detail = f"{owner.ready} of {owner.desired} pods of its owner are Ready"
    return end(record, Ending.LOST, f"no replacement became Ready: {detail}", now=now)


def verifying(record: MoveRecord, _: MoveFacts, context: StepContext) -> Step:
    """Return what a move does whose replacement runs."""
    if record.age(now=context.now) < timedelta(seconds=context.policy.settle_s):
        return Wait("the cards have to settle")
    if _may_start_still(record, context):
        return Wait("the pod that waits has not started yet")
    found = verification(record, context)
    if found.relieved is None:
        return end(record, Ending.UNVERIFIED, found.detail, now=context.now)
    ending = Ending.RELIEVED if found.relieved else Ending.USELESS
    return end(record, ending, found.detail, now=context.now)


def _may_start_still(record: MoveRecord, context: StepContext) -> bool:
    """Report whether cards are kept for a pod that waits still: others of the plan may follow."""
    beneficiary = record.move.beneficiary
    if beneficiary is None or context.now >= beneficiary.held_until:
        return False
    waiting = context.state.pods.get(beneficiary.uid)
    return waiting is not None and not waiting.info.record.node


def verification(record: MoveRecord, context: StepContext) -> Verification:
    """Return whether the move helped: by what both cards show now, or by the pod that waited."""
    move = record.move
    if move.beneficiary is not None:
        waiting = context.state.pods.get(move.beneficiary.uid)
        return verify_room(
            started=waiting is not None and bool(waiting.info.record.node),
            target=context.state.reading(record.landed or move.target),
            policy=context.policy,
        )
    return verify(
        before_ratio=move.level_ratio,
        pod_ratio=move.busy_ratio,
        source=context.state.reading(move.source),
        target=context.state.reading(record.landed or move.target),
        policy=context.policy,
        pod_uid=move.pod_uid,
    )


def _why_not(record: MoveRecord, facts: MoveFacts, context: StepContext) -> Enter | None:
    """Return what to do instead of evicting a pod that has no replacement yet; None to evict."""
    stopped = why_stopped(context.policy)
    rules = (
        (bool(stopped), Ending.PAUSED, stopped),
        (not facts.owner.there, Ending.OWNER_GONE, "its controller is gone or being deleted"),
        (not facts.owner.current, Ending.ROLLOUT, "its owner is being rolled out"),
        (bool(facts.target_problem), Ending.TARGET_LOST, facts.target_problem),
        (not facts.victim.running, Ending.REFUSED, "it is not running"),
    )
    for broken, ending, why in rules:
        if broken:
            return end(record, ending, why, now=context.now)
    return None


def _give_up(
    record: MoveRecord, facts: MoveFacts, context: StepContext, ending: Ending, why: str
) -> Step:
    if record.mode is MoveMode.SURGE:
        return _withdraw(record, roll_back(record, facts, context, ending, why), context)
    return _withdraw(record, end(record, ending, why, now=context.now), context)


def _withdraw(record: MoveRecord, otherwise: Enter, context: StepContext) -> Step:
    """Return how a move goes back that may have sent an eviction which has not arrived yet.

    It may come from a leader that stood still or died, or from us: an answer that did not come in
    time says nothing. Its target must not be released while it can still take the pod. Where the
    pod cannot be changed, this is tried as long again as the eviction was.
    """
    if record.age(now=context.now) > 2 * timedelta(seconds=context.policy.evict_ttl_s):
        return otherwise
    return Do(Action.WITHDRAW, then=otherwise)


def _later(
    record: MoveRecord,
    result: EvictionResult,
    context: StepContext,
    *,
    jitter: float,
    message: str,
) -> MoveRecord:
    """Return the record with the time of the next attempt."""
    pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(record.attempts, 10), _LONGEST_PAUSE_S)
    pause_s *= 0.5 + jitter / 2
    if result.outcome is EvictionOutcome.UNCLEAR:
        pause_s = 1.0  # the next cycle reads the pod first
    pause_s = max(pause_s, min(result.retry_after_s or 0.0, _LONGEST_PAUSE_S))
    return record.with_status(
        attempts=record.attempts + 1,
        retry_at=context.now + timedelta(seconds=pause_s),
        message=message,
    )
