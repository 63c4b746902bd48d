"""FracGPU installed by kubectl on a real control plane, with stand-ins for its nodes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import DEPLOYMENTS, PDBS, SERVICES
from simulator.demo.service_accounts import token_of, write_kubeconfig
from simulator.envtest.control_plane import ControlPlane
from tests.support.gpu import a_sharing_node, register, some_cards
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.real_apiserver import WITHOUT_NODES, real_api_server
from tests.support.roles import running_roles
from tests.support.scheduler_pods import SYSTEM, SchedulerPods, scheduler_pods
from tests.support.waiting import until

# Services on loopback, so that kube-proxy's stand-in can listen where they are.
_SERVICES: Final = {"service-cluster-ip-range": "127.77.0.0/24"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A cluster with FracGPU in it."""

    api: ControlPlane
    client: KubeClient
    kubectl: Kubectl
    kubeconfig: Path
    pods: SchedulerPods


async def install(api: ControlPlane, client: KubeClient, kubectl: Kubectl, folder: Path) -> None:
    for number in range(2):
        name = f"gpu-{number}"
        await register(client, a_sharing_node(name, cards=some_cards(name, mib=80_000)))
    await apply(kubectl, folder)
    await api.start_controller_manager(WITHOUT_NODES)


async def apply(kubectl: Kubectl, folder: Path) -> None:
    """Apply a kustomization; a new API server may have no schemas for kubectl to check by yet."""
    await kubectl("apply", "--server-side", "--validate=false", "-k", str(folder))
    # The webhook's pods are not run here, so its configurations would fail every request.
    for kind in ("mutating", "validating"):
        await kubectl("delete", f"{kind}webhookconfiguration", "fracgpu-webhook")


async def certs_flags(client: KubeClient) -> tuple[str, ...]:
    """Return the installed flags with a shorter overlap: a single API server reads at once."""
    deployment = await client.get_object(DEPLOYMENTS, "fracgpu-certs", namespace=SYSTEM)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return (*container["args"][2:], "--overlap-s=2")


async def leader_address(client: KubeClient) -> tuple[str, int]:
    """Return the address of the leader's Service."""
    service = await client.get_object(SERVICES, "fracgpu-scheduler-leader", namespace=SYSTEM)
    (port,) = service["spec"]["ports"]
    return service["spec"]["clusterIP"], port["port"]


@asynccontextmanager
async def installed(folder: Path, *, manifests: Path = DEPLOY) -> AsyncIterator[Harness]:
    """Install *manifests* and run the certificates role and the scheduler's pods."""
    async with (
        real_api_server(folder, flags=_SERVICES) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as client,
    ):
        kubeconfig = api.kubeconfig(folder / "admin.kubeconfig")
        kubectl = Kubectl.find(kubeconfig)
        await install(api, client, kubectl, manifests)
        own = write_kubeconfig(
            folder / "certs.kubeconfig",
            server=api.url,
            token=await token_of(client, "certs"),
            ca_file=api.ca_file,
        )
        async with (
            running_roles({"certs": await certs_flags(client)}, kubeconfig=own, log_dir=folder),
            scheduler_pods(api, client, folder, listen=await leader_address(client)) as pods,
        ):
            harness = Harness(
                api=api, client=client, kubectl=kubectl, kubeconfig=kubeconfig, pods=pods
            )
            await until(lambda: settled(harness), what="certificates and scheduler", limit_s=150)
            yield harness


async def settled(harness: Harness) -> bool:
    """Report whether both replicas are of the newest template and ready, also in the budget."""
    try:
        budget = await harness.client.get_object(PDBS, "fracgpu-scheduler", namespace=SYSTEM)
    except NotFound:
        return False
    status = budget.get("status", {})
    if (status.get("currentHealthy"), status.get("expectedPods")) != (2, 2):
        return False
    said = await harness.kubectl.ask(
        *("-n", SYSTEM, "rollout", "status", "deployment/fracgpu-scheduler", "--watch=false")
    )
    return said.ok and "successfully rolled out" in said.out
