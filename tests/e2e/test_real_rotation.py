"""A minute of pods created through a real kube-apiserver while authority and leaf are rotated."""

import asyncio
import os
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kube.access import connect
from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import ENDPOINT_SLICES, NODES, PODS
from simulator.envtest.ports import free_ports
from tests.support.gpu import a_sharing_node
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.real_apiserver import real_api_server
from tests.support.roles import call_by_url, running_roles
from tests.support.traffic import Traffic, flowing
from tests.support.waiting import until, until_true

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

LASTING_S = float(os.environ.get("FRACGPU_ROTATION_S", "60"))


@dataclass
class Applicants:
    """Users who create pods (dry-run) through the API server, which calls our webhook each time."""

    client: KubeClient
    created: int = 0
    failures: list[str] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def apply(self) -> None:
        while not self.stopped.is_set():
            try:
                pod = await self.client.create(PODS, a_pod(), namespace="default", dry_run=True)
                assert pod["spec"]["containers"][0]["resources"]["limits"]
                self.created += 1
            except KubeError as error:
                self.failures.append(str(error))
            await asyncio.sleep(0.02)


def a_pod() -> dict[str, Any]:
    metadata = {"generateName": "p-", "annotations": {"fracgpu.io/memory": "1Gi"}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "x"}]}}


def own_address() -> str | None:
    """Return an address of this machine that is not loopback, as an EndpointSlice requires."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation; nothing is sent
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


async def announce(client: KubeClient, address: str, port: int) -> None:
    """Write the EndpointSlice of the webhook's Service, which has one replica."""
    body = {
        "metadata": {
            "name": "fracgpu-webhook-1",
            "namespace": "fracgpu-system",
            "labels": {"kubernetes.io/service-name": "fracgpu-webhook"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }
    await client.create(ENDPOINT_SLICES, body)


async def test_no_pod_is_refused_while_authority_and_leaf_are_rotated_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = own_address()
    (port,) = free_ports(1)
    flags = {
        "certs": (
            f"--ca-life-s={LASTING_S * 0.6}",
            f"--serving-life-s={LASTING_S * 0.3}",
            f"--overlap-s={LASTING_S * 0.05}",
            "--retire-after-s=1",
            "--services=fracgpu-webhook",
        ),
        "webhook": (f"--listen-port={port}",),
    }
    async with real_api_server(tmp_path) as api:
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        async with connect(str(kubeconfig)) as client:
            await client.create(NODES, a_sharing_node("n1"))
            await Kubectl.find(kubeconfig)("apply", "-k", str(DEPLOY))
            await call_by_url(client, port)
            if address is not None:
                await announce(client, address, port)
            traffic = Traffic(url=f"https://127.0.0.1:{port}/mutate")
            applicants = Applicants(client=client)
            async with running_roles(flags, kubeconfig=kubeconfig, log_dir=tmp_path):
                await until(lambda: grants(client), what="a first pod granted", limit_s=60)
                began_s = time.monotonic()
                async with flowing(traffic, client), asyncio.TaskGroup() as group:
                    for _ in range(2):
                        group.create_task(applicants.apply(), name="applicant")
                    await until_true(
                        lambda: (
                            len(traffic.issuers) >= 3 and time.monotonic() - began_s >= LASTING_S
                        ),
                        what="two rotations",
                        limit_s=3 * LASTING_S,
                    )
                    applicants.stopped.set()
                lasted_s = time.monotonic() - began_s
    with capsys.disabled():
        sys.stdout.write(
            f"\nin {lasted_s:.0f} s {applicants.created} pods through kube-apiserver, "
            f"{len(applicants.failures)} failed; {traffic.figures}\n"
        )

    assert (applicants.failures, traffic.failures) == ([], [])
    assert applicants.created > 100
    assert min(traffic.answered.values()) > 100
    assert len(traffic.leaves) > len(traffic.issuers) >= 3
    if address is not None:
        assert "authorities_retired" in (tmp_path / "certs.log").read_text()


async def grants(client: KubeClient) -> bool:
    try:
        await client.create(PODS, a_pod(), namespace="default", dry_run=True)
    except KubeError:
        return False
    return True
