"""Deletes this node's pods that kubelet rejected, once their owners have replaced them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from fracgpu.errors import WireError
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.state.rejected_pod import is_replaced, was_rejected
from kube.client import KubeClient
from kube.errors import Conflict, KubeError, NotFound
from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import PODS
from process.clock import Clock

log = structlog.get_logger()

_PERIOD_S: Final = 10.0
# The most deletions in one pass, so that one node cannot flood the API server.
_MOST_AT_ONCE: Final = 50


class RejectedPodCleaner:
    """Deletes rejected pods periodically; never a pod without an owner, or one that has run.

    Args:
        node: its name.
        pods: this node's pods as last seen.
        client: lists and deletes.
        recorder: writes an event for each deleted pod.
        clock: paces the passes.
        period_s: between two passes.
    """

    def __init__(
        self,
        *,
        node: str,
        pods: Callable[[], Iterable[PodInfo]],
        client: KubeClient,
        recorder: EventRecorder,
        clock: Clock,
        period_s: float = _PERIOD_S,
    ) -> None:
        self._node = node
        self._pods = pods
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._period_s = period_s

    async def run(self) -> None:
        """Delete rejected pods until cancelled."""
        while True:
            await self._clock.sleep(self._period_s)
            await self.sync()

    async def sync(self) -> None:
        """Delete the pods that can be deleted now; a failure is logged and tried again."""
        rejected = [pod for pod in self._pods() if pod.owner is not None and was_rejected(pod)]
        listed: dict[str, Sequence[PodInfo]] = {}
        for pod in rejected[:_MOST_AT_ONCE]:
            namespace = pod.record.namespace
            try:
                if not is_replaced(pod, ()) and namespace not in listed:
                    listed[namespace] = await self._list(namespace)
                if is_replaced(pod, listed.get(namespace, ())):
                    await self._delete(pod)
            except (KubeError, WireError) as error:
                log.warning("refused_pod_kept", pod=pod.record.key, reason=str(error))

    async def _list(self, namespace: str) -> Sequence[PodInfo]:
        found = await self._client.list(PODS, namespace=namespace)
        return [decode_pod_info(bytes(raw)) for raw in found.items]

    async def _delete(self, pod: PodInfo) -> None:
        record = pod.record
        kind, name, _ = pod.owner or ("", "", "")
        try:
            await self._client.delete(PODS, record.name, namespace=record.namespace, uid=record.uid)
        except (NotFound, Conflict):  # deleted already, or its name belongs to another pod
            return
        log.info("refused_pod_removed", pod=record.key, uid=record.uid, reason=pod.reason)
        await self._recorder.emit(
            Regarding.pod(record),
            reason="RefusedPodRemoved",
            note=f"kubelet on {self._node} rejected the pod before it ran ({pod.reason}); "
            f"{kind} {name} has replaced it",
            level=EventLevel.NORMAL,
        )
