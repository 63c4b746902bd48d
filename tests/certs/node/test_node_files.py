"""The files of a control-plane node, and the restart of the kube-scheduler that reads them."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from certs.metrics import CertsMetrics
from certs.node.node_files import DesiredNodeFiles, NodeFiles, with_address
from certs.node.static_pod import KubeSchedulerProcesses, Process
from kube.client import KubeClient
from kube.kinds import SECRETS, SERVICES
from tests.certs.tls_harness import a_ca, a_client
from tests.fakes.clock import VirtualClock

NAMESPACE, SECRET, SERVICE = "fracgpu-system", "fracgpu-scheduler-client", "leader"
CONFIG = "extenders:\n  - urlPrefix: https://leader.fracgpu-system.svc:9404\n"


@dataclass
class AKubelet(KubeSchedulerProcesses):
    """A kubelet that restarts an ended kube-scheduler when the test says so."""

    processes: set[Process] = field(default_factory=set)
    ended: list[int] = field(default_factory=list)
    ignores: bool = False

    def start(self, pid: int) -> None:
        self.processes.add(Process(pid=pid, started="1"))

    def running(self) -> frozenset[Process]:
        return frozenset(self.processes)

    def end(self, process: Process) -> None:
        self.ended.append(process.pid)
        if not self.ignores:
            self.processes.discard(process)


@dataclass
class Node:
    """One control-plane node."""

    kube: KubeClient
    folder: Path
    kubelet: AKubelet = field(default_factory=AKubelet)

    def agent(self) -> NodeFiles:
        """Return a new process of ours, as after an update."""
        configuration = self.folder.parent / "given.yaml"
        if not configuration.exists():
            configuration.write_text(CONFIG)
        clock = VirtualClock()
        return NodeFiles(
            self.kube,
            clock,
            namespace=NAMESPACE,
            wanted=DesiredNodeFiles(
                folder=self.folder, secret=SECRET, service=SERVICE, configuration=configuration
            ),
            kube_scheduler=self.kubelet,
            metrics=CertsMetrics(CollectorRegistry(), clock),
        )

    def read(self, name: str) -> bytes:
        return (self.folder / "current" / name).read_bytes()

    async def secret(self, bundle: bytes, *, first: bool = False) -> Mapping[str, bytes]:
        client = a_client(a_ca())
        data = {"tls.crt": client.cert_pem, "tls.key": client.key_pem, "ca.crt": bundle}
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        body: dict[str, Any] = {"metadata": {"name": SECRET, "namespace": NAMESPACE}}
        if first:
            await self.kube.create(SECRETS, {**body, "data": encoded})
        else:
            await self.kube.patch(SECRETS, SECRET, {"data": encoded}, namespace=NAMESPACE)
        return data


@pytest.fixture
async def node(kube: KubeClient, tmp_path: Path) -> Node:
    node = Node(kube, tmp_path / "etc")
    await node.secret(b"bundle 1", first=True)
    await service(kube, "10.96.0.7")
    return node


async def service(kube: KubeClient, address: str) -> None:
    body = {"metadata": {"name": SERVICE, "namespace": NAMESPACE}, "spec": {"clusterIP": address}}
    await kube.create(SERVICES, body)


async def test_what_a_static_pod_cannot_mount_is_in_the_nodes_folder(node: Node) -> None:
    data = await node.secret(b"bundle 1")
    agent = node.agent()

    pause = await agent.run_once()

    assert agent.problem is None
    assert {name: node.read(name) for name in data} == data
    (extender,) = yaml.safe_load(node.read("config.yaml"))["extenders"]
    assert extender["urlPrefix"] == "https://10.96.0.7:9404"
    assert pause >= timedelta(minutes=1)


async def test_a_renewed_certificate_is_written_and_nobody_is_ended(node: Node) -> None:
    agent = node.agent()
    await agent.run_once()
    node.kubelet.start(7)

    data = await node.secret(b"bundle 1")
    await agent.run_once()
    await node.agent().run_once()  # nor by the next process of ours

    assert node.read("tls.crt") == data["tls.crt"]
    assert node.kubelet.ended == []


async def test_for_a_new_bundle_kube_scheduler_is_ended_once_by_the_next_agent_and_awaited(
    node: Node,
) -> None:
    first = node.agent()
    await first.run_once()
    node.kubelet.start(7)
    await node.secret(b"bundle 1 and 2")
    await first.run_once()
    # All nodes see a new bundle at once; the DaemonSet goes from one to the next.
    assert node.read("ca.crt") == b"bundle 1 and 2"
    assert node.kubelet.ended == []

    second = node.agent()
    await second.run_once()
    assert (node.kubelet.ended, second.problem) == ([7], "kube-scheduler has not started again yet")
    node.kubelet.start(8)
    await second.run_once()
    assert second.problem is None

    await node.agent().run_once()
    assert node.kubelet.ended == [7]


async def test_one_that_does_not_end_is_waited_for_and_not_killed(node: Node) -> None:
    node.kubelet.start(7)
    node.kubelet.ignores = True
    agent = node.agent()

    await agent.run_once()
    await agent.run_once()

    assert agent.problem == "kube-scheduler has not terminated yet"
    assert node.kubelet.ended == [7]


async def test_an_agent_that_is_killed_in_between_ends_it_again_rather_than_not(node: Node) -> None:
    node.kubelet.start(7)
    await node.agent().run_once()
    node.kubelet.start(8)

    await node.agent().run_once()

    assert node.kubelet.ended == [7, 8]


async def test_a_new_configuration_needs_a_new_start_too(node: Node) -> None:
    await node.agent().run_once()
    node.kubelet.start(7)
    (node.folder.parent / "given.yaml").write_text(CONFIG + "profiles: []\n")

    await node.agent().run_once()

    assert node.kubelet.ended == [7]


@pytest.mark.parametrize("address", ["", "None"])
async def test_what_is_missing_is_said(kube: KubeClient, tmp_path: Path, address: str) -> None:
    node = Node(kube, tmp_path / "etc")
    agent = node.agent()

    await agent.run_once()
    assert agent.problem == f"Secret {SECRET} has no tls.crt and no tls.key and no ca.crt yet"
    await node.secret(b"bundle", first=True)
    await agent.run_once()
    assert agent.problem == f"there is no Service {SERVICE} yet"
    await service(kube, address)
    await agent.run_once()
    assert agent.problem == f"Service {SERVICE} has no address"
    assert not node.folder.exists()


async def test_a_folder_that_cannot_be_written_is_said(node: Node) -> None:
    node.folder.parent.mkdir(exist_ok=True)
    node.folder.write_text("a file")
    agent = node.agent()

    await agent.run_once()

    assert agent.problem is not None
    assert str(node.folder) in agent.problem


def test_an_address_of_version_6_stands_in_brackets() -> None:
    text = with_address(CONFIG, service="leader", namespace=NAMESPACE, address="2001:db8::7")

    assert "urlPrefix: https://[2001:db8::7]:9404" in text


def test_a_configuration_that_does_not_name_the_service_is_refused() -> None:
    with pytest.raises(ValueError, match=r"begins with https://leader.fracgpu-system.svc:"):
        with_address("extenders: []", service="leader", namespace=NAMESPACE, address="10.0.0.1")
