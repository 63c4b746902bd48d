"""What a move does to pods: dry runs, the notice, the label that releases a pod, the eviction."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from fracgpu import names
from fracgpu.cards.annotations import write_time
from fracgpu.disruption.candidates import original_value, released_value
from fracgpu.errors import WireError
from fracgpu.state.move_object import Move, MoveMode, PodReference
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient, PatchType
from kube.errors import Conflict, Invalid, KubeError, NotFound, TooManyRequests, Unavailable
from kube.kinds import PODS
from rebalancer.moves.steps import (
    DELETION_COST,
    LOWEST_COST,
    Action,
    EvictionOutcome,
    EvictionResult,
    MoveFacts,
    StepContext,
    VictimFacts,
    notice_of,
)

# The API server's message; its status is 500, and a retry always gives the same answer.
# Source: kubernetes pkg/registry/core/pod/storage/eviction.go.
_TWO_BUDGETS: Final = "more than one PodDisruptionBudget"
_DONE: Final = EvictionResult(outcome=EvictionOutcome.ALLOWED)


def _state_of(pod: PodInfo, wanted: PodReference) -> EvictionResult:
    if pod.record.uid != wanted.uid:
        detail = f"{wanted.key} has UID {pod.record.uid}; want {wanted.uid}"
        return EvictionResult(outcome=EvictionOutcome.OTHER_POD, detail=detail)
    if pod.record.terminating or not pod.record.live:
        return EvictionResult(outcome=EvictionOutcome.GONE, detail="it is terminating or has ended")
    if pod.phase != "Running":
        return EvictionResult(
            outcome=EvictionOutcome.REFUSED, detail=f"it is {pod.phase or 'not running'}"
        )
    return _DONE


def judge(error: KubeError) -> EvictionResult:
    """Return what an error of the Eviction API means for the pod."""
    retry_after_s = None
    match error:
        case NotFound():
            outcome = EvictionOutcome.GONE
        case Conflict():
            outcome = EvictionOutcome.CHANGED
        case TooManyRequests():
            by_budget = error.by_disruption_budget
            outcome = EvictionOutcome.BLOCKED if by_budget else EvictionOutcome.BUSY
            retry_after_s = error.retry_after_s
        case Unavailable() if _TWO_BUDGETS not in error.message:
            outcome = EvictionOutcome.UNCLEAR
        case _:
            outcome = EvictionOutcome.REFUSED
    return EvictionResult(outcome=outcome, detail=str(error), retry_after_s=retry_after_s)


class SideEffects:
    """Performs the actions of moves; every one of them may be repeated.

    Args:
        client: reaches the API server.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def perform(
        self, action: Action, move: Move, facts: MoveFacts, context: StepContext
    ) -> EvictionResult:
        """Perform an action once, and return what the API server answered."""
        victim = facts.victim
        match action:
            case Action.PREFLIGHT:
                return await self._preflight(move, victim)
            case Action.NOTICE:
                return await self._notice(move, context)
            case Action.RELEASE:
                return await self._patch(move, _release(move, victim))
            case Action.EVICT:
                return await self.evict(move.spec.pod)
            case Action.WITHDRAW:
                return await self._patch(move, _withdraw(move, victim))
            case Action.DEMOTE:
                return await self._demote(move, facts)
            case Action.RESTORE | Action.UNMARK:
                return await self._patch(move, _restore(move, victim))

    async def evict(self, victim: PodReference, *, dry_run: bool = False) -> EvictionResult:
        """Evict one very pod with its own grace period; safe to call again after any outcome.

        UID and version as it was read are preconditions: a request that is delayed on its way,
        beyond the term of the leader that sent it, evicts nobody once the pod has been changed; see
        `Action.WITHDRAW`. A pending pod bypasses every disruption budget, so it is refused. A dry
        run checks budgets, RBAC and webhooks.
        """
        # Read the pod first: it shows whether an eviction whose answer was lost took place. Who
        # leads after us changes the pod after this read, because the guard is asked after it.
        try:
            body = await self._client.get(PODS, victim.name, namespace=victim.namespace)
            pod = decode_pod_info(body)
        except NotFound:
            return EvictionResult(outcome=EvictionOutcome.GONE, detail="there is no such pod")
        except KubeError as error:
            return EvictionResult(outcome=EvictionOutcome.UNCLEAR, detail=str(error))
        except WireError as error:
            return EvictionResult(outcome=EvictionOutcome.REFUSED, detail=str(error))
        found = _state_of(pod, victim)
        if found.outcome is not EvictionOutcome.ALLOWED:
            return found
        try:
            await self._client.evict(
                namespace=victim.namespace,
                name=victim.name,
                uid=victim.uid,
                version="" if dry_run else pod.record.resource_version,
                dry_run=dry_run,
            )
        except KubeError as error:
            return judge(error)
        return _DONE

    async def _preflight(self, move: Move, victim: VictimFacts) -> EvictionResult:
        if move.spec.mode is MoveMode.SURGE:
            released = await self._patch(move, _release(move, victim), dry_run=True)
            if released.outcome is not EvictionOutcome.ALLOWED:
                return released
        return await self.evict(move.spec.pod, dry_run=True)

    async def _notice(self, move: Move, context: StepContext) -> EvictionResult:
        at = move.phase_since + notice_of(move, context.policy)
        pod = move.spec.pod
        # That it was ready for an earlier move, which was given up, says nothing of this one.
        said = {names.NOTICE: write_time(at), names.MOVE_READY: None}
        metadata = {"uid": pod.uid, "annotations": said}
        return await self._merge(pod.namespace, pod.name, metadata)

    async def _demote(self, move: Move, facts: MoveFacts) -> EvictionResult:
        found = facts.replacement
        if found is None:
            return _DONE
        metadata = {"uid": found.uid, "annotations": {DELETION_COST: LOWEST_COST}}
        return await self._merge(move.spec.pod.namespace, found.name, metadata)

    async def _merge(self, namespace: str, name: str, metadata: dict[str, Any]) -> EvictionResult:
        try:
            await self._client.patch(PODS, name, {"metadata": metadata}, namespace=namespace)
        except KubeError as error:
            return judge_write(error)
        return _DONE

    async def _patch(
        self, move: Move, operations: Sequence[dict[str, Any]], *, dry_run: bool = False
    ) -> EvictionResult:
        pod = move.spec.pod
        try:
            await self._client.patch(
                PODS,
                pod.name,
                operations,
                namespace=pod.namespace,
                how=PatchType.JSON,
                dry_run=dry_run,
            )
        except KubeError as error:
            return judge_write(error)
        return _DONE


