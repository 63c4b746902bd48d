"""What a move does next, phase by phase: pure functions of the Move, the facts and the policy.

======== =====================================================================
step     what the executor does
======== =====================================================================
Wait     nothing until the next cycle; the reason is shown to people
Enter    writes the Move, then asks for the next step
Do       one side effect, which the Move's phase has already announced
======== =====================================================================

================ =================================================== =========================
phase            what must be true to go on                          else
================ =================================================== =========================
planned          cordon visible (of a hot card), still right, owner  wait; aborted when outdated
                 settled, preflight
reserved         nothing more                                        -
noticed          the notice is over, or the pod says that it is      wait; aborted when outdated
                 ready, and all of that is still true
surging          the replacement is Ready on a cool card, and so     wait; rolled back
                 many others that the owner needs the pod no more
replacementReady it has been Ready long enough                       back to surging; rolled back
rollingBack      the pod belongs to its ReplicaSet again             retry
evicting         the pod is evicted, or gone already                 retry, with longer pauses;
                                                                     withdrawn, then given up
evicted          its replacement is Ready                            wait; lost after a while
verifying        settled: the source has cooled and the target has   useless; longer rest
                 not become hot
================ =================================================== =========================
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from fracgpu.cards.card import CardUuid, Health, NodeCards
from fracgpu.disruption.candidates import HASH_LABEL, RELEASED_SUFFIX
from fracgpu.disruption.disruption_state import DisruptionState
from fracgpu.disruption.heat import Heat, blindness
from fracgpu.disruption.planner import validate_move
from fracgpu.disruption.policy import Mode, RebalancerPolicy
from fracgpu.disruption.verification import Verification, verify, verify_room
from fracgpu.state.move_object import Ending, Move, MoveMode, MovePhase, Replacement


class EvictionOutcome(Enum):
    """The outcome of an eviction; also a metric label."""

    ALLOWED = "allowed"  # evicted, or in a dry run would be
    GONE = "gone"  # the pod is terminating or gone already
    OTHER_POD = "other_pod"  # the name belongs to another pod
    CHANGED = "changed"  # the pod has changed since it was read, or is another one
    BLOCKED = "blocked"  # a PodDisruptionBudget refused it for now
    BUSY = "busy"  # the API server refused it for now
    REFUSED = "refused"  # refused for good
    UNCLEAR = "unclear"  # no answer: the pod may have been evicted


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionResult:
    """The outcome, with the API server's message and the delay it asked for."""

    outcome: EvictionOutcome
    detail: str = ""
    retry_after_s: float | None = None


class Action(Enum):
    """A side effect."""

    PREFLIGHT = "preflight"  # a dry run of what follows; changes nothing
    NOTICE = "notice"  # tell the pod when it will be disturbed
    RELEASE = "release"  # change the label, so that the ReplicaSet makes a replacement
    EVICT = "evict"
    # Change the pod, so that no eviction takes effect that was sent before and may be under way.
    WITHDRAW = "withdraw"
    DEMOTE = "demote"  # let the ReplicaSet delete the replacement first
    RESTORE = "restore"  # give the pod its label back, so that the ReplicaSet adopts it again
    UNMARK = "unmark"  # take the mark of the move off the pod, which has its ReplicaSet again


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a step depends on besides the Move and the facts.

    Attributes:
        state: the disruption state of this cycle, with *every* past move.
        nodes: the nodes as the API server shows them, with their cordons.
    """

    state: DisruptionState
    nodes: Mapping[str, NodeCards]
    policy: RebalancerPolicy
    now: datetime


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before the next cycle."""

    why: str


@dataclass(frozen=True, slots=True)
class Enter:
    """The Move changes, as a rule to another phase."""

    move: Move


@dataclass(frozen=True, slots=True)
class Do:
    """A side effect is due.

    Attributes:
        then: what follows once the API server has done it; None if its answer decides that.
    """

    action: Action
    then: "Enter | None" = None


Step = Wait | Enter | Do


def why_stopped(move: Move, policy: RebalancerPolicy) -> str:
    """Return why a move that has begun is undone; empty while the mode lets it go on."""
    approved = policy.mode is Mode.RECOMMEND and move.spec.approved
    return "" if approved or policy.mode is Mode.ACTIVE else f"mode is {policy.mode.value}"


def end(move: Move, ending: Ending, detail: str, *, now: datetime) -> Enter:
    """Return the step that ends a move."""
    return Enter(move.ended(ending, now=now, detail=detail))


