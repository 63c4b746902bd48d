"""The chart on a real API server: what it accepts; install and upgrade as documented."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from fracgpu import names
from kube.access import connect
from kube.client import KubeClient
from kube.kinds import (
    CONFIGMAPS,
    DAEMONSETS,
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
)
from simulator.demo.service_accounts import token_of
from simulator.envtest.control_plane import ControlPlane
from simulator.kubeconfig import write_kubeconfig
from tests.deploy.test_chart import OTHER_NAMES, SAME, WITH_NAMESPACE
from tests.support.documented import documented, run
from tests.support.helm import CHART, SYSTEM, helm_or_skip, rendered
from tests.support.kubectl import Kubectl
from tests.support.real_apiserver import real_api_server
from tests.support.roles import running_roles
from tests.support.scheduler_pods import certs_flags
from tests.support.snapshot import wait_for_controllers
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

Json = dict[str, Any]
GUIDE: Final = "docs/install.md"
# Served by programs that are not part of Kubernetes.
FOREIGN: Final = ("cert-manager.io/", "monitoring.coreos.com/")


def without_wait(install: str) -> str:
    """Return the command for a cluster in which no kubelet makes pods ready."""
    assert install.count(" --wait ") == 1
    return install.replace(" --wait ", " ")


async def test_a_real_api_server_accepts_every_object_of_every_preset(tmp_path: Path) -> None:
    helm_or_skip()
    async with real_api_server(tmp_path) as api:
        kubectl = Kubectl.find(api.kubeconfig(tmp_path / "kubeconfig"))
        # A dry run creates no namespace for the other objects.
        await kubectl("create", "namespace", SYSTEM)
        for values in (*SAME.values(), OTHER_NAMES):
            ours = [
                body
                for body in rendered({**WITH_NAMESPACE, **values})
                if not body["apiVersion"].startswith(FOREIGN)
            ]
            listed = {"apiVersion": "v1", "kind": "List", "items": ours}

            said = await kubectl(
                *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"),
                stdin=listed,
            )

            assert len(said.splitlines()) == len(ours), values


async def bundles(client: KubeClient) -> set[str]:
    """Return the CA bundles in our webhook configurations."""
    return {
        webhook["clientConfig"].get("caBundle", "")
        for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
        for webhook in (await client.get_object(kind, "fracgpu-webhook"))["webhooks"]
    }


async def pod_templates(client: KubeClient) -> dict[str, Json]:
    """Return the pod template of each workload of ours: its pods run on until that changes."""
    found = {}
    for kind, workloads in (
        (DEPLOYMENTS, ("webhook", "certs", "scheduler", "rebalancer")),
        (DAEMONSETS, ("deviceplugin",)),
    ):
        for name in workloads:
            body = await client.get_object(kind, f"fracgpu-{name}", namespace=SYSTEM)
            found[name] = body["spec"]["template"]
    return found


def next_chart(folder: Path) -> Path:
    """Return a chart of a next version, whose CustomResourceDefinition has changed."""
    chart = shutil.copytree(CHART, folder / "next")
    crd = chart / "templates" / "crds" / "moves.yaml"
    text = crd.read_text()
    assert "name: Age" in text
    crd.write_text(text.replace("name: Age", "name: Since"))
    return chart


async def certify(client: KubeClient, server: ControlPlane, folder: Path) -> None:
    """Run the certificates role until every webhook configuration has its bundle."""
    own = write_kubeconfig(
        folder / "certs.kubeconfig",
        server=server.url,
        token=await token_of(client, "certs"),
        ca_file=server.ca_file,
    )
    flags = {"certs": await certs_flags(client)}
    async with running_roles(flags, kubeconfig=own, log_dir=folder):

        async def trusted() -> bool:
            return "" not in await bundles(client)

        await until(trusted, what="the certificates role fills the bundles", limit_s=90)


async def check_next_version(client: KubeClient, kubectl: Kubectl, folder: Path) -> None:
    """Upgrade to a chart of a next version with other values, and look for each of them."""
    (upgrade,) = documented(GUIDE, "helm-upgrade")
    later = upgrade.replace("charts/fracgpu", str(next_chart(folder)))
    values = "--set=webhook.replicas=3,image.tag=9.9.9,config.rebalancer.mode=active"

    await run(f"{later} {values}", kubeconfig=kubectl.kubeconfig)

    webhook = await client.get_object(DEPLOYMENTS, "fracgpu-webhook", namespace=SYSTEM)
    (container,) = webhook["spec"]["template"]["spec"]["containers"]
    assert webhook["spec"]["replicas"] == 3
    assert container["image"] == "registry.example.com/team/fracgpu:9.9.9"
    config = await client.get_object(CONFIGMAPS, names.CONFIG_MAP, namespace=SYSTEM)
    assert "mode: active" in config["data"]["rebalancer"]
    assert "name: Since" in await kubectl("get", "crd", "moves.fracgpu.io", "-o", "yaml")


async def test_an_upgrade_as_documented_replaces_no_pod_and_keeps_the_certificates(
    tmp_path: Path,
) -> None:
    helm_or_skip()
    async with real_api_server(tmp_path) as api:
        admin = api.kubeconfig(tmp_path / "kubeconfig")
        kubectl = Kubectl.find(admin)
        await api.start_controller_manager()
        async with connect(str(admin)) as client:
            await wait_for_controllers(client)
            install, _ = documented(GUIDE, "helm-install")
            said = await run(without_wait(install), kubeconfig=admin)
            assert "kubectl label node NAME fracgpu.io/share=true" in said
            assert "pod-security.kubernetes.io/enforce=privileged" in said
            await certify(client, api, tmp_path)
            # As the certificates role does after a new authority.
            await kubectl("-n", SYSTEM, "rollout", "restart", "deployment/fracgpu-scheduler")
            trust, running = await bundles(client), await pod_templates(client)
            assert "restartedAt" in json.dumps(running["scheduler"])

            (upgrade,) = documented(GUIDE, "helm-upgrade")
            await run(upgrade, kubeconfig=admin)
            assert await pod_templates(client) == running
            assert await bundles(client) == trust

            await check_next_version(client, kubectl, tmp_path)
            assert await bundles(client) == trust
