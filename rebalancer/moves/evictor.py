"""Requests evictions; no other module of FracGPU does."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fracgpu.disruption.move import Move
from fracgpu.errors import WireError
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient
from kube.errors import Conflict, KubeError, NotFound, TooManyRequests, Unavailable
from kube.kinds import PODS

# The API server's message; its status is 500, and a retry always gives the same answer.
# Source: kubernetes pkg/registry/core/pod/storage/eviction.go.
_TWO_BUDGETS: Final = "more than one PodDisruptionBudget"


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
    code: int | None = None
    retry_after_s: float | None = None


class Evictor:
    """Requests the eviction of one very pod as it was read: UID and version are preconditions.

    A request that is delayed on its way, beyond the term of the leader that sent it, therefore
    evicts nobody once the pod has been changed; see `Action.WITHDRAW`.

    Args:
        client: reaches the API server.
        guard: raises where this process must not write any more.
    """

    def __init__(self, client: KubeClient, *, guard: Callable[[], None]) -> None:
        self._client = client
        self._guard = guard

    async def dry_run(self, move: Move) -> EvictionResult:
        """Request with ``dryRun=All``: budgets, RBAC and webhooks are checked, no pod evicted."""
        return await self._ask(move, dry_run=True)

    async def evict(self, move: Move) -> EvictionResult:
        """Evict the pod with its own grace period; safe to call again after any outcome."""
        return await self._ask(move, dry_run=False)

    async def _check(self, move: Move) -> tuple[EvictionResult, str]:
        """Return whether the pod can still be evicted, and its resourceVersion.

        ALLOWED, GONE, OTHER_POD or REFUSED. A pending pod bypasses every disruption budget, so a
        pod that is not running is refused.
        """
        try:
            body = await self._client.get(PODS, move.name, namespace=move.namespace)
            pod = decode_pod_info(body)
        except NotFound:
            detail = "there is no such pod"
            return EvictionResult(outcome=EvictionOutcome.GONE, detail=detail, code=404), ""
        except KubeError as error:
            outcome = EvictionOutcome.UNCLEAR
            return EvictionResult(outcome=outcome, detail=str(error), code=error.status), ""
        except WireError as error:
            return EvictionResult(outcome=EvictionOutcome.REFUSED, detail=str(error)), ""
        return _state_of(pod, move), pod.record.resource_version

    async def _ask(self, move: Move, *, dry_run: bool) -> EvictionResult:
        # Read the pod first: it shows whether an eviction whose answer was lost took place. Who
        # leads after us changes the pod after this read, because the guard is asked after it.
        seen, version = await self._check(move)
        if seen.outcome is not EvictionOutcome.ALLOWED:
            return seen
        self._guard()
        try:
            await self._client.evict(
                namespace=move.namespace,
                name=move.name,
                uid=move.pod_uid,
                version="" if dry_run else version,
                dry_run=dry_run,
            )
        except KubeError as error:
            return judge(error)
        return EvictionResult(outcome=EvictionOutcome.ALLOWED, code=201)


def _state_of(pod: PodInfo, move: Move) -> EvictionResult:
    if pod.record.uid != move.pod_uid:
        detail = f"{move.pod} has UID {pod.record.uid}; want {move.pod_uid}"
        return EvictionResult(outcome=EvictionOutcome.OTHER_POD, detail=detail)
    if pod.record.terminating or not pod.record.live:
        return EvictionResult(outcome=EvictionOutcome.GONE, detail="it is terminating or has ended")
    if pod.phase != "Running":
        return EvictionResult(
            outcome=EvictionOutcome.REFUSED, detail=f"it is {pod.phase or 'not running'}"
        )
    return EvictionResult(outcome=EvictionOutcome.ALLOWED)


def judge(error: KubeError) -> EvictionResult:
    """Return what an error of the Eviction API means for the pod."""
    detail = str(error)
    if isinstance(error, NotFound):
        return EvictionResult(outcome=EvictionOutcome.GONE, detail=detail, code=error.status)
    if isinstance(error, Conflict):
        return EvictionResult(outcome=EvictionOutcome.CHANGED, detail=detail, code=error.status)
    if isinstance(error, TooManyRequests):
        outcome = EvictionOutcome.BLOCKED if error.by_disruption_budget else EvictionOutcome.BUSY
        return EvictionResult(
            outcome=outcome, detail=detail, code=error.status, retry_after_s=error.retry_after_s
        )
    if isinstance(error, Unavailable):
        outcome = (
            EvictionOutcome.REFUSED if _TWO_BUDGETS in error.message else EvictionOutcome.UNCLEAR
        )
        return EvictionResult(outcome=outcome, detail=detail, code=error.status)
    return EvictionResult(outcome=EvictionOutcome.REFUSED, detail=detail, code=error.status)
