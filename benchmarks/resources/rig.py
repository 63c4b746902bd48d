"""A cluster of a given size with one real process of each role; see ``benchmark.py``."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.resources.shipped_roles import shipped_role
from benchmarks.resources.stored_cluster import namespaces, write_cluster
from fracgpu import names
from kube.access import connect
from kube.client import KubeClient
from kube.kinds import NAMESPACES, NODES, PODS
from process.clock import SystemClock
from simulator.cards.models import plan_nodes
from simulator.cards.simulated_cards import cards_document, write_cards_file
from simulator.demo.client_certificate import with_client_certificate
from simulator.demo.rebalancer import command
from simulator.demo.rig import prepare_cluster, running
from simulator.demo.roles import Addresses
from simulator.demo.service_accounts import install_rights, token_of
from simulator.demo.supervisor import ProcessSpec, Supervisor, why_not_ready
from simulator.envtest.control_plane import ControlPlane
from simulator.envtest.ports import free_ports
from simulator.envtest.scheduler_configuration import ExtenderTls, scheduler_configuration
from simulator.kubeconfig import write_kubeconfig
from simulator.kubelet.kubelet import Kubelet, KubeletConfig, KubeletFolders
from simulator.kubelet.pod_worker import BUSY_KEY

POD_LABEL: Final = "benchmark.example/pod"
KUBE_SCHEDULER: Final = "kube-scheduler"
_ROLES: Final = ("certs", "webhook", "scheduler", "rebalancer", "deviceplugin")
_CARDS: Final = 8
_AGENT_PODS: Final = 100  # of the 110 that a kubelet takes by default
_START_LIMIT_S: Final = 300.0
_POLL_S: Final = 0.5
_AT_ONCE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesRig:
    """Everything that runs; it ends with :func:`open_resources_rig`'s block.

    Attributes:
        telemetry: the port of each role's metrics.
        pids: returns the process of each role and of kube-scheduler.
        agent_pods: how many pods with cards run on the node with the agent.
        logs: the folder of all logs.
    """

    kube: KubeClient
    telemetry: Mapping[str, int]
    pids: Callable[[], Mapping[str, int]]
    agent_pods: int
    logs: Path


@asynccontextmanager
async def open_resources_rig(
    assets: Path, workdir: Path, *, nodes: int, pods_per_node: int
) -> AsyncIterator[ResourcesRig]:
    """Start everything below *workdir* (a short path, for sockets) and stop it at the end.

    Raises:
        ControlPlaneError: a real component did not start.
        TimeoutError: a role was not ready within five minutes.
    """
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(ControlPlane.start(assets, workdir))
        kube = await stack.enter_async_context(connect(plane.kubeconfig(workdir / "kubeconfig")))
        ports = free_ports(4 + len(_ROLES))
        telemetry = dict(zip(_ROLES, ports[4:], strict=True))
        addresses = Addresses(
            webhook=ports[0], extender=ports[1], page=ports[2], telemetry=telemetry
        )
        await _fill(plane, kube, addresses, nodes=nodes, pods_per_node=pods_per_node)
        prometheus = ProcessSpec(
            name="prometheus",
            argv=(
                *(sys.executable, "-m", "benchmarks.resources.canned_prometheus"),
                *(str(ports[3]), str(nodes), str(pods_per_node)),
            ),
            env={},
        )
        plan, _amd = plan_nodes(2, _CARDS)
        folders = KubeletFolders.under(workdir / "n")
        write_cards_file(workdir / "cards.json", cards_document(plan.cards))
        kubelet = Kubelet(kube, clock, KubeletConfig(node=plan.name, folders=folders))
        await stack.enter_async_context(running(kubelet.run()))
        await kubelet.wait_ready()
        own_flags = _flags(addresses, prometheus=ports[3], workdir=workdir) | {
            "deviceplugin": _agent_flags(plan.name, folders, workdir)
        }
        specs = [
            await _spec(role, plane, kube, workdir, own_flags[role], telemetry[role], plan.name)
            for role in _ROLES
        ]
        supervisor = Supervisor([prometheus, *specs], log_dir=workdir)
        await stack.enter_async_context(running(supervisor.run()))
        await _until_ready(telemetry)

        async def schedule(tls: ExtenderTls) -> None:
            configuration = scheduler_configuration(
                extender_url=f"https://127.0.0.1:{addresses.extender}",
                kubeconfig=workdir / "kubeconfig",
                tls=tls,
            )
            file = workdir / "kube-scheduler.yaml"
            file.write_text(yaml.safe_dump(configuration))
            await plane.start_scheduler(file)
            await asyncio.Event().wait()

        scheduling = with_client_certificate(kube, workdir / "scheduler-client", schedule)
        await stack.enter_async_context(running(scheduling))
        await _occupy(kube, plan.name)

        def pids() -> Mapping[str, int]:
            found = {role: supervisor.pid(role) for role in _ROLES}
            found[KUBE_SCHEDULER] = plane.pids.get(KUBE_SCHEDULER)
            return {name: pid for name, pid in found.items() if pid is not None}

        yield ResourcesRig(
            kube=kube, telemetry=telemetry, pids=pids, agent_pods=_AGENT_PODS, logs=workdir
        )


async def _fill(
    plane: ControlPlane,
    kube: KubeClient,
    addresses: Addresses,
    *,
    nodes: int,
    pods_per_node: int,
) -> None:
    for namespace in sorted(namespaces(nodes)):
        await kube.create(NAMESPACES, {"metadata": {"name": namespace}})
    await asyncio.to_thread(write_cluster, plane.etcd_url, nodes=nodes, pods_per_node=pods_per_node)
    async with asyncio.timeout(_START_LIMIT_S):
        while len((await kube.list(NODES)).items) < nodes:  # noqa: ASYNC110 - the server's cache
            await asyncio.sleep(_POLL_S)
    await prepare_cluster(kube, addresses, {"mode": "dryRun"})
    await install_rights(kube)


def _flags(
    addresses: Addresses, *, prometheus: int, workdir: Path
) -> dict[str, Mapping[str, object]]:
    credentials = workdir / "no-credentials"
    credentials.mkdir()
    return {
        "certs": {"extra-names": "127.0.0.1"},
        "webhook": {"listen-host": "127.0.0.1", "listen-port": addresses.webhook},
        "scheduler": {
            "listen-host": "127.0.0.1",
            "listen-port": addresses.extender,
            "page-port": addresses.page,
        },
        "rebalancer": {
            "prometheus-url": f"http://127.0.0.1:{prometheus}",
            "prometheus-credentials-dir": credentials,
        },
    }


def _agent_flags(node: str, folders: KubeletFolders, workdir: Path) -> Mapping[str, object]:
    dev_root = workdir / "dev"
    dev_root.mkdir()
    return {
        "node-name": node,
        "cards": f"simulated:{workdir / 'cards.json'}",
        "dev-root": dev_root,
        "device-plugins-dir": folders.device_plugins,
        "pod-resources-socket": folders.pod_resources_socket,
        "cdi-dir": folders.cdi,
        "vendor-cdi-dirs": folders.cdi,
        "proc-root": folders.proc,
        "nri-socket": folders.nri_socket,
        "host-dir": folders.host,
        "injection": "cdi",
    }


async def _spec(  # noqa: PLR0913, PLR0917 - the parts of one command line
    role: str,
    plane: ControlPlane,
    kube: KubeClient,
    workdir: Path,
    flags: Mapping[str, object],
    port: int,
    node: str,
) -> ProcessSpec:
    token = await token_of(kube, role, node=node if role == "deviceplugin" else None)
    kubeconfig = write_kubeconfig(
        workdir / f"{role}.kubeconfig", server=plane.url, token=token, ca_file=plane.ca_file
    )
    spec = shipped_role(
        role,
        {
            **flags,
            "kubeconfig": kubeconfig,
            "telemetry-host": "127.0.0.1",
            "telemetry-port": port,
            "drain-wait-s": 0,
        },
    )
    if role != "rebalancer":
        return spec
    # It would plan nothing in its first ten minutes, which are those that are measured.
    flags_from = spec.argv.index(role) + 1
    return replace(spec, argv=(*command({"startup_grace_s": 0}), *spec.argv[flags_from:]))


async def _occupy(kube: KubeClient, node: str) -> None:
    """Run pods on the agent's node, by the same way as all others, and wait for them."""
    for first in range(0, _AGENT_PODS, _AT_ONCE):
        async with asyncio.TaskGroup() as group:
            for number in range(first, first + _AT_ONCE):
                group.create_task(kube.create(PODS, _agent_pod(number, node), namespace="default"))
    async with asyncio.timeout(_START_LIMIT_S):
        while await _count_running(kube) < _AGENT_PODS:  # noqa: ASYNC110 - another process's work
            await asyncio.sleep(_POLL_S)


async def _count_running(kube: KubeClient) -> int:
    found = await kube.list(
        PODS,
        namespace="default",
        label_selector=f"{POD_LABEL}=agent",
        field_selector="status.phase=Running",
    )
    return len(found.items)


def _agent_pod(number: int, node: str) -> dict[str, Any]:
    container = {"name": "main", "image": "registry.example/train:1"}
    return {
        "metadata": {
            "name": f"agent-{number}",
            "labels": {POD_LABEL: "agent"},
            # MiB: a fraction would be one of the class that is the freest, in the end another one.
            "annotations": {names.MEMORY: "1000Mi", BUSY_KEY: "0.03"},
        },
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [container],
        },
    }


async def _until_ready(telemetry: Mapping[str, int]) -> None:
    """Wait until every role is ready.

    Raises:
        TimeoutError: one is not, within five minutes.
    """
    async with asyncio.timeout(_START_LIMIT_S):
        for port in telemetry.values():
            while await why_not_ready(f"127.0.0.1:{port}") is not None:  # noqa: ASYNC110 - a request each time
                await asyncio.sleep(_POLL_S)
