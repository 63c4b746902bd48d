"""A real kube-apiserver with the policies of deploy/, without running FracGPU."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from kube.access import connect_to
from kube.client import KubeClient
from kube.errors import Forbidden, KubeError
from kube.kinds import (
    DAEMONSETS,
    DEPLOYMENTS,
    JOBS,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    VALIDATING_POLICIES,
    Kind,
)
from kube.objects import decode_object
from simulator.envtest.control_plane import ControlPlane
from tests.support.gpu import a_sharing_node
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.real_apiserver import real_api_server
from tests.support.waiting import until

SYSTEM = names.SYSTEM_NAMESPACE
CRON_JOBS = Kind("batch/v1", "cronjobs", "CronJob", namespaced=True)
REPLICATION_CONTROLLERS = Kind(
    "v1", "replicationcontrollers", "ReplicationController", namespaced=True
)
# What the API server adds to our messages.
DENIED = "ValidatingAdmissionPolicy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A cluster where everything of deploy/ is applied but none of it runs."""

    api: ControlPlane
    kubectl: Kubectl
    admin: KubeClient
    clients: AsyncExitStack

    async def as_account(self, account: str, *, pod: str = "", as_user: str = "") -> KubeClient:
        """Return a client with a service account's token, bound to a pod if one is named.

        It impersonates *as_user* if one is named.
        """
        bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod}"] if pod else []
        token = await self.kubectl("create", "token", account, f"-n={SYSTEM}", *bound)
        opened = connect_to(
            self.api.url, token=token.strip(), ca_file=self.api.ca_file, as_user=as_user
        )
        return await self.clients.enter_async_context(opened)

    async def agent_of(self, node: str) -> KubeClient:
        """Return a client as the node agent's pod on *node* has."""
        name = f"agent-{node}"
        pod = a_pod(name, node=node, serviceAccountName="fracgpu-deviceplugin")
        await self.admin.create(PODS, pod, namespace=SYSTEM)
        return await self.as_account("fracgpu-deviceplugin", pod=name)

    async def check_types(self, name: str) -> None:
        """The API server's type check of a policy finds nothing to warn of."""

        async def status() -> dict[str, Any]:
            policy = await self.admin.get_object(VALIDATING_POLICIES, name)
            return dict(policy.get("status", {}))

        async def checked() -> bool:
            return "typeChecking" in await status()

        await until(checked, what=f"the type check of {name}", limit_s=60)
        assert (await status())["typeChecking"] == {}, name


@asynccontextmanager
async def policed_harness(
    tmp_path: Path, *, flags: Mapping[str, str | None] | None = None, folder: Path = DEPLOY
) -> AsyncIterator[Harness]:
    """Run everything of *folder* on a real kube-apiserver, with its policies in force."""
    async with real_api_server(tmp_path, flags=flags) as api, AsyncExitStack() as clients:
        kubectl = Kubectl.find(api.kubeconfig(tmp_path / "admin.kubeconfig"))
        opened = connect_to(api.url, token=api.token, ca_file=api.ca_file)
        admin = await clients.enter_async_context(opened)
        for node in ("n1", "n2"):
            await admin.create(NODES, a_bare_node(node))
        await kubectl("apply", "-k", str(folder))
        await remove_template_webhooks(admin)
        await until(lambda: in_force(admin), what="the policies in force", limit_s=60)
        yield Harness(api=api, kubectl=kubectl, admin=admin, clients=clients)


async def remove_template_webhooks(admin: KubeClient) -> None:
    """Take out the entries that are asked about workloads before the policies: none answers."""
    for configuration in (await admin.list(MUTATING_WEBHOOKS)).items:
        body = decode_object(configuration)
        kept = [one for one in body["webhooks"] if "templates" not in one["name"]]
        await admin.patch(MUTATING_WEBHOOKS, body["metadata"]["name"], {"webhooks": kept})


def a_bare_node(name: str) -> dict[str, Any]:
    node = a_sharing_node(name, cards=())
    del node["metadata"]["annotations"], node["status"]["capacity"], node["status"]["allocatable"]
    return node


def a_pod(
    name: str, *, notes: dict[str, str] | None = None, node: str = "", **spec: Any
) -> dict[str, Any]:
    body = {"containers": [{"name": "c", "image": "x"}], **spec}
    body |= {"nodeName": node} if node else {}
    metadata = {"name": name, "annotations": notes or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


async def in_force(admin: KubeClient) -> bool:
    """Report whether each policy denies already; the API server reads them with a delay."""
    pod = a_pod("probe", notes={names.WIRED: "x", "cdi.k8s.io/x": "x"})
    system_pod = {**pod, "metadata": {**pod["metadata"], "namespace": "kube-system"}}
    for kind, body in workloads({names.GRANTED: "x"}):
        if not await is_refused(admin.create(kind, body, namespace="default", dry_run=True)):
            return False
    return await is_refused(
        admin.create(PODS, system_pod, namespace="kube-system", dry_run=True)
    ) and await is_refused(admin.patch(NODES, "n1", annotated("fracgpu.io/probe", "x")))


async def is_refused(request: Any) -> bool:
    try:
        await request
    except KubeError as error:  # until the policy is in force, the webhook's failure denies
        return isinstance(error, Forbidden) and DENIED in str(error)
    return False


def workloads(notes: dict[str, str]) -> list[tuple[Kind, dict[str, Any]]]:
    """Return one workload of each kind, whose pods have the annotations *notes*."""
    labels = {"app": "w"}
    containers = [{"name": "c", "image": "x"}]

    def template(restart: str) -> dict[str, Any]:
        spec = {"containers": containers, "restartPolicy": restart}
        return {"metadata": {"labels": labels, "annotations": notes}, "spec": spec}

    selected = {"selector": {"matchLabels": labels}, "template": template("Always")}
    job = {"template": template("Never")}
    specs: dict[Kind, dict[str, Any]] = {
        DEPLOYMENTS: {**selected, "replicas": 0},
        REPLICASETS: {**selected, "replicas": 0},
        STATEFULSETS: {**selected, "replicas": 0, "serviceName": "w"},
        DAEMONSETS: selected,
        JOBS: {**job, "parallelism": 0},
        CRON_JOBS: {"schedule": "@yearly", "jobTemplate": {"spec": job}},
        REPLICATION_CONTROLLERS: {**selected, "selector": labels, "replicas": 0},
    }
    return [
        (kind, {"metadata": {"name": "w", "namespace": "default"}, "spec": spec})
        for kind, spec in specs.items()
    ]


def annotated(key: str, value: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {key: value}}}


async def refusal(request: Any) -> str:
    """Return the message with which *request* is denied."""
    with pytest.raises(KubeError) as caught:
        await request
    return str(caught.value)
