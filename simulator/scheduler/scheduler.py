"""Stands in for kube-scheduler: one profile, one extender or none, an ordinary client of the API.

It filters nodes as kube-scheduler's plugins do, allocates claims, calls the extender with the same
JSON, and writes the same Events and conditions; it neither preempts nor scores by itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from fracgpu import names
from fracgpu.k8s.pod import LIVE_PODS
from kube.client import KubeClient, PatchType
from kube.errors import KubeError
from kube.events import EventLevel, EventRecorder, Regarding
from kube.informer import Change, ChangeType, Informer
from kube.kinds import NODES, PODS
from process.clock import Clock, wait_at_most
from simulator.objects import Json, decode, format_time
from simulator.scheduler.allocator import NoSuchClassError
from simulator.scheduler.claims import ClaimsChangedError, PodClaims, allocated_on
from simulator.scheduler.extender_client import ExtenderClient, ExtenderError
from simulator.scheduler.filters import NodeUsage, constraints_of, misfits, usage_of
from simulator.scheduler.scheduling_queue import SchedulingQueue
from simulator.scheduler.selectors import CelError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping, Sequence

    from simulator.scheduler.allocator import Devices

log = structlog.get_logger()

_LONGEST_WAIT_S: Final = 60.0


class Unschedulable(Exception):  # noqa: N818 - an answer
    """No node fits; ``str()`` is the message of FailedScheduling."""


class KubeScheduler:
    """The scheduling loop.

    Args:
        client: of any API server.
        clock: for backoffs and Events.
        extender_url: of ``/filter``, ``/prioritize`` and ``/bind``; called for pods that request
            gpu-mem. None: the configuration names no extender.
        tls: for an extender with ``https``.
        server_name: the name in the extender's certificate, if it is not that of its URL.
        scheduler_name: the profile; pods of others are ignored.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        extender_url: str | None,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        scheduler_name: str = names.SCHEDULER_NAME,
    ) -> None:
        self._client = client
        self._clock = clock
        self._open_extender = (
            nullcontext
            if extender_url is None
            else partial(ExtenderClient.open, extender_url, tls=tls, server_name=server_name)
        )
        self._name = scheduler_name
        self._queue = SchedulingQueue()
        self._pods: dict[str, Json] = {}
        self._assumed: dict[str, str] = {}
        self._noted: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._claims = PodClaims(client, clock, self._claims_changed)
        self._events = EventRecorder(client, scheduler_name, clock)
        self._node_informer = Informer(client, NODES, decode=decode, on_change=self._node_changed)
        self._pod_informer = Informer(
            client, PODS, decode=decode, field_selector=LIVE_PODS, on_change=self._pod_changed
        )

    async def run(self) -> None:
        """Schedule until cancelled, through outages of the API server and the extender."""
        async with (
            self._open_extender() as extender,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._node_informer.run(), name="kube-scheduler nodes")
            group.create_task(self._pod_informer.run(), name="kube-scheduler pods")
            group.create_task(self._claims.run(), name="kube-scheduler claims")
            await self._claims.wait_synced()
            await self._node_informer.wait_synced()
            await self._pod_informer.wait_synced()
            while True:
                uid = self._queue.next(now_s=self._clock.monotonic())
                if uid is None:
                    await self._wait()
                else:
                    await self._attempt(self._pods[uid], extender)

    async def _wait(self) -> None:
        self._changed.clear()
        wait_s = self._queue.wait_s(now_s=self._clock.monotonic())
        limit_s = min(_LONGEST_WAIT_S, max(0.01, wait_s))
        await wait_at_most(self._clock, self._changed, limit_s=limit_s)

    # -- state ---------------------------------------------------------------------------------

    def _node_changed(self, _change: Change[Json]) -> None:
        self._note_event()

    def _pod_changed(self, change: Change[Json]) -> None:
        pod, uid = change.object, change.uid
        if change.type is ChangeType.DELETED:
            for known in (self._pods, self._assumed, self._noted):
                known.pop(uid, None)
            self._queue.remove(uid)
        else:
            self._pods[uid] = pod
            if pod["spec"].get("nodeName"):
                self._assumed.pop(uid, None)
                self._noted.pop(uid, None)
            self._enqueue(pod)
        self._note_event()

    def _claims_changed(self) -> None:
        for pod in self._pods.values():
            if pod["spec"].get("resourceClaims"):
                self._enqueue(pod)
        self._note_event()

    def _enqueue(self, pod: Json) -> None:
        """Put a pod into the queue if it may be tried (PreEnqueue), and else out of it."""
        uid = pod["metadata"]["uid"]
        ready = self._is_pending(pod) and self._claims.of(pod) is not None
        if ready and uid not in self._assumed:
            self._queue.add(uid, priority=pod["spec"].get("priority") or 0)
        else:
            self._queue.remove(uid)

    def _note_event(self) -> None:
        self._queue.event()
        self._changed.set()

    def _is_pending(self, pod: Json) -> bool:
        spec = pod["spec"]
        return (
            spec.get("schedulerName") == self._name
            and not spec.get("nodeName")
            and not spec.get("schedulingGates")
            and "deletionTimestamp" not in pod["metadata"]
        )

    def _rooms(self) -> Iterable[NodeUsage]:
        on_node: dict[str, list[Json]] = {}
        for uid, pod in self._pods.items():
            node = pod["spec"].get("nodeName") or self._assumed.get(uid)
            if node:
                on_node.setdefault(node, []).append(pod)
        for key, node in sorted(self._node_informer.items().items()):
            yield usage_of(node, on_node.get(key.name, ()))

    # -- one attempt ---------------------------------------------------------------------------

    async def _attempt(self, pod: Json, extender: ExtenderClient | None) -> None:
        uid: str = pod["metadata"]["uid"]
        as_of = self._queue.event_count
        try:
            node = await self._choose(pod, extender)
            await self._bind(pod, node, extender)
        except Unschedulable as why:
            self._queue.refused(uid, now_s=self._clock.monotonic(), as_of=as_of)
            await self._note(pod, reason="Unschedulable", message=str(why))
        except (ExtenderError, KubeError, CelError, ClaimsChangedError) as error:
            self._assumed.pop(uid, None)
            if uid in self._pods:  # what changed meanwhile has taken it out of the queue
                self._enqueue(self._pods[uid])
            self._queue.erred(uid, now_s=self._clock.monotonic())
            await self._note(pod, reason="SchedulerError", message=str(error))
        else:
            self._queue.remove(uid)
            key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            log.info("pod_scheduled", pod=key, node=node)
            note = f"Successfully assigned {key} to {node}"
            await self._events.emit(_regarding(pod), reason="Scheduled", note=note)

    async def _choose(self, pod: Json, extender: ExtenderClient | None) -> str:
        refused: dict[str, tuple[str, ...]] = {}
        fitting: list[str] = []
        constraints = constraints_of(pod)
        claims, devices = self._claims.of(pod) or (), self._claims.devices()
        for room in self._rooms():
            reasons = misfits(constraints, room) or _without_devices(claims, room.name, devices)
            if reasons:
                refused[room.name] = reasons
            else:
                fitting.append(room.name)
        total = len(refused) + len(fitting)
        if fitting and extender is not None and _wants_extender(pod):
            answer = await extender.filter(pod, fitting)
            refused |= {name: (why,) for name, why in answer.refused.items()}
            fitting = list(answer.passed)
        if not fitting:
            raise Unschedulable(fit_error(refused, total=total))
        if len(fitting) == 1 or extender is None or not _wants_extender(pod):
            return fitting[0]
        scores: Mapping[str, int] = {}
        try:
            scores = await extender.prioritize(pod, fitting)
        except ExtenderError as error:  # kube-scheduler, too, continues without scores
            log.warning("prioritize_failed", error=str(error))
        return max(fitting, key=lambda name: scores.get(name, 0))  # among equals, the first by name

    async def _bind(self, pod: Json, node: str, extender: ExtenderClient | None) -> None:
        meta = pod["metadata"]
        # The pod is assumed on its node until the informer confirms it.
        self._assumed[meta["uid"]] = node
        await self._claims.reserve(pod, node)
        if extender is not None and _wants_extender(pod):
            await extender.bind(pod, node)
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"metadata": {"uid": meta["uid"]}, "target": target}
        await self._client.bind(binding, namespace=meta["namespace"], name=meta["name"])

    async def _note(self, pod: Json, *, reason: str, message: str) -> None:
        """Write why the pod is pending to its status and an Event, unless that is unchanged."""
        meta = pod["metadata"]
        uid: str = meta["uid"]
        if self._noted.get(uid) == message or uid not in self._pods:
            return
        self._noted[uid] = message
        key = f"{meta['namespace']}/{meta['name']}"
        log.info("pod_not_scheduled", pod=key, reason=reason, message=message)
        await self._events.emit(
            _regarding(pod), reason="FailedScheduling", note=message, level=EventLevel.WARNING
        )
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": format_time(self._clock.now()),
        }
        try:
            await self._client.patch(
                PODS,
                meta["name"],
                {"metadata": {"uid": uid}, "status": {"conditions": [condition]}},
                namespace=meta["namespace"],
                subresource="status",
                how=PatchType.STRATEGIC,
            )
        except KubeError as error:
            self._noted.pop(uid, None)
            log.warning("condition_not_written", pod=key, error=str(error))


def fit_error(refused: Mapping[str, tuple[str, ...]], *, total: int) -> str:
    """Return kube-scheduler's message: each reason after the number of its nodes."""
    counted = Counter(reason for reasons in refused.values() for reason in reasons)
    if not counted:
        return "no nodes available to schedule pods"
    parts = sorted(f"{count} {reason}" for reason, count in counted.items())
    return f"0/{total} nodes are available: {', '.join(parts)}."


def _without_devices(claims: Sequence[Json], node: str, devices: Devices) -> tuple[str, ...]:
    """Return why a pod's claims cannot be allocated on a node; empty if they can."""
    try:
        fit = allocated_on(claims, node, devices) is not None
    except NoSuchClassError as error:
        return (str(error),)
    return () if fit else ("cannot allocate all claims",)


def _wants_extender(pod: Json) -> bool:
    """Report whether a container of the pod has the extender's managed resource."""
    spec = pod["spec"]
    return any(
        names.GPU_MEM in ((container.get("resources") or {}).get(part) or {})
        for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
        for part in ("requests", "limits")
    )


def _regarding(pod: Json) -> Regarding:
    meta = pod["metadata"]
    return Regarding(kind=PODS, name=meta["name"], namespace=meta["namespace"], uid=meta["uid"])
