"""In the host's network a rollout ends although every node has a replica, on real controllers."""

from contextlib import suppress
from pathlib import Path

import pytest

from fracgpu import names
from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import DEPLOYMENTS, NAMESPACES, PODS, SERVICE_ACCOUNTS
from kube.objects import decode_object
from tests.support.gpu import a_sharing_node, register
from tests.support.helm import rendered
from tests.support.real_apiserver import WITHOUT_NODES, real_api_server, start_stock_scheduler
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SYSTEM = names.SYSTEM_NAMESPACE
ROLES = ("webhook", "scheduler")
STARTED = "2026-01-05T12:00:00Z"


async def act_as_kubelets(client: KubeClient) -> None:
    """Run the pods that have a node, and remove those that are deleted."""
    for raw in (await client.list(PODS, namespace=SYSTEM)).items:
        pod = decode_object(raw)
        name = pod["metadata"]["name"]
        with suppress(NotFound):
            if "deletionTimestamp" in pod["metadata"]:
                await client.delete(PODS, name, namespace=SYSTEM, grace_s=0)
            elif pod["spec"].get("nodeName") and not pod["status"].get("startTime"):
                ready = [{"type": "Ready", "status": "True"}]
                status = {"phase": "Running", "startTime": STARTED, "conditions": ready}
                patch = {"status": status}
                await client.patch(PODS, name, patch, namespace=SYSTEM, subresource="status")


async def rolled_out(client: KubeClient) -> bool:
    await act_as_kubelets(client)
    for role in ROLES:
        body = await client.get_object(DEPLOYMENTS, f"fracgpu-{role}", namespace=SYSTEM)
        status = body.get("status", {})
        counts = [status.get(f"{key}Replicas", 0) for key in ("updated", "available")]
        observed = status.get("observedGeneration") == body["metadata"]["generation"]
        if not observed or counts != [2, 2] or status.get("replicas") != 2:
            return False
    return True


async def test_a_rollout_ends_with_as_many_replicas_as_nodes(tmp_path: Path) -> None:
    values = {
        "webhook": {"hostNetwork": True, "port": 10443},
        "scheduler": {"hostNetwork": True, "port": 10404},
    }
    wanted = [
        body
        for body in rendered(values)
        if body["kind"] in ("Deployment", "ServiceAccount")
        and body["metadata"]["name"] in [f"fracgpu-{role}" for role in ROLES]
    ]
    kinds = {"Deployment": DEPLOYMENTS, "ServiceAccount": SERVICE_ACCOUNTS}
    async with (
        real_api_server(tmp_path) as api,
        connect_to(api.url, token=api.token, ca_file=api.ca_file) as client,
    ):
        await client.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
        for node in ("n1", "n2"):
            await register(client, a_sharing_node(node))
        await api.start_controller_manager(WITHOUT_NODES)
        await start_stock_scheduler(api, api.kubeconfig(tmp_path / "scheduler"))
        for body in wanted:
            await client.create(kinds[body["kind"]], body)
        await until(lambda: rolled_out(client), what="both roles run on both nodes", limit_s=60)

        again = {"spec": {"template": {"metadata": {"annotations": {"again": "1"}}}}}
        for role in ROLES:
            await client.patch(DEPLOYMENTS, f"fracgpu-{role}", again, namespace=SYSTEM)
        await until(lambda: rolled_out(client), what="the new replicas run", limit_s=60)

        pods = [decode_object(raw) for raw in (await client.list(PODS)).items]
        assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["n1", "n1", "n2", "n2"]
