"""The node object of a simulated kubelet: created if missing, kept ready, with its capacity."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import structlog

from kube.client import KubeClient
from kube.errors import AlreadyExists, KubeError, NotFound
from kube.kinds import NODES
from process.clock import Clock, wait_at_most

log = structlog.get_logger()

_OWN_CAPACITY: Final = {
    "cpu": "64",
    "memory": "512Gi",
    "pods": "110",
    "ephemeral-storage": "1000Gi",
}
_AMOUNTS: Final = ("capacity", "allocatable")
_AFTER_FAILURE_S: Final = 1.0


class NodeStatus:
    """Registers the node and keeps its status, as kubelet does at every status sync.

    Args:
        client: of the API server.
        clock: for the time between syncs and of heartbeats.
        name: the node.
        labels: set when the node is created; one that an administrator removes stays removed.
        taints: likewise.
        amounts: returns capacity and allocatable of device plugins' resources.
        sync_s: longest time between two syncs; kubelet's own is 10 s.
    """

    def __init__(  # noqa: PLR0913 - what a kubelet is told, by keyword
        self,
        client: KubeClient,
        clock: Clock,
        *,
        name: str,
        labels: Mapping[str, str],
        taints: Sequence[Mapping[str, str]] = (),
        amounts: Callable[[], Mapping[str, tuple[int, int]]],
        sync_s: float,
    ) -> None:
        self._client = client
        self._clock = clock
        self._name = name
        # Restored whenever they differ; source: kubelet's updateDefaultLabels.
        self._default_labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        self._labels = {**self._default_labels, **labels}
        self._spec = {"taints": [dict(taint) for taint in taints]} if taints else {}
        self._amounts = amounts
        self._sync_s = sync_s
        self._wake = asyncio.Event()
        self._capacity: Mapping[str, str] = {}
        self._ready_since = clock.now()
        self.ready = asyncio.Event()

    def wake(self) -> None:
        """Sync soon: a plugin's devices have changed."""
        self._wake.set()

    def observe(self, capacity: Mapping[str, str] | None) -> None:
        """Sync soon if another client changed *capacity*, or the node is gone (None)."""
        if capacity != self._capacity:
            self._wake.set()

    async def run(self) -> None:
        """Sync until cancelled, through outages of the API server."""
        while True:
            self._wake.clear()
            limit_s = self._sync_s
            try:
                await self._sync()
                self.ready.set()
            except KubeError as error:
                log.warning("node_status_not_written", node=self._name, error=str(error))
                limit_s = _AFTER_FAILURE_S
            await wait_at_most(self._clock, self._wake, limit_s=limit_s)

    async def _sync(self) -> None:
        try:
            node = await self._client.get_object(NODES, self._name)
        except NotFound:
            node = await self._create()
        missing = {
            key: value
            for key, value in self._default_labels.items()
            if (node["metadata"].get("labels") or {}).get(key) != value
        }
        if missing:
            await self._client.patch(NODES, self._name, {"metadata": {"labels": missing}})
        old = node.get("status") or {}
        status = self._status(old.get("capacity") or {})
        # As kubelet does: only what differs, so what another removed since stays removed.
        # Source: k8s.io/component-helpers/node/util, PatchNodeStatus.
        changes = {key: _changed(old.get(key) or {}, status[key]) for key in _AMOUNTS}
        body = {"status": status | changes}
        written = await self._client.patch(NODES, self._name, body, subresource="status")
        self._capacity = written["status"]["capacity"]

    async def _create(self) -> dict[str, Any]:
        body = {"metadata": {"name": self._name, "labels": self._labels}, "spec": self._spec}
        try:
            node = await self._client.create(NODES, body)
        except AlreadyExists:
            return await self._client.get_object(NODES, self._name)
        log.info("node_registered", node=self._name)
        return node

    def _status(self, capacity: Mapping[str, str]) -> dict[str, Any]:
        """Return the status: resources that others put into capacity are copied to allocatable."""
        plugins = self._amounts()
        known = {**capacity, **_OWN_CAPACITY}
        capacities = known | {resource: str(count) for resource, (count, _) in plugins.items()}
        allocatables = known | {resource: str(count) for resource, (_, count) in plugins.items()}
        return {
            "capacity": capacities,
            "allocatable": allocatables,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "simulated kubelet is posting ready status",
                    "lastHeartbeatTime": _stamp(self._clock.now()),
                    "lastTransitionTime": _stamp(self._ready_since),
                }
            ],
            "addresses": [
                {"type": "Hostname", "address": self._name},
                {"type": "InternalIP", "address": "127.0.0.1"},
            ],
            "nodeInfo": {"kubeletVersion": "v1.36.2-simulated"},
        }


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str | None]:
    """Return the merge patch that makes *new* of *old*."""
    gone = dict.fromkeys(old.keys() - new.keys())
    return gone | {key: value for key, value in new.items() if old.get(key) != value}


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
