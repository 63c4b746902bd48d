"""A new leader marks the pods of the last one's unfinished Bindings before it assigns any card.

Bindings of the previous leader may still be in flight: in a socket, in an API server that stalls
before or after admission, in etcd. The Lease names their pods, or any pending pod may be one
(:mod:`scheduler.binding_record`). Once its pod is marked, such a Binding is refused; until then
this replica answers no request. Pods that are bound when we list need no mark: they are counted. A
pod that is bound between our list and its mark is counted by the answer to the mark, because the
watch may show it later.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final

import structlog

from fracgpu.state.allocation import PodRecord
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.pod_info import PodInfo
from kube.errors import KubeError
from process.clock import Clock
from scheduler.binding_record import BindingRecord
from scheduler.cache.event_handlers import AnyPod
from scheduler.cache.pod_marker import PodMarker

log = structlog.get_logger()

_AT_ONCE: Final = 16
_LOOKED_AT_AT_ONCE: Final = 2_000  # pods; less than a millisecond
_RETRY_S: Final = 1.0


class Fence:
    """Marks pending pods, once per leadership.

    Args:
        pods: returns the pods as they were listed.
        record: says of which a Binding may be under way.
        marker: marks a pod.
        on_bound: called with a pod that the API server shows bound by then.
        clock: paces the retries.
        limit_s: after this, pods that could not be marked are given up, with an error in the log;
            the record keeps them for the next leader.
            An API server drops a request after a minute (``--request-timeout``), and the policy
            that compares terms denies whatever arrives later.
    """

    def __init__(
        self,
        pods: Callable[[], Iterable[AnyPod]],
        record: BindingRecord,
        marker: PodMarker,
        clock: Clock,
        *,
        on_bound: Callable[[PodInfo], None],
        limit_s: float,
    ) -> None:
        self._pods = pods
        self._record = record
        self._marker = marker
        self._clock = clock
        self._on_bound = on_bound
        self._limit_s = limit_s
        self._left: int | None = None
        self._up = asyncio.Event()

    def why_not(self) -> str | None:
        """Return the reason not to place any pod yet, or None."""
        if self._left is None:
            return "pending pods are not marked yet"
        return f"{self._left} pending pods are not marked yet" if self._left else None

    async def run(self) -> None:
        """Mark the pods, then wait until cancelled."""
        await self.mark_pending()
        await asyncio.Event().wait()

    def once_up(
        self, loop: Callable[[], Awaitable[None]]
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return *loop*, which begins when the pods are marked."""

        async def run() -> None:
            await self._up.wait()
            await loop()

        return run

    async def mark_pending(self) -> None:
        """Mark the pending pods that the record concerns, or give up after the limit."""
        until_s = self._clock.monotonic() + self._limit_s
        left: list[PodRecord] = []
        for at, pod in enumerate(tuple(self._pods())):
            if at % _LOOKED_AT_AT_ONCE == _LOOKED_AT_AT_ONCE - 1:
                await self._clock.sleep(0)
            if (
                isinstance(pod, PodInfo)
                and awaits_placement(pod)
                and self._record.concerns(pod.record.uid)
            ):
                left.append(pod.record)
            elif isinstance(pod, BoundPod) and (pod.asks_resize or self._record.names(pod.uid)):
                # A resize of it may be under way, which is refused once it is marked.
                left.append(PodRecord(uid=pod.uid, namespace=pod.namespace, name=pod.name))
        total = self._left = len(left)
        while left:
            left = await self._mark_all(left, until_s=until_s)
            if left and self._clock.monotonic() >= until_s:
                pods = [pod.key for pod in left[:10]]
                log.error("fence_incomplete", left=len(left), pods=pods, limit_s=self._limit_s)
                break
            if left:
                await self._clock.sleep(_RETRY_S)
        self._record.settle(left=[pod.uid for pod in left])
        self._left = 0
        self._up.set()
        log.info("fence_up", marked=total - len(left))

    async def _mark_all(self, pods: list[PodRecord], *, until_s: float) -> list[PodRecord]:
        failed: list[PodRecord] = []
        queue = iter(pods)

        async def mark() -> None:
            for pod in queue:
                # Marking many pods may outlast the limit if every request runs into its timeout.
                late = self._clock.monotonic() >= until_s
                if late or not await self._marked(pod):
                    failed.append(pod)

        async with asyncio.TaskGroup() as group:
            for number in range(min(_AT_ONCE, len(pods))):
                group.create_task(mark(), name=f"mark pods {number}")
        self._left = len(failed)
        return failed

    async def _marked(self, pod: PodRecord) -> bool:
        try:
            found = await self._marker.mark(pod)
        except (KubeError, TimeoutError, ValueError) as error:
            log.warning("pod_not_marked", pod=pod.key, error=str(error))
            return False
        if found is not None and found.record.node:
            self._on_bound(found)
        return True


def awaits_placement(pod: PodInfo) -> bool:
    """Report whether a pending pod may be assigned a card."""
    record = pod.record
    asking = pod.need is not None or bool(pod.need_problem)
    return asking and record.live and not record.node and not record.terminating
