"""The only door out: nothing else of this program asks for an eviction."""

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

# The API server's words; it is a 500, and asking again gives the same answer for ever.
# Source: kubernetes pkg/registry/core/pod/storage/eviction.go.
_TWO_BUDGETS: Final = "more than one PodDisruptionBudget"


class EvictionOutcome(Enum):
    """What became of an eviction; also a metric label."""

    ALLOWED = "allowed"  # evicted, or in a rehearsal: would be
    GONE = "gone"  # it is terminating or gone already
    OTHER_POD = "other_pod"  # the name belongs to another pod
    BLOCKED = "blocked"  # a disruption budget says: not now
    BUSY = "busy"  # the API server says: not now
    REFUSED = "refused"  # never, as things stand
    UNCLEAR = "unclear"  # no answer: it may have happened


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionResult:
    """The outcome, in the API server's words, and how long it asked us to wait."""

    outcome: EvictionOutcome
    detail: str = ""
    code: int | None = None
    retry_after_s: float | None = None


class Evictor:
    """Asks the API server to evict one pod, and only that one: its UID is a precondition.

    Args:
        client: reaches the API server.
        guard: raises where this process must not write any more.
    """

    def __init__(self, client: KubeClient, *, guard: Callable[[], None]) -> None:
        self._client = client
        self._guard = guard

    async def dry_run(self, move: Move) -> EvictionResult:
        """Ask with ``dryRun=All``: budgets, RBAC and webhooks are judged, nothing is done."""
        return await self._ask(move, rehearsal=True)

    async def evict(self, move: Move) -> EvictionResult:
        """Evict it with its own grace period; safe to call again after any outcome."""
        return await self._ask(move, rehearsal=False)

    async def look(self, move: Move) -> EvictionResult:
        """Say whether the pod is still there to be evicted: ALLOWED, GONE, OTHER_POD or REFUSED.

        A pending pod bypasses every disruption budget, so one that is not running is refused.
        """
        try:
            body = await self._client.get(PODS, move.name, namespace=move.namespace)
            pod = decode_pod_info(body)
        except NotFound:
            return EvictionResult(
                outcome=EvictionOutcome.GONE, detail="there is no such pod", code=404
            )
        except KubeError as error:
            return EvictionResult(
                outcome=EvictionOutcome.UNCLEAR, detail=str(error), code=error.status
            )
        except WireError as error:
            return EvictionResult(outcome=EvictionOutcome.REFUSED, detail=str(error))
        return _state_of(pod, move)

    async def _ask(self, move: Move, *, rehearsal: bool) -> EvictionResult:
        # Read first: after an answer that was lost on the way, the pod itself knows.
        seen = await self.look(move)
        if seen.outcome is not EvictionOutcome.ALLOWED:
            return seen
        self._guard()
        try:
            await self._client.evict(
                namespace=move.namespace, name=move.name, uid=move.pod_uid, dry_run=rehearsal
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
    """Say what an error of the Eviction API means for the pod."""
    detail = str(error)
    if isinstance(error, NotFound):
        return EvictionResult(outcome=EvictionOutcome.GONE, detail=detail, code=error.status)
    if isinstance(error, Conflict):
        return EvictionResult(outcome=EvictionOutcome.OTHER_POD, detail=detail, code=error.status)
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
