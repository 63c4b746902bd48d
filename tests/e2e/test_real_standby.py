"""The leader changes while pods wait, and kube-scheduler finds the new one.

With the real kube-scheduler, two replicas that are processes, and a Service whose endpoint changes
after kube-scheduler has connected to the wrong one.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fracgpu import names
from fracgpu.state.pod_info import decode_pod_info
from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import Conflict
from kube.kinds import LEASES, NAMESPACES, PODS
from simulator.envtest.extender_certificates import issue_extender_certificates
from simulator.envtest.ports import free_ports
from simulator.envtest.scheduler_configuration import scheduler_configuration
from tests.support.gpu import a_gpu_pod, a_sharing_node, register, some_cards
from tests.support.real_apiserver import real_api_server
from tests.support.real_scheduler import is_ready, metrics_of
from tests.support.roles import Roles, running_roles
from tests.support.sticky_service import StickyService
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

SYSTEM = names.SYSTEM_NAMESPACE
LEASE = "fracgpu-scheduler-extender"
SECRET = "fracgpu-scheduler-tls"  # noqa: S105 - the name of a Secret, nothing secret
ASKED = 'fracgpu_scheduler_requests_total{outcome="not_leading",verb="filter"}'
LEADS = "fracgpu_scheduler_leader"
NODES = tuple(f"n{number}" for number in range(5))
CARD_MIB = 24_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica's ports."""

    port: int
    roles: Roles

    @property
    def telemetry(self) -> int:
        return self.roles.telemetry["scheduler"]

    async def leads(self) -> bool:
        try:
            found = await metrics_of(self.telemetry)
        except OSError:
            return False
        return await is_ready(self.telemetry) and found[LEADS] == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A control plane whose kube-scheduler asks *service*, and two replicas, of which *a* leads."""

    client: KubeClient
    service: StickyService
    a: Replica
    b: Replica

    async def give_the_lease_to(self, identity: str) -> None:
        """Make a replica the holder, while the one that leads lives on."""

        async def given() -> bool:
            lease = await self.client.get_object(LEASES, LEASE, namespace=SYSTEM)
            lease["spec"]["holderIdentity"] = identity
            try:
                await self.client.replace(LEASES, lease)
            except Conflict:  # its holder renewed it in the meantime
                return False
            return True

        await until(given, what=f"the lease of {identity}")

    async def placed(self) -> int:
        pods = [decode_pod_info(bytes(raw)) for raw in (await self.client.list(PODS)).items]
        return sum(bool(pod.record.node) for pod in pods)


@asynccontextmanager
async def two_replicas(workdir: Path, *, over_tls: bool) -> AsyncIterator[Harness]:
    ports = free_ports(2)
    service = StickyService(endpoint=ports[0])
    async with (
        real_api_server(workdir) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as client,
        service.open(),
    ):
        await client.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
        for node in NODES:
            cards = some_cards(node, count=8, mib=CARD_MIB)
            await register(client, a_sharing_node(node, cards=cards))
        kubeconfig = api.kubeconfig(workdir / "admin.kubeconfig")
        tls = await issue_extender_certificates(client, workdir, secret=SECRET)
        secret = [f"--tls-secret={SECRET}"] if over_tls else []
        scheme = "https" if over_tls else "http"
        config = workdir / "kube-scheduler.json"
        written = scheduler_configuration(
            extender_url=f"{scheme}://127.0.0.1:{service.port}",
            kubeconfig=kubeconfig,
            tls=tls if over_tls else None,
        )
        await asyncio.to_thread(config.write_text, json.dumps(written))
        async with AsyncExitStack() as stack:
            replicas: list[Replica] = []
            for name, port in zip("ab", ports, strict=True):
                flags = [f"--identity={name}", f"--listen-port={port}", *secret]
                folder = workdir / name
                folder.mkdir()
                started = running_roles({"scheduler": flags}, kubeconfig=kubeconfig, log_dir=folder)
                replica = Replica(port=port, roles=await stack.enter_async_context(started))
                await replica.roles.until_ready("scheduler")
                if not replicas:
                    await until(replica.leads, what="a leads", limit_s=60)
                replicas.append(replica)
            a, b = replicas
            await api.start_scheduler(config)
            yield Harness(client=client, service=service, a=a, b=b)


@pytest.mark.parametrize("over_tls", [True, False], ids=["HTTP/2", "HTTP/1.1"])
async def test_a_standby_keeps_no_connection_of_kube_scheduler_and_pods_are_placed_within_seconds(
    tmp_path: Path, *, over_tls: bool
) -> None:
    async with two_replicas(tmp_path, over_tls=over_tls) as harness:
        await harness.client.create(PODS, a_gpu_pod("before", mib=100))

        async def placed() -> bool:
            return await harness.placed() == 1

        await until(placed, what="a pod is placed by the first leader", limit_s=30)
        await harness.give_the_lease_to("b")
        await until(harness.b.leads, what="b leads", limit_s=60)
        # Restarted, and the Service's endpoint still: kube-scheduler connects to it anew.
        await until(lambda: is_ready(harness.a.telemetry), what="a waits", limit_s=60)
        for number in range(40):
            await harness.client.create(PODS, a_gpu_pod(f"p{number}", mib=100))

        async def asked() -> bool:
            try:
                found = await metrics_of(harness.a.telemetry)
            except OSError:  # it is being restarted, now that it no longer leads
                return False
            return found.get(ASKED, 0) >= 1

        await until(asked, what="the standby is asked", limit_s=30)
        harness.service.endpoint = harness.b.port

        async def all_placed() -> bool:
            return await harness.placed() == 41

        # kube-scheduler waits ten seconds at most before it tries a pod again.
        await until(all_placed, what="every pod is placed by the new leader", limit_s=30)
