"""containerd and CRI-O say the same of a container, each in its own words around it.

CRI-O's are from its source, version 1.37 (``server/nri-api.go`` and what it calls).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from deviceplugin.nri.interface import Connection
from deviceplugin.nri.plugin import SOCKET
from deviceplugin.proto import nri_pb2 as wire
from tests.deviceplugin.nri.scripted import Wire, a_scripted_runtime
from tests.support.node import short_folder
from tests.support.nri import Recorder, a_plugin

UID: Final = "6f0c0b5e-3f0a-4c55-9d3c-3a4b1f2f9a11"
SLICE: Final = "kubepods-burstable-pod6f0c0b5e_3f0a_4c55_9d3c_3a4b1f2f9a11.slice"
SANDBOX_ID: Final = "5d" * 32
CONTAINER_ID: Final = "c0" * 32
ASSIGNMENT: Final = {"fracgpu.io/assignment": '{"main":"GPU-1:500"}'}
LABELS: Final = {"io.kubernetes.container.name": "main", "io.kubernetes.pod.uid": UID}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one runtime describes itself and a container."""

    name: str
    version: str
    annotations: Mapping[str, str]
    cgroup_parent: str
    cgroups_path: str
    sends_cdi_devices: bool
    trace: Mapping[str, str]
    """What comes with a request beside its payload, where traces are switched on."""


KINDS: Final = {
    "containerd": Kind(
        name="containerd",
        version="v2.1.9",
        annotations={
            "io.kubernetes.cri.container-name": "main",
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-id": SANDBOX_ID,
            "io.kubernetes.cri.sandbox-uid": UID,
        },
        cgroup_parent=f"/kubepods.slice/kubepods-burstable.slice/{SLICE}",
        cgroups_path=f"{SLICE}:cri-containerd:{CONTAINER_ID}",
        sends_cdi_devices=True,
        trace={},
    ),
    "cri-o": Kind(
        name="cri-o",
        version="1.37.0",
        annotations={
            # The pod's own annotations are in the container's spec, then kubelet's labels.
            **ASSIGNMENT,
            **LABELS,
            "io.kubernetes.cri-o.ContainerID": CONTAINER_ID,
            "io.kubernetes.cri-o.SandboxID": SANDBOX_ID,
            "io.kubernetes.cri-o.ContainerType": "container",
            "org.systemd.property.DefaultDependencies": "true",
        },
        cgroup_parent=SLICE,
        cgroups_path=f"{SLICE}:crio:{CONTAINER_ID}",
        sends_cdi_devices=False,
        trace={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    ),
}


def described(kind: Kind) -> wire.ContainerRequest:
    """Return what *kind* sends before it creates the container."""
    pod = wire.PodSandbox(
        id=SANDBOX_ID,
        name="train",
        uid=UID,
        namespace="team",
        labels={"app": "train"},
        annotations={**ASSIGNMENT, "kubernetes.io/config.source": "api"},
        linux=wire.LinuxPodSandbox(cgroup_parent=kind.cgroup_parent),
    )
    container = wire.Container(
        id=CONTAINER_ID,
        pod_sandbox_id=SANDBOX_ID,
        name="main",
        labels=LABELS,
        annotations=kind.annotations,
        env=["PATH=/bin", "MODE=fast"],
        mounts=[wire.Mount(destination="/proc", type="proc", source="proc")],
        linux=wire.LinuxContainer(cgroups_path=kind.cgroups_path),
    )
    if kind.sends_cdi_devices:
        container.cdi_devices.add(name="fracgpu.io/slot=card")
    return wire.ContainerRequest(pod=pod, container=container)


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


async def test_whose_container_it_is_reads_the_same_from_both(kind: Kind) -> None:
    recorder = Recorder()

    async def script(runtime: Wire) -> None:
        runtime.metadata = kind.trace
        await runtime.welcome(kind.name, kind.version)
        response = await runtime.call("CreateContainer", described(kind), timeout_s=2.0)
        assert response.status.code == 0

    with short_folder() as folder:
        async with (
            a_scripted_runtime(folder / "nri.sock", script) as ended,
            a_plugin(folder / "nri.sock", recorder) as running,
        ):
            await ended
            status = await running.wait(Connection.CLOSED)

    assert (status.runtime_name, status.runtime_version) == (kind.name, kind.version)
    ((pod, container),) = recorder.created
    assert (pod.id, pod.uid, pod.name, pod.namespace) == (SANDBOX_ID, UID, "train", "team")
    assert pod.annotations.items() >= ASSIGNMENT.items()
    assert pod.cgroup_parent.endswith(SLICE)
    assert (container.id, container.sandbox_id) == (CONTAINER_ID, SANDBOX_ID)
    assert (container.name, container.labels) == ("main", LABELS)
    assert container.cgroups_path.split(":")[::2] == [SLICE, CONTAINER_ID]
    assert container.env == ("PATH=/bin", "MODE=fast")


def test_both_listen_at_the_same_place_unless_configured_otherwise() -> None:
    assert Path("/var/run/nri/nri.sock") == SOCKET
