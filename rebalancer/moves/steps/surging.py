"""The phases of a surge: the replacement becomes Ready beside the pod, or all goes back.

================ ================================================= =========================
phase            what must be true to go on                        else
================ ================================================= =========================
surging          the replacement is Ready on a cool card           wait; rolled back
replacementReady it has been Ready long enough                     back to surging; rolled back
rollingBack      the pod belongs to its ReplicaSet again           retry
================ ================================================= =========================
"""

from datetime import timedelta
from typing import Final

from fracgpu.disruption.heat import Heat
from fracgpu.disruption.move import Ending
from fracgpu.state.move_object import MovePhase
from rebalancer.moves.evictor import EvictionOutcome, EvictionResult
from rebalancer.moves.record import MoveRecord, a_replacement
from rebalancer.moves.steps.facts import MoveFacts, ReplacementFacts
from rebalancer.moves.steps.step import Action, Do, Enter, Step, StepContext, Wait, end, why_stopped

# Longer than watch events take; only then is a replacement that is not seen known not to exist.
_SEEN_WITHIN: Final = timedelta(seconds=60)

_RollBack = tuple[Ending, str]


def surging(record: MoveRecord, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does whose pod is, or is about to be, released from its ReplicaSet."""
    if not facts.victim.there:
        return _ended_by_itself(record, facts, context)
    reason = why_roll_back(record, facts, context) or _why_unready(record, facts, context)
    if reason is not None:
        return roll_back(record, facts, context, *reason)
    if not facts.victim.released:
        return Do(Action.RELEASE)
    found = facts.replacement
    if found is None:
        return Wait("the replacement is not created yet")
    known = noted(record, found)
    if known != record:
        return Enter(known)
    if not (found.node and found.ready):
        return Wait("the replacement is not Ready yet" if found.node else "it is not bound yet")
    return Enter(record.to(MovePhase.REPLACEMENT_READY, now=context.now))


def replacement_ready(record: MoveRecord, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does whose replacement is Ready, but not for long enough yet."""
    step = still_replaced(record, facts, context)
    if step is not None:
        return step
    if record.age(now=context.now) < timedelta(seconds=context.policy.ready_s):
        return Wait(f"the replacement has to be Ready for {context.policy.ready_s:g} s")
    return Enter(record.to(MovePhase.EVICTING, now=context.now))


def still_replaced(record: MoveRecord, facts: MoveFacts, context: StepContext) -> Enter | None:
    """Return what to do instead of evicting the pod; None if its replacement is Ready now."""
    if not facts.victim.there:
        return _ended_by_itself(record, facts, context)
    reason = why_roll_back(record, facts, context)
    if reason is not None:
        return roll_back(record, facts, context, *reason)
    if not facts.victim.released:
        # Somebody gave it its label back: its ReplicaSet counts it again.
        reason = (Ending.INTERFERED, "the label of the released pod was changed by somebody else")
        return roll_back(record, facts, context, *reason)
    found = facts.replacement
    if found is None or not found.ready or noted(record, found) != record:
        message = "the replacement is not Ready any more"
        return Enter(record.to(MovePhase.SURGING, now=context.now, message=message))
    return None


def why_roll_back(record: MoveRecord, facts: MoveFacts, context: StepContext) -> _RollBack | None:
    """Return why a surge has to be undone, with the ending that it gives; None to go on."""
    owner, found = facts.owner, facts.replacement
    stopped = why_stopped(context.policy)
    bound = found is not None and bool(found.node)
    lapsed = context.now >= record.object.reserved_until
    misplaced = found is not None and bound and not _accepted(record, found, context)
    rules: tuple[tuple[bool, Ending, str], ...] = (
        (bool(stopped), Ending.PAUSED, stopped),
        (not owner.there, Ending.OWNER_GONE, "its controller is gone or being deleted"),
        (not owner.current, Ending.ROLLOUT, "its owner is being rolled out"),
        (found is None and bool(owner.failure), Ending.NOT_CREATED, owner.failure),
        (not bound and bool(facts.target_problem), Ending.TARGET_LOST, facts.target_problem),
        (not bound and lapsed, Ending.LAPSED, "the reservation lapsed before it was used"),
        (misplaced, Ending.MISPLACED, _where(found)),
        (found is not None and bool(found.stuck), Ending.NOT_READY, found.stuck if found else ""),
    )
    return next(((ending, why) for broken, ending, why in rules if broken), None)


def roll_back(
    record: MoveRecord, facts: MoveFacts, context: StepContext, ending: Ending, why: str
) -> Enter:
    """Return the step that undoes a surge; if the pod was not released yet, nothing has to be."""
    untouched = (
        record.phase is MovePhase.SURGING
        and not facts.victim.released
        and facts.victim.controller_uid == record.spec.owner.uid
    )
    if untouched:
        return end(record, ending, why, now=context.now)
    undoing = record.to(MovePhase.ROLLING_BACK, now=context.now, message=why, result=ending.value)
    return Enter(undoing)


def rolling_back(record: MoveRecord, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does that is being undone."""
    now, victim = context.now, facts.victim
    ending = record.ending or Ending.INTERFERED
    adopted = not victim.released and bool(victim.controller_uid)
    if not victim.there or (adopted and not victim.moved_by):
        return end(record, ending, record.detail, now=now)
    if record.age(now=now) > timedelta(seconds=context.policy.evict_ttl_s):
        return end(record, ending, f"{record.detail}; {_LEFT}", now=now)
    if record.retry_at is not None and now < record.retry_at:
        return Wait(record.detail)
    if adopted:  # until then the mark lets the janitor find the pod, whatever becomes of this move
        return Do(Action.UNMARK)
    if not facts.owner.there:
        return _without_owner(record, facts, context)
    if not victim.released:
        return Wait(record.detail)  # its ReplicaSet will adopt it
    found = facts.replacement
    return Do(Action.DEMOTE if found is not None and not found.demoted else Action.RESTORE)


def release_answered(record: MoveRecord, result: EvictionResult, context: StepContext) -> Step:
    """Return what follows from the change of the label."""
    if result.outcome is EvictionOutcome.REFUSED:
        return end(record, Ending.REFUSED, result.detail, now=context.now)
    # Released, or unclear: the pod is read again before anything else is done.
    return Wait(result.detail or "the replacement is not created yet")


def demote_answered(record: MoveRecord, result: EvictionResult, context: StepContext) -> Step:
    """Return what follows from marking the replacement: the pod gets its label back in any case."""
    del record, result, context
    return Do(Action.RESTORE)


def restore_answered(record: MoveRecord, result: EvictionResult, context: StepContext) -> Step:
    """Return what follows from giving the pod its label back, or from taking the mark off it."""
    del context
    return Wait(record.detail if result.outcome is EvictionOutcome.ALLOWED else result.detail)


def noted(record: MoveRecord, found: ReplacementFacts) -> MoveRecord:
    """Return the record with the replacement as it is known now."""
    seen = a_replacement(found.name, found.uid, node=found.node, card=found.card)
    return record if record.status.replacement == seen else record.with_status(replacement=seen)


_LEFT: Final = "it still has no controller, which is looked at every minute"


def _ended_by_itself(record: MoveRecord, facts: MoveFacts, context: StepContext) -> Enter:
    message = facts.victim.why_gone
    return Enter(record.to(MovePhase.EVICTED, now=context.now, message=message))


def _why_unready(record: MoveRecord, facts: MoveFacts, context: StepContext) -> _RollBack | None:
    """Return why the replacement is waited for no longer."""
    found = facts.replacement
    limit = timedelta(seconds=context.policy.replacement_ttl_s)
    if found is not None and found.ready:
        limit *= 2  # one that is Ready by turns gets twice the time
    since = record.first_in(MovePhase.SURGING) or record.phase_since
    if context.now - since > limit:
        return Ending.NOT_READY, "the replacement did not become Ready in time"
    scaled_down = found is None and facts.victim.released and facts.owner.satisfied
    # A new leader may have released the pod only a moment ago.
    watched = context.now - max(since, context.state.leading_since)
    if scaled_down and (facts.owner.desired == 0 or watched > _SEEN_WITHIN):
        return Ending.SCALED_DOWN, "its owner has all the pods that it should have"
    return None


def _accepted(record: MoveRecord, found: ReplacementFacts, context: StepContext) -> bool:
    """Report whether the replacement may stay where it is: on the target or another cool card."""
    move = record.move
    if found.card == move.target:
        return True
    if found.card is None or found.card == move.source:
        return False
    heat, reading = context.state.heat.get(found.card), context.state.reading(found.card)
    if heat is None or heat.heat is not Heat.COOL or reading is None:
        return False
    measured = reading.pods.get(found.uid)  # what it uses there already is in the card's level
    to_come = move.busy_ratio - (measured.busy_ratio if measured is not None else 0.0)
    return reading.level_ratio + max(0.0, to_come) <= context.policy.hot_ratio


def _where(found: ReplacementFacts | None) -> str:
    if found is None or found.card is None:
        return "the replacement has no card"
    return f"the replacement got card {found.card} on {found.node}, which is not known to be cool"


def _without_owner(record: MoveRecord, facts: MoveFacts, context: StepContext) -> Step:
    """Return what becomes of a released pod whose controller was deleted meanwhile.

    If the controller left its other pods behind, the pod stays as they do. Otherwise it goes as
    they do: nothing else would ever delete it.
    """
    if record.age(now=context.now) < _SEEN_WITHIN:
        return Wait(record.detail)  # the garbage collector is at work
    if not facts.owner.orphans:
        return Do(Action.EVICT)
    if facts.victim.released:
        return Do(Action.RESTORE)
    if facts.victim.moved_by:
        return Do(Action.UNMARK)
    return end(record, record.ending or Ending.OWNER_GONE, record.detail, now=context.now)
