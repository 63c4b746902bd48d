"""The settings role with an API server that calls it as deploy/webhook.yaml says."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certs.authority import Pair
from kube.access import connect
from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import (
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    SECRETS,
    VALIDATING_WEBHOOKS,
)
from simulator.apiserver.server import ApiServer
from simulator.envtest.ports import free_ports
from tests.certs.tls_harness import a_ca, a_leaf, served
from tests.support.kubectl import Kubectl
from tests.support.real_apiserver import real_api_server
from tests.support.running_service import running_service
from tests.support.waiting import until
from tests.support.yaml_files import read_documents
from tests.webhook.builders import Json, a_pod
from webhook.service import build
from webhook.settings import WebhookSettings

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """An API server that calls our webhook for pods."""

    client: KubeClient
    ca: Pair
    settings: WebhookSettings

    async def create(self, pod: Json, *, name: str = "p") -> Json:
        pod["metadata"] |= {"name": name, "namespace": "default"}
        return await self.client.create(PODS, pod)

    async def readyz(self) -> str:
        """Return the answer of the telemetry port; empty while nothing listens there."""
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.settings.telemetry_port
            )
        except OSError:
            return ""
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer.decode()

    async def give_certificate(self, *, renewed: bool = False) -> None:
        service = f"{self.settings.service}.{self.settings.namespace}.svc"
        leaf = a_leaf(self.ca, "localhost", "127.0.0.1", service)
        data = {
            key: base64.b64encode(pem).decode()
            for key, pem in (("tls.crt", leaf.cert_pem), ("tls.key", leaf.key_pem))
        }
        meta = {"name": self.settings.tls_secret, "namespace": self.settings.namespace}
        write = self.client.replace if renewed else self.client.create
        await write(SECRETS, {"metadata": meta, "data": data})

    async def renew_certificate(self) -> None:
        """Store another certificate with another key, and wait until it is served."""
        url = f"https://127.0.0.1:{self.settings.listen_port}"
        before = await served(url)
        await self.give_certificate(renewed=True)

        async def another() -> bool:
            return await served(url) != before

        await until(another, what="the webhook serves another certificate")

    def configurations(self) -> list[Json]:
        """Return both configurations of deploy/webhook.yaml, at our address."""
        documents = read_documents((ROOT / "deploy" / "webhook.yaml").read_text())
        found = []
        for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            (body,) = [document for document in documents if document["kind"] == kind.kind]
            for entry in body["webhooks"]:
                path = entry["clientConfig"]["service"]["path"]
                entry["clientConfig"] = {
                    "url": f"https://127.0.0.1:{self.settings.listen_port}{path}",
                    "caBundle": base64.b64encode(self.ca.cert_pem).decode(),
                }
            found.append(body)
        return found

    async def register(self) -> None:
        """Register as deploy/webhook.yaml does, at our address; wait until it takes effect."""
        for kind, body in zip(
            (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS), self.configurations(), strict=True
        ):
            await self.client.create(kind, body)
        await self.until_asked()

    async def until_asked(self) -> None:
        """Wait until the API server calls the webhook for pods and for workloads."""

        async def asked() -> bool:
            probe = a_pod(fraction="nonsense")
            probe["metadata"]["namespace"] = "default"
            try:
                await self.client.create(PODS, probe, dry_run=True)
            except KubeError as error:
                return "want a share of one card" in str(error)
            return False

        async def asked_about_workloads() -> bool:
            try:
                await self.deploy(a_pod(fraction="nonsense"), dry_run=True)
            except KubeError as error:
                return "in spec.template: fracgpu.io/fraction" in str(error)
            return False

        await until(asked, what="the API server asks the webhook about pods")
        await until(asked_about_workloads, what="the API server asks about workloads")

    async def deploy(self, template: Json, *, dry_run: bool = False, **spec: Any) -> Json:
        """Create Deployment w with this template."""
        template["metadata"] = {
            "labels": {"app": "w"},
            "annotations": template["metadata"].get("annotations") or {},
        }
        template["spec"].pop("schedulerName", None)
        body = {
            "metadata": {"name": "w", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "w"}}, "template": template, **spec},
        }
        return await self.client.create(DEPLOYMENTS, body, dry_run=dry_run)


@asynccontextmanager
async def a_harness(
    kubeconfig: Path, *, listen_port: int | None = None, **settings: Any
) -> AsyncIterator[Harness]:
    """Connect to an API server and make the webhook's namespace; nothing runs yet.

    Args:
        kubeconfig: of an administrator.
        listen_port: of the webhook; None takes a free one.
        settings: further settings of the webhook.
    """
    free_port, telemetry_port = free_ports(2)
    configured = WebhookSettings(
        kubeconfig=str(kubeconfig),
        listen_host="127.0.0.1",
        listen_port=listen_port or free_port,
        telemetry_host="127.0.0.1",
        telemetry_port=telemetry_port,
        drain_wait_s=0,
        **settings,
    )
    async with connect(kubeconfig) as client:
        await client.create(NAMESPACES, {"metadata": {"name": configured.namespace}})
        yield Harness(client=client, ca=a_ca(), settings=configured)


@asynccontextmanager
async def an_api_server(kind: str, workdir: Path) -> AsyncIterator[Path]:
    """Yield the kubeconfig of one."""
    if kind == "simulator":
        async with ApiServer.start() as api:
            yield api.kubeconfig(workdir / "kubeconfig")
    else:
        async with real_api_server(workdir) as real:
            yield real.kubeconfig(workdir / "kubeconfig")


def running(cluster: Harness) -> AbstractAsyncContextManager[None]:
    return running_service(build(cluster.settings))


@asynccontextmanager
async def in_force(cluster: Harness) -> AsyncIterator[Kubectl]:
    """Run the webhook, with its configurations applied as an administrator does."""
    assert cluster.settings.kubeconfig is not None
    kubectl = Kubectl.find(Path(cluster.settings.kubeconfig))
    async with running(cluster):
        await cluster.give_certificate()
        await says(cluster, "200")
        for body in cluster.configurations():
            await kubectl("apply", "-f-", stdin=body)
        await cluster.until_asked()
        yield kubectl


async def says(cluster: Harness, *words: str) -> None:
    async def said() -> bool:
        answer = await cluster.readyz()
        return all(word in answer for word in words)

    await until(said, what=f"/readyz says {words}")
