"""What a move does to pods: dry runs, the notice, the label that releases a pod, the eviction."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, timedelta
from typing import Any, Final

from fracgpu import names
from fracgpu.disruption.candidates import HASH_LABEL, original_value, released_value
from fracgpu.state.move_object import MoveMode
from kube.client import KubeClient, PatchType
from kube.errors import Conflict, Invalid, KubeError
from kube.kinds import PODS
from rebalancer.moves.evictor import EvictionOutcome, EvictionResult, Evictor, judge
from rebalancer.moves.record import MoveRecord
from rebalancer.moves.steps import (
    DELETION_COST,
    LOWEST_COST,
    Action,
    MoveFacts,
    StepContext,
    VictimFacts,
)

_DONE: Final = EvictionResult(outcome=EvictionOutcome.ALLOWED)


class SideEffects:
    """Performs the actions of moves; every one of them may be repeated.

    Args:
        client: reaches the API server.
        evictor: evicts pods.
        guard: raises where this process must not write any more.
    """

    def __init__(self, client: KubeClient, evictor: Evictor, *, guard: Callable[[], None]) -> None:
        self._client = client
        self._evictor = evictor
        self._guard = guard

    async def perform(
        self, action: Action, record: MoveRecord, facts: MoveFacts, context: StepContext
    ) -> EvictionResult:
        """Perform an action once, and return what the API server answered."""
        victim = facts.victim
        match action:
            case Action.PREFLIGHT:
                return await self._preflight(record, victim)
            case Action.NOTICE:
                return await self._notice(record, context)
            case Action.RELEASE:
                return await self._patch(record, _release(record, victim))
            case Action.EVICT:
                return await self._evictor.evict(record.move)
            case Action.WITHDRAW:
                return await self._patch(record, _withdraw(record, victim))
            case Action.DEMOTE:
                return await self._demote(record, facts)
            case Action.RESTORE | Action.UNMARK:
                return await self._patch(record, _restore(record, victim))

    async def _preflight(self, record: MoveRecord, victim: VictimFacts) -> EvictionResult:
        if record.mode is MoveMode.SURGE:
            released = await self._patch(record, _release(record, victim), dry_run=True)
            if released.outcome is not EvictionOutcome.ALLOWED:
                return released
        return await self._evictor.dry_run(record.move)

    async def _notice(self, record: MoveRecord, context: StepContext) -> EvictionResult:
        at = record.phase_since + timedelta(seconds=context.policy.notice_s)
        pod = record.spec.pod
        notice = f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        metadata = {"uid": pod.uid, "annotations": {names.NOTICE: notice}}
        return await self._merge(pod.namespace, pod.name, metadata)

    async def _demote(self, record: MoveRecord, facts: MoveFacts) -> EvictionResult:
        found = facts.replacement
        if found is None:
            return _DONE
        metadata = {"uid": found.uid, "annotations": {DELETION_COST: LOWEST_COST}}
        return await self._merge(record.spec.pod.namespace, found.name, metadata)

    async def _merge(self, namespace: str, name: str, metadata: dict[str, Any]) -> EvictionResult:
        self._guard()
        try:
            await self._client.patch(PODS, name, {"metadata": metadata}, namespace=namespace)
        except KubeError as error:
            return judge_write(error)
        return _DONE

    async def _patch(
        self, record: MoveRecord, operations: Sequence[dict[str, Any]], *, dry_run: bool = False
    ) -> EvictionResult:
        self._guard()
        pod = record.spec.pod
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
        return EvictionResult(outcome=EvictionOutcome.UNCLEAR, detail=str(error), code=error.status)
    return judge(error)


def _unchanged(uid: str, victim: VictimFacts) -> list[dict[str, Any]]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": victim.version},
    ]


def _release(record: MoveRecord, victim: VictimFacts) -> list[dict[str, Any]]:
    return [
        *_unchanged(record.spec.pod.uid, victim),
        {"op": "replace", "path": _LABEL, "value": released_value(victim.hash_label)},
        {"op": "add", "path": _annotation(names.MOVED_BY), "value": record.id},
    ]


def _withdraw(record: MoveRecord, victim: VictimFacts) -> list[dict[str, Any]]:
    """Return the patch that changes a pod in any case, whatever its notice says by now."""
    notice = _annotation(names.NOTICE)
    change = (
        {"op": "remove", "path": notice}
        if victim.notice == names.NOTICE_WITHDRAWN
        else {"op": "add", "path": notice, "value": names.NOTICE_WITHDRAWN}
    )
    return [*_unchanged(record.spec.pod.uid, victim), change]


def _restore(record: MoveRecord, victim: VictimFacts) -> list[dict[str, Any]]:
    original = record.status.released_hash or original_value(victim.hash_label)
    # A pod that has no controller yet keeps the mark: nothing else would find it any more.
    marks = [names.MOVED_BY] if victim.moved_by and not victim.released else []
    return restoring(victim, uid=record.spec.pod.uid, original=original, marks=marks)


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
    label = {"op": "replace", "path": _LABEL, "value": original}
    return [
        *_unchanged(uid, victim),
        *([label] if victim.released else []),
        *({"op": "remove", "path": _annotation(mark)} for mark in marks),
    ]


def _pointer(key: str) -> str:
    """Return a key as one token of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


_LABEL: Final = f"/metadata/labels/{_pointer(HASH_LABEL)}"


def _annotation(key: str) -> str:
    return f"/metadata/annotations/{_pointer(key)}"
