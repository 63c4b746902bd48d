"""One node's kubelet, simulated over real protocols: a client of the API server like any other.

Registers the node, serves the device-plugin and PodResources sockets, admits and starts the pods
bound to the node, and plays the container runtime: it reads the CDI specs and records what each
container really got.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from fracgpu import names
from kube.client import KubeClient
from kube.events import EventRecorder
from kube.informer import Change, ChangeType, Informer
from kube.kinds import NODES, PODS
from kube.objects import decode_object
from process.clock import Clock
from simulator.cards.processes import ProcessFolder
from simulator.cards.simulated_limits import CONTROLLERS
from simulator.kubelet.claim_manager import ClaimManager
from simulator.kubelet.container_runtime import ContainerRuntime, CreatedContainer
from simulator.kubelet.device_manager import DeviceManager
from simulator.kubelet.node_status import NodeStatus
from simulator.kubelet.nri import NriServer
from simulator.kubelet.pod_resources import PodResourcesServer
from simulator.kubelet.pod_status import KubeletPod, read_kubelet_pod
from simulator.kubelet.pod_worker import PodTiming, PodWorker, WorkerParts, visible_cards

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletFolders:
    """The folders that a node's kubelet, runtime and agent share."""

    device_plugins: Path
    plugins: Path
    plugins_registry: Path
    pod_resources_socket: Path
    nri_socket: Path
    host: Path
    cdi: Path
    proc: Path
    processes: Path
    cgroup: Path

    @classmethod
    def under(cls, root: Path) -> "KubeletFolders":
        """Return the folders below *root*; keep it short, a socket's path has at most 107 bytes."""
        return cls(
            device_plugins=root / "dp",
            plugins=root / "pl",
            plugins_registry=root / "reg",
            pod_resources_socket=root / "pr" / "kubelet.sock",
            nri_socket=root / "nri.sock",
            host=root / "host",
            cdi=root / "cdi",
            proc=root / "proc",
            processes=root / "processes",
            cgroup=root / "cgroup",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletConfig:
    """How one simulated kubelet behaves.

    Attributes:
        labels: of the node; by default those of a node that shares its cards.
        taints: of the node, as `--register-with-taints` sets them.
        sync_s: longest time between two node status syncs.
        nri: the runtime has NRI on.
        cgroups: containers have cgroups, so that an agent can limit them.
        list_ended_pods: list pods in PodResources that have ended, as kubelets before 1.34 do.
    """

    node: str
    folders: KubeletFolders
    labels: Mapping[str, str] = field(default_factory=lambda: {names.SHARE_LABEL: "true"})
    taints: tuple[Mapping[str, str], ...] = ()
    timing: PodTiming = field(default_factory=PodTiming)
    sync_s: float = 5.0
    nri: bool = True
    cgroups: bool = False
    list_ended_pods: bool = False


class Kubelet:
    """A simulated kubelet; :meth:`created_containers` returns what containers really got.

    Args:
        client: of the API server.
        clock: for all pauses.
        config: of the node.
    """

    def __init__(self, client: KubeClient, clock: Clock, config: KubeletConfig) -> None:
        folders = config.folders
        self._config = config
        self._pods = Informer(
            client,
            PODS,
            decode=read_kubelet_pod,
            field_selector=f"spec.nodeName={config.node}",
            on_change=self._changed,
        )
        self._nodes = Informer(
            client,
            NODES,
            decode=_capacity_of,
            field_selector=f"metadata.name={config.node}",
            on_change=self._node_changed,
        )
        self.devices = DeviceManager(
            folders.device_plugins, on_change=self._devices_changed, seed=config.node
        )
        self.claims = ClaimManager(
            client, clock, node=config.node, registry=folders.plugins_registry
        )
        self._status = NodeStatus(
            client,
            clock,
            name=config.node,
            labels=config.labels,
            taints=config.taints,
            amounts=self.devices.amounts,
            sync_s=config.sync_s,
        )
        self._pod_resources = PodResourcesServer(
            folders.pod_resources_socket,
            pods=self._listed,
            devices=self.devices,
            claims=self.claims,
        )
        processes = ProcessFolder(folders.processes)
        processes.clear()
        if config.cgroups:
            folders.cgroup.mkdir(parents=True, exist_ok=True)
            (folders.cgroup / CONTROLLERS).touch()
        self.nri = NriServer(folders.nri_socket) if config.nri else None
        self.runtime = ContainerRuntime(
            cdi_dir=folders.cdi,
            proc_root=folders.proc,
            processes=processes,
            plugins=self.nri,
            cgroup_root=folders.cgroup if config.cgroups else None,
        )
        self._parts = WorkerParts(
            client=client,
            clock=clock,
            events=EventRecorder(client, "kubelet", clock, instance=config.node),
            devices=self.devices,
            claims=self.claims,
            runtime=self.runtime,
            timing=config.timing,
            node=config.node,
        )
        self._workers: dict[str, PodWorker] = {}
        self._newcomers: asyncio.Queue[PodWorker] = asyncio.Queue()

    @property
    def node(self) -> str:
        return self._config.node

    async def run(self) -> None:
        """Run the node's kubelet until cancelled.

        Raises:
            deviceplugin.sockets.SocketError: a socket's path is too long.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.devices.run(), name="device_manager")
                group.create_task(self.claims.run(), name="claim_manager")
                group.create_task(self._pod_resources.run(), name="pod_resources")
                if self.nri is not None:
                    group.create_task(self.nri.run(), name="nri")
                group.create_task(self._status.run(), name="node_status")
                group.create_task(self._nodes.run(), name="node")
                group.create_task(self._pods.run(), name="pods")
                while True:
                    worker = await self._newcomers.get()
                    group.create_task(self._work(worker), name=f"pod_{worker.pod.name}")
        finally:
            self.runtime.stop_all()

    async def wait_ready(self) -> None:
        """Wait until the node is in the API server; limit the wait with ``asyncio.timeout``."""
        await self._status.ready.wait()

    def created_containers(self) -> Mapping[str, Mapping[str, CreatedContainer]]:
        """Return what each container got at its last start, by pod UID and container name."""
        return {
            uid: dict(worker.created) for uid, worker in self._workers.items() if worker.created
        }

    def cards_of(self, pod_uid: str) -> Mapping[str, tuple[str, ...]]:
        """Return the card UUIDs that each container of a pod sees, from its environment."""
        worker = self._workers.get(pod_uid)
        return {
            container: visible_cards(created)
            for container, created in (worker.created if worker else {}).items()
        }

    async def restart_container(self, pod_uid: str, container: str) -> None:
        """Stop a running container and start it again, as after a crash.

        Raises:
            KeyError: the pod does not run here.
        """
        await self._workers[pod_uid].restart(container)

    async def _work(self, worker: PodWorker) -> None:
        try:
            await worker.run()
        finally:
            self.devices.release(worker.pod.uid)
            self._workers.pop(worker.pod.uid, None)

    def _changed(self, change: Change[KubeletPod]) -> None:
        worker = self._workers.get(change.uid)
        if worker is not None:
            worker.update(change.object, gone=change.type is ChangeType.DELETED)
        elif change.type is not ChangeType.DELETED and not change.object.ended:
            worker = PodWorker(change.object, self._parts)
            self._workers[change.uid] = worker
            self._newcomers.put_nowait(worker)

    def _node_changed(self, change: Change[Mapping[str, str]]) -> None:
        gone = change.type is ChangeType.DELETED
        self._status.observe(None if gone else change.object)

    def _devices_changed(self) -> None:
        self._status.wake()

    def _listed(self) -> list[KubeletPod]:
        return [
            worker.pod
            for worker in self._workers.values()
            if not worker.ended or self._config.list_ended_pods
        ]


def _capacity_of(body: bytes) -> Mapping[str, str]:
    node = decode_object(body)
    return (node.get("status") or {}).get("capacity") or {}