# A ReplicaSet with too many pods deletes those with the lowest cost first.
# Source: kubernetes.io/docs/concepts/workloads/controllers/replicaset (Pod deletion cost).
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
LOWEST_COST: Final = str(-(2**31))


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimFacts:
    """The pod that is moved, as the API server shows it now.

    Attributes:
        there: the very pod exists, is not terminating and has not ended.
        why_gone: why it is not there; empty if it is.
        running: its phase is Running. A pending pod bypasses every disruption budget.
        controller_uid: of its controller; empty for a pod without one.
        hash_label: its label by which a ReplicaSet selects it; empty without one.
        hash_key: that label, ``pod-template-hash`` or that of Argo Rollouts.
        moved_by: the Move that its annotation names; empty without one.
        notice: the time in its annotation that announces the move; empty without one.
        prepared: its annotation says that it is ready to be moved.
        version: its resourceVersion.
    """

    there: bool
    why_gone: str = ""
    running: bool = False
    controller_uid: str = ""
    hash_label: str = ""
    hash_key: str = HASH_LABEL
    moved_by: str = ""
    notice: str = ""
    prepared: bool = False
    version: str = ""

    @property
    def released(self) -> bool:
        """Whether its label was changed so that its ReplicaSet lets it go."""
        return self.hash_label.endswith(RELEASED_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementFacts:
    """The pod that takes the place of the moved one.

    Attributes:
        node: where it is bound; empty while it is pending.
        card: the card of its assignment; None without a readable one.
        stuck: why its container cannot start whatever the time, such as an image that cannot be
            pulled; empty if nothing is known to be wrong.
        demoted: it is marked as the pod that its ReplicaSet should delete first.
        version: its resourceVersion.
    """

    name: str
    uid: str
    node: str = ""
    card: CardUuid | None = None
    ready: bool = False
    stuck: str = ""
    demoted: bool = False
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerFacts:
    """The controller of the moved pod.

    Attributes:
        there: the very controller exists and is not being deleted.
        observed: its status is of its current spec.
        desired: how many pods it should have.
        ready: how many of its pods are Ready, by its own status. That may be of before the move, as
            long as kube-controller-manager is not back after an outage.
        others: how many Ready pods besides the moved one belong to it.
        current: it is what its Deployment wants now; false during a rollout to another one.
        failure: why it could not create a pod; empty if it could.
        fragile: it is a Job that one more failed pod would fail.
        selects_by: the hash of the template that it selects its pods by; empty if it does not
            select by that label.
        orphans: it left pods without a controller behind, as ``--cascade=orphan`` does.
    """

    there: bool
    observed: bool = False
    desired: int = 0
    ready: int = 0
    others: int = 0
    current: bool = True
    failure: str = ""
    fragile: bool = False
    selects_by: str = ""
    orphans: bool = False

    @property
    def satisfied(self) -> bool:
        """Whether all the pods that it should have are Ready."""
        return self.there and self.observed and self.ready >= self.desired

    @property
    def needs_no_other(self) -> bool:
        """Whether it has all the pods that it should have without the moved one."""
        return self.there and self.observed and self.others >= self.desired


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFacts:
    """Everything about one move that the API server shows now.

    Attributes:
        replacement: None while no pod takes the place of the victim.
        target_problem: why no pod can start on the target's node now; empty if one can.
    """

    victim: VictimFacts
    owner: OwnerFacts
    replacement: ReplacementFacts | None = None
    target_problem: str = ""


_FOR_NOW: Final = (
    EvictionOutcome.BLOCKED,
    EvictionOutcome.BUSY,
    EvictionOutcome.UNCLEAR,
    EvictionOutcome.CHANGED,
)

_Obstacle = tuple[Ending, str]


def planned(move: Move, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a planned move does next."""
    longest = timedelta(seconds=context.policy.plan_ttl_s)
    if move.spec.reserved_until - move.planned_at < longest:
        # It reserves nothing: only its status, which was not written any more, would have said so.
        return end(move, Ending.DRY_RUN, "it was only to be shown", now=context.now)
    late = move.age(now=context.now) > longest
    return _check(move, facts, context, late=late) or Do(Action.PREFLIGHT)


def reserved(move: Move, _: MoveFacts, context: StepContext) -> Step:
    """Return what a move does that was checked with its reservation in the ledger."""
    return Enter(move.to(MovePhase.NOTICED, now=context.now))


def noticed(move: Move, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does whose pod has been given notice."""
    now, policy = context.now, context.policy
    notice = notice_of(move, policy)
    if notice and facts.victim.there and not facts.victim.notice:
        return Do(Action.NOTICE)
    asked = move.spec.grace_s > 0 and facts.victim.prepared
    if move.age(now=now) < notice and not asked and not _why_not_begun(move, policy, now=now):
        return Wait(f"the notice of {notice.total_seconds():g} s")
    if now > move.phase_since:  # else all of it was checked in this very cycle
        late = move.age(now=now) > notice + timedelta(seconds=policy.plan_ttl_s)
        found = _check(move, facts, context, late=late)
        if found is not None:
            return found
    return Enter(_begun(move, facts, context))


def notice_of(move: Move, policy: RebalancerPolicy) -> timedelta:
    """Return how long before it is disturbed the pod is told; it may be ready earlier."""
    return timedelta(seconds=max(policy.notice_s, move.spec.grace_s))


def _replaced_within(move: Move, policy: RebalancerPolicy) -> timedelta:
    """Return how long a replacement may take: twice as long as others of its owner at least."""
    return timedelta(seconds=max(policy.replacement_ttl_s, 2 * move.spec.startup_s))


def preflight_answered(move: Move, result: EvictionResult, context: StepContext) -> Step:
    """Return what follows from the dry run of the steps that disturb the pod."""
    surge = move.spec.mode is MoveMode.SURGE
    # A surge makes room in the budget: it counts the replacement beside the pod.
    allowed = result.outcome is EvictionOutcome.ALLOWED or (
        surge and result.outcome is EvictionOutcome.BLOCKED
    )
    if allowed:
        return Enter(move.to(MovePhase.RESERVED, now=context.now))
    if result.outcome in _FOR_NOW:
        return Wait(result.detail)
    gone = result.outcome in (EvictionOutcome.GONE, EvictionOutcome.OTHER_POD)
    ending = Ending.POD_GONE if gone else Ending.REFUSED
    return end(move, ending, result.detail, now=context.now)


def without_move(state: DisruptionState, move: Move) -> DisruptionState:
    """Return the disruption state as if this move had never begun."""
    return replace(state, past=[other for other in state.past if other.name != move.name])


def _check(move: Move, facts: MoveFacts, context: StepContext, *, late: bool) -> Step | None:
    """Return why the pod may not be disturbed now, as a step; None if it may be."""
    now = context.now
    stopped = _why_not_begun(move, context.policy, now=now)
    if stopped:
        return end(move, Ending.PAUSED, stopped, now=now)
    obstacle = _obstacle(move, facts)
    if obstacle is not None:
        return end(move, *obstacle, now=now)
    waiting_for = _not_yet(move, facts, context)
    if late:
        return end(move, Ending.EXPIRED, waiting_for or move.status.message, now=now)
    if waiting_for:
        return Wait(waiting_for)
    outdated = _why_outdated(move, context)
    return end(move, Ending.OUTDATED, outdated, now=now) if outdated else None


def _why_not_begun(move: Move, policy: RebalancerPolicy, *, now: datetime) -> str:
    """Return why nobody may be disturbed anew.

    While it is paused, or in a change freeze, what has begun is finished.
    """
    frozen_until = policy.frozen_until(now)
    freeze = (
        f"a change freeze is in effect until {frozen_until:%F %H:%M %Z}" if frozen_until else ""
    )
    return why_stopped(move, policy) or ("paused" if policy.paused else freeze)


def _obstacle(move: Move, facts: MoveFacts) -> _Obstacle | None:
    """Return what rules the move out for good, with the ending that it gives."""
    victim, owner = facts.victim, facts.owner
    surge, taken = move.spec.mode is MoveMode.SURGE, _taken(facts)
    rules: tuple[tuple[bool, Ending, str], ...] = (
        (not victim.there, Ending.POD_GONE, victim.why_gone),
        (not victim.running, Ending.REFUSED, "it is not running"),
        (not owner.there, Ending.OWNER_GONE, "its controller is gone or being deleted"),
        (
            victim.controller_uid != move.spec.owner.uid,
            Ending.POD_GONE,
            "it does not belong to its controller any more",
        ),
        (not owner.current, Ending.ROLLOUT, "its owner is being rolled out"),
        (
            surge and (not victim.hash_label or owner.selects_by != victim.hash_label),
            Ending.REFUSED,
            "its ReplicaSet does not select it by the hash of its template",
        ),
        (owner.fragile, Ending.REFUSED, _FRAGILE),
        (bool(facts.target_problem), Ending.TARGET_LOST, facts.target_problem),
        (bool(taken), Ending.TARGET_LOST, taken),
    )
    return next(((ending, why) for broken, ending, why in rules if broken), None)


_FRAGILE: Final = "its Job has no retry left, so that an eviction would fail it"


def _taken(facts: MoveFacts) -> str:
    """Return who has what is reserved for a pod that is still there; empty if nobody has."""
    found = facts.replacement
    return f"pod {found.name} of its owner was bound to the target" if found and found.node else ""


def _not_yet(move: Move, facts: MoveFacts, context: StepContext) -> str:
    """Return what the move still waits for; empty when nothing."""
    spec = move.spec
    node = context.nodes.get(spec.source.node)
    # Cards that are freed for a waiting pod are kept by the Move; a cordon would keep that pod off.
    # In the mode recommend there are no cordons, and a card that people drain has its own.
    if (
        spec.beneficiary is None
        and not move.spec.approved
        and (node is None or spec.source.card not in node.cordoned(now=context.now))
    ):
        return "the cordon of its card"
    state = context.state
    blind = blindness(state.usage, state.cards(), context.policy)
    if blind:
        return blind
    return "" if facts.owner.satisfied else "another pod of its owner is not ready"


def _why_outdated(move: Move, context: StepContext) -> str:
    state = without_move(context.state, move)
    policy = context.policy
    if move.spec.approved:  # what was only recommended besides does not speak against it
        policy = replace(policy, mode=Mode.ACTIVE)
    heat = state.heat.get(move.spec.target.card)
    if heat is None or heat.heat is not Heat.COOL or state.reading(move.spec.target.card) is None:
        return f"card {move.spec.target.display} is not known to be cool any more"
    held = validate_move(state, move.spec, policy=policy, now=context.now)
    return f"{held.subject}: {held.reason.value} {held.detail}".strip() if held else ""


def _begun(move: Move, facts: MoveFacts, context: StepContext) -> Move:
    """Return the Move in the first phase that disturbs the pod; the reservation starts anew."""
    now, policy = context.now, context.policy
    if move.spec.mode is MoveMode.SURGE:
        until = now + timedelta(seconds=policy.replacement_ttl_s)
        return move.to(
            MovePhase.SURGING,
            now=now,
            released_hash=facts.victim.hash_label,
            reserved_until=max(until, move.reserved_until),
        )
    until = now + timedelta(seconds=policy.evict_ttl_s + policy.replacement_ttl_s)
    return move.to(MovePhase.EVICTING, now=now, reserved_until=max(until, move.reserved_until))


# Longer than watch events take; only then is a replacement that is not seen known not to exist.
_OBSERVED_WITHIN: Final = timedelta(seconds=60)

_RollBack = tuple[Ending, str]


def surging(move: Move, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does whose pod is, or is about to be, released from its ReplicaSet."""
    if not facts.victim.there:
        return _ended_by_itself(move, facts, context)
    reason = why_roll_back(move, facts, context) or _why_unready(move, facts, context)
    if reason is not None:
        return roll_back(move, facts, context, *reason)
    if not facts.victim.released:
        return Do(Action.RELEASE)
    found = facts.replacement
    if found is None:
        return Wait("the replacement is not created yet")
    known = noted(move, found)
    if known != move:
        return Enter(known)
    if not (found.node and found.ready):
        return Wait("the replacement is not Ready yet" if found.node else "it is not bound yet")
    if not facts.owner.needs_no_other:
        return Wait("another pod of its owner is not Ready")
    return Enter(move.to(MovePhase.REPLACEMENT_READY, now=context.now))


def replacement_ready(move: Move, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does whose replacement is Ready, but not for long enough yet."""
    step = still_replaced(move, facts, context)
    if step is not None:
        return step
    if move.age(now=context.now) < timedelta(seconds=context.policy.ready_s):
        return Wait(f"the replacement has to be Ready for {context.policy.ready_s:g} s")
    return Enter(move.to(MovePhase.EVICTING, now=context.now))


def still_replaced(move: Move, facts: MoveFacts, context: StepContext) -> Enter | None:
    """Return what to do instead of evicting the pod; None if its replacement is Ready now."""
    if not facts.victim.there:
        return _ended_by_itself(move, facts, context)
    reason = why_roll_back(move, facts, context)
    if reason is not None:
        return roll_back(move, facts, context, *reason)
    if not facts.victim.released:
        # Somebody gave it its label back: its ReplicaSet counts it again.
        reason = (Ending.INTERFERED, "the label of the released pod was changed by somebody else")
        return roll_back(move, facts, context, *reason)
    found = facts.replacement
    if found is None or not found.ready or noted(move, found) != move:
        message = "the replacement is not Ready any more"
    elif not facts.owner.needs_no_other:
        # An autoscaler's pod may have got what was reserved, and the replacement find no room.
        message = "another pod of its owner is not Ready"
    else:
        return None
    return Enter(move.to(MovePhase.SURGING, now=context.now, message=message))


def why_roll_back(move: Move, facts: MoveFacts, context: StepContext) -> _RollBack | None:
    """Return why a surge has to be undone, with the ending that it gives; None to go on."""
    owner, found = facts.owner, facts.replacement
    stopped = why_stopped(move, context.policy)
    bound = found is not None and bool(found.node)
    lapsed = context.now >= move.reserved_until
    unheard = found is None and facts.victim.controller_uid == move.spec.owner.uid
    misplaced = found is not None and bound and not _accepted(move, found, context)
    rules: tuple[tuple[bool, Ending, str], ...] = (
        (bool(stopped), Ending.PAUSED, stopped),
        (not owner.there, Ending.OWNER_GONE, "its controller is gone or being deleted"),
        (not owner.current, Ending.ROLLOUT, "its owner is being rolled out"),
        (found is None and bool(owner.failure), Ending.NOT_CREATED, owner.failure),
        (not bound and bool(facts.target_problem), Ending.TARGET_LOST, facts.target_problem),
        (lapsed and unheard, Ending.EXPIRED, "its controller has not acted on the change in time"),
        (not bound and lapsed, Ending.LAPSED, "the reservation lapsed before it was used"),
        (misplaced, Ending.MISPLACED, _where(found)),
        (found is not None and bool(found.stuck), Ending.NOT_READY, found.stuck if found else ""),
    )
    return next(((ending, why) for broken, ending, why in rules if broken), None)


def roll_back(
    move: Move, facts: MoveFacts, context: StepContext, ending: Ending, why: str
) -> Enter:
    """Return the step that undoes a surge; if the pod was not released yet, nothing has to be."""
    untouched = (
        move.phase is MovePhase.SURGING
        and not facts.victim.released
        and facts.victim.controller_uid == move.spec.owner.uid
    )
    if untouched:
        return end(move, ending, why, now=context.now)
    undoing = move.to(MovePhase.ROLLING_BACK, now=context.now, message=why, result=ending.value)
    return Enter(undoing)


def rolling_back(move: Move, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does that is being undone."""
    now, victim = context.now, facts.victim
    ending = move.ending or Ending.INTERFERED
    adopted = not victim.released and bool(victim.controller_uid)
    if not victim.there or (adopted and not victim.moved_by):
        return end(move, ending, move.status.message, now=now)
    if move.age(now=now) > timedelta(seconds=context.policy.evict_ttl_s):
        return end(move, ending, f"{move.status.message}; {_LEFT}", now=now)
    if move.status.retry_at is not None and now < move.status.retry_at:
        return Wait(move.status.message)
    if adopted:  # until then the mark lets the janitor find the pod, whatever becomes of this move
        return Do(Action.UNMARK)
    if not facts.owner.there:
        return _without_owner(move, facts, context)
    if not victim.released:
        return Wait(move.status.message)  # its ReplicaSet will adopt it
    found = facts.replacement
    return Do(Action.DEMOTE if found is not None and not found.demoted else Action.RESTORE)


def noted(move: Move, found: ReplacementFacts) -> Move:
    """Return the Move with the replacement as it is known now."""
    replacement = Replacement(
        name=found.name, uid=found.uid, node=found.node, card=found.card or CardUuid("")
    )
    return (
        move
        if move.status.replacement == replacement
        else move.with_status(replacement=replacement)
    )


_LEFT: Final = "it still has no controller, which is looked at every minute"


def _ended_by_itself(move: Move, facts: MoveFacts, context: StepContext) -> Enter:
    message = facts.victim.why_gone
    return Enter(move.to(MovePhase.EVICTED, now=context.now, message=message))


def _why_unready(move: Move, facts: MoveFacts, context: StepContext) -> _RollBack | None:
    """Return why the replacement is waited for no longer."""
    found = facts.replacement
    limit = _replaced_within(move, context.policy)
    if found is not None and found.ready:
        limit *= 2  # one that is Ready by turns gets twice the time
    since = move.first_in(MovePhase.SURGING) or move.phase_since
    if context.now - since > limit:
        return Ending.NOT_READY, "the replacement did not become Ready in time"
    scaled_down = found is None and facts.victim.released and facts.owner.needs_no_other
    # A new leader may have released the pod only a moment ago.
    watched = context.now - max(since, context.state.leading_since)
    if scaled_down and (facts.owner.desired == 0 or watched > _OBSERVED_WITHIN):
        return Ending.SCALED_DOWN, "its owner has all the pods that it should have"
    return None


def _accepted(move: Move, found: ReplacementFacts, context: StepContext) -> bool:
    """Report whether the replacement may stay where it is: on the target or another cool card."""
    spec = move.spec
    if found.card == spec.target.card:
        return True
    if found.card is None or found.card == spec.source.card:
        return False
    heat, reading = context.state.heat.get(found.card), context.state.reading(found.card)
    if heat is None or heat.heat is not Heat.COOL or reading is None:
        return False
    # What it uses there already is in the card's level.
    to_come = spec.reason.busy_ratio - reading.pods.get(found.uid, 0.0)
    return reading.level_ratio + max(0.0, to_come) <= context.policy.hot_ratio


def _where(found: ReplacementFacts | None) -> str:
    if found is None or found.card is None:
        return "the replacement has no card"
    return f"the replacement got card {found.card} on {found.node}, which is not known to be cool"


def _without_owner(move: Move, facts: MoveFacts, context: StepContext) -> Step:
    """Return what becomes of a released pod whose controller was deleted meanwhile.

    If the controller left its other pods behind, the pod stays as they do. Otherwise it goes as
    they do: nothing else would ever delete it.
    """
    if move.age(now=context.now) < _OBSERVED_WITHIN:
        return Wait(move.status.message)  # the garbage collector is at work
    if not facts.owner.orphans:
        return Do(Action.EVICT)
    if facts.victim.released:
        return Do(Action.RESTORE)
    if facts.victim.moved_by:
        return Do(Action.UNMARK)
    return end(move, move.ending or Ending.OWNER_GONE, move.status.message, now=context.now)


_FIRST_PAUSE_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 60.0


def evicting(move: Move, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does whose pod may have been evicted; the facts show whether it was."""
    if not facts.victim.there:
        message = facts.victim.why_gone
        return Enter(move.to(MovePhase.EVICTED, now=context.now, message=message))
    now = context.now
    surge = move.spec.mode is MoveMode.SURGE
    instead = still_replaced(move, facts, context) if surge else _why_not(move, facts, context)
    if instead is not None:
        return _withdraw(move, instead, context)
    if move.age(now=now) > timedelta(seconds=context.policy.evict_ttl_s):
        return _give_up(move, facts, context, Ending.BLOCKED, move.status.message)
    if move.status.retry_at is not None and now < move.status.retry_at:
        return Wait(move.status.message)
    return Do(Action.EVICT)


def evict_answered(
    move: Move,
    result: EvictionResult,
    facts: MoveFacts,
    context: StepContext,
    *,
    jitter: float,
) -> Step:
    """Return what follows from the answer of the Eviction API.

    Args:
        move: in phase Evicting, or RollingBack if its controller was deleted.
        result: the answer.
        facts: what was known before the eviction was asked for.
        context: of this cycle.
        jitter: 0..1; spreads the retries.
    """
    gone = (EvictionOutcome.GONE, EvictionOutcome.OTHER_POD, EvictionOutcome.CHANGED)
    undoing = move.phase is MovePhase.ROLLING_BACK
    if result.outcome in gone or (undoing and result.outcome is EvictionOutcome.ALLOWED):
        # The next cycle reads the pod.
        return Wait(move.status.message if undoing else result.detail)
    if undoing:
        return Enter(_later(move, result, context, jitter=jitter, message=move.status.message))
    if result.outcome is EvictionOutcome.ALLOWED:
        return Enter(move.to(MovePhase.EVICTED, now=context.now))
    if result.outcome is EvictionOutcome.REFUSED:
        return _give_up(move, facts, context, Ending.REFUSED, result.detail)
    return Enter(_later(move, result, context, jitter=jitter, message=result.detail))


def evicted(move: Move, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does whose pod is gone."""
    now, found, owner = context.now, facts.replacement, facts.owner
    within = _replaced_within(move, context.policy)
    until = move.status.retry_at or move.phase_since + within
    if found is not None and found.node and found.ready:
        return Enter(noted(move, found).to(MovePhase.VERIFYING, now=now))
    if not owner.there:
        return end(move, Ending.OWNER_GONE, "its controller is gone or being deleted", now=now)
    old = context.state.pods.get(move.spec.pod.uid)
    ends_by = old.info.ends_by if old is not None else None
    if (
        found is None
        and ends_by is not None
        and now < min(ends_by, move.phase_since + _LONGEST_END)
    ):
        return _prolonged(move, until, within, now=now)
    if now <= until:
        return Wait("the replacement is not Ready yet")
    # Lost is what the owner misses, not what is not seen: it may have been scaled down meanwhile.
    if owner.needs_no_other:
        detail = "its owner has all the pods that it should have, without a replacement"
        return end(move, Ending.SCALED_DOWN, detail, now=now)
    detail = f"{owner.ready} of {owner.desired} pods of its owner are Ready"
    return end(move, Ending.LOST, f"no replacement became Ready: {detail}", now=now)


def _prolonged(move: Move, until: datetime, within: timedelta, *, now: datetime) -> Step:
    """Return how a move waits for a pod that ends slowly; most owners replace it only then.

    The reservation must not lapse before. As in `verifying`, that is written now and then only.
    """
    if until - now >= within / 2:
        return Wait(_ENDING)
    until = now + within
    reserved_until = max(until, move.reserved_until)
    return Enter(move.with_status(retry_at=until, reserved_until=reserved_until, message=_ENDING))


def verifying(move: Move, _: MoveFacts, context: StepContext) -> Step:
    """Return what a move does whose replacement runs."""
    settle = timedelta(seconds=context.policy.settle_s)
    there = move.spec.pod.uid in context.state.pods  # it still uses the source
    if there and move.age(now=context.now) < _LONGEST_END:
        # The time is written now and then only, not in every cycle of a long grace period.
        settled_at = move.status.retry_at or move.phase_since
        if settled_at - context.now < settle / 2:
            return Enter(move.with_status(retry_at=context.now + settle, message=_ENDING))
        return Wait(_ENDING)
    if context.now < (move.status.retry_at or move.phase_since + settle):
        return Wait("the cards have to settle")
    if _may_start_still(move, context):
        return Wait("the pod that waits has not started yet")
    found = verification(move, context)
    if found.relieved is None:
        return end(move, Ending.UNVERIFIED, found.detail, now=context.now)
    ending = Ending.RELIEVED if found.relieved else Ending.USELESS
    return end(move, ending, found.detail, now=context.now)


_ENDING: Final = "the old pod has not ended yet"
_LONGEST_END: Final = timedelta(hours=6)  # a pod on a node that is lost never ends


def _may_start_still(move: Move, context: StepContext) -> bool:
    """Report whether cards are kept for a pod that waits still: others of the plan may follow."""
    beneficiary = move.spec.beneficiary
    if beneficiary is None or context.now >= beneficiary.held_until:
        return False
    waiting = context.state.pods.get(beneficiary.uid)
    return waiting is not None and not waiting.info.record.node


def verification(move: Move, context: StepContext) -> Verification:
    """Return whether the move helped: by what both cards show now, or by the pod that waited."""
    spec = move.spec
    if spec.beneficiary is not None:
        waiting = context.state.pods.get(spec.beneficiary.uid)
        return verify_room(
            started=waiting is not None and bool(waiting.info.record.node),
            target=context.state.reading(move.landed or spec.target.card),
            policy=context.policy,
        )
    return verify(
        before_ratio=spec.reason.level_ratio,
        pod_ratio=spec.reason.busy_ratio,
        source=context.state.reading(spec.source.card),
        target=context.state.reading(move.landed or spec.target.card),
        policy=context.policy,
        pod_uid=spec.pod.uid,
    )


def _why_not(move: Move, facts: MoveFacts, context: StepContext) -> Enter | None:
    """Return what to do instead of evicting a pod that has no replacement yet; None to evict."""
    stopped = why_stopped(move, context.policy)
    target = facts.target_problem or _taken(facts) or _card_problem(move, context)
    rules = (
        (bool(stopped), Ending.PAUSED, stopped),
        (not facts.owner.there, Ending.OWNER_GONE, "its controller is gone or being deleted"),
        (not facts.owner.current, Ending.ROLLOUT, "its owner is being rolled out"),
        (facts.owner.fragile, Ending.REFUSED, _FRAGILE),
        (bool(target), Ending.TARGET_LOST, target),
        (not facts.victim.running, Ending.REFUSED, "it is not running"),
    )
    for broken, ending, why in rules:
        if broken:
            return end(move, ending, why, now=context.now)
    return None


def _card_problem(move: Move, context: StepContext) -> str:
    """Return why the target takes no replacement now, or empty: an eviction is tried for long."""
    target = move.spec.target
    info = context.state.snapshot.card(target.card)
    closed = info is None or info.cordoned or info.card.health is not Health.HEALTHY
    return f"card {target.display} takes no pods any more" if closed else ""


def _give_up(move: Move, facts: MoveFacts, context: StepContext, ending: Ending, why: str) -> Step:
    if move.spec.mode is MoveMode.SURGE:
        return _withdraw(move, roll_back(move, facts, context, ending, why), context)
    return _withdraw(move, end(move, ending, why, now=context.now), context)


def _withdraw(move: Move, otherwise: Enter, context: StepContext) -> Step:
    """Return how a move goes back that may have sent an eviction which has not arrived yet.

    It may come from a leader that stood still or died, or from us: an answer that did not come in
    time says nothing. Its target must not be released while it can still take the pod. Where the
    pod cannot be changed, this is tried as long again as the eviction was.
    """
    if move.age(now=context.now) > 2 * timedelta(seconds=context.policy.evict_ttl_s):
        return otherwise
    return Do(Action.WITHDRAW, then=otherwise)


def _later(
    move: Move,
    result: EvictionResult,
    context: StepContext,
    *,
    jitter: float,
    message: str,
) -> Move:
    """Return the Move with the time of the next attempt."""
    pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(move.status.attempts, 10), _LONGEST_PAUSE_S)
    pause_s *= 0.5 + jitter / 2
    if result.outcome is EvictionOutcome.UNCLEAR:
        pause_s = 1.0  # the next cycle reads the pod first
    pause_s = max(pause_s, min(result.retry_after_s or 0.0, _LONGEST_PAUSE_S))
    return move.with_status(
        attempts=move.status.attempts + 1,
        retry_at=context.now + timedelta(seconds=pause_s),
        message=message,
    )


_BY_PHASE: Final[Mapping[MovePhase, Callable[[Move, MoveFacts, StepContext], Step]]] = {
    MovePhase.PLANNED: planned,
    MovePhase.RESERVED: reserved,
    MovePhase.NOTICED: noticed,
    MovePhase.SURGING: surging,
    MovePhase.REPLACEMENT_READY: replacement_ready,
    MovePhase.EVICTING: evicting,
    MovePhase.EVICTED: evicted,
    MovePhase.VERIFYING: verifying,
    MovePhase.ROLLING_BACK: rolling_back,
}


def next_step(move: Move, facts: MoveFacts, context: StepContext) -> Step:
    """Return what a move does next, by its phase."""
    return _BY_PHASE[move.phase](move, facts, context)


def answered(
    due: Do,
    move: Move,
    result: EvictionResult,
    facts: MoveFacts,
    context: StepContext,
    *,
    jitter: float,
) -> Step:
    """Return what follows from the API server's answer to a side effect.

    The arguments are as those of `evict_answered`.
    """
    match due.action:
        case Action.EVICT:
            return evict_answered(move, result, facts, context, jitter=jitter)
        case Action.PREFLIGHT:
            return preflight_answered(move, result, context)
        case Action.DEMOTE:  # whether or not it is marked, the pod gets its label back
            return Do(Action.RESTORE)
        case Action.NOTICE | Action.RELEASE if result.outcome is EvictionOutcome.REFUSED:
            return end(move, Ending.REFUSED, result.detail, now=context.now)
        case Action.NOTICE:  # the notice itself is read in the next cycle
            notice = notice_of(move, context.policy)
            return Wait(result.detail or f"the notice of {notice.total_seconds():g} s")
        case Action.RELEASE:  # released, or unclear: the pod is read again before anything else
            return Wait(result.detail or "the replacement is not created yet")
        case Action.WITHDRAW | Action.RESTORE | Action.UNMARK:
            done = result.outcome is EvictionOutcome.ALLOWED
            waiting = Wait(move.status.message if done else result.detail or move.status.message)
            return due.then if done and due.then else waiting