def judge_write(error: KubeError) -> EvictionResult:
    """Return what an error of a patch means: with a precondition that fails, the pod is read anew.

    A JSON patch whose ``test`` fails is answered with 422.
    """
    if isinstance(error, (Conflict, Invalid)):
        return EvictionResult(outcome=EvictionOutcome.UNCLEAR, detail=str(error))
    return judge(error)


def _unchanged(uid: str, victim: VictimFacts) -> list[dict[str, Any]]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": victim.version},
    ]


def _release(move: Move, victim: VictimFacts) -> list[dict[str, Any]]:
    return [
        *_unchanged(move.spec.pod.uid, victim),
        {"op": "replace", "path": _label(victim), "value": released_value(victim.hash_label)},
        {"op": "add", "path": _annotation(names.MOVED_BY), "value": move.name},
    ]


def _withdraw(move: Move, victim: VictimFacts) -> list[dict[str, Any]]:
    """Return the patch that changes a pod in any case, whatever its notice says by now."""
    notice = _annotation(names.NOTICE)
    change = (
        {"op": "remove", "path": notice}
        if victim.notice == names.NOTICE_WITHDRAWN
        else {"op": "add", "path": notice, "value": names.NOTICE_WITHDRAWN}
    )
    return [*_unchanged(move.spec.pod.uid, victim), change]


def _restore(move: Move, victim: VictimFacts) -> list[dict[str, Any]]:
    original = move.status.released_hash or original_value(victim.hash_label)
    # A pod that has no controller yet keeps the mark: nothing else would find it any more.
    marks = [names.MOVED_BY] if victim.moved_by and not victim.released else []
    return restoring(victim, uid=move.spec.pod.uid, original=original, marks=marks)


def restoring(
    victim: VictimFacts, *, uid: str, original: str, marks: Iterable[str]
) -> list[dict[str, Any]]:
    """Return the JSON patch that gives a pod its label back, if it was released, without marks.

    Args:
        victim: the pod as it was read; the patch fails if it has changed since.
        uid: the pod's.
        original: the value of the label before the pod was released.
        marks: the annotations to take off.
    """
    label = {"op": "replace", "path": _label(victim), "value": original}
    return [
        *_unchanged(uid, victim),
        *([label] if victim.released else []),
        *({"op": "remove", "path": _annotation(mark)} for mark in marks),
    ]


def _pointer(key: str) -> str:
    """Return a key as one token of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _label(victim: VictimFacts) -> str:
    return f"/metadata/labels/{_pointer(victim.hash_key)}"


def _annotation(key: str) -> str:
    return f"/metadata/annotations/{_pointer(key)}"
