"""``fracgpu doctor`` on a real kube-apiserver: rights, admission, certificates, definitions.

What follows from an object alone is below tests/fracgpu/doctor and tests/cli/doctor.

The roles' pods and nodes are objects that the test writes, as kubelet and the agents would; the
role certs runs, so that certificates and CA bundles are its own.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from certs.service import build
from certs.settings import CertsSettings
from certs.status import collect_report
from cli.commands import moves
from cli.commands.doctor import main
from cli.main import FAILED
from fracgpu import names
from fracgpu.doctor.checkup import CHECKS
from kube.access import connect
from kube.client import KubeClient
from kube.errors import AlreadyExists, NotFound
from kube.kinds import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    LEASES,
    NAMESPACES,
    PODS,
    SERVICE_ACCOUNTS,
    Kind,
)
from kube.objects import decode_object
from process.clock import SystemClock
from simulator.demo.service_accounts import issue_token
from simulator.kubeconfig import write_kubeconfig
from tests.support.examined import LEADER, NODE, a_node, a_role_pod, a_slice, stamp
from tests.support.gpu import register
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.real_apiserver import real_api_server
from tests.support.running_service import running_service
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SYSTEM: Final = names.SYSTEM_NAMESPACE
COMMANDS_PAGE: Final = Path(__file__).parents[2] / "docs" / "commands.md"
# What an account that may only read cannot see: Secrets, a dry run of a pod, the Service proxy.
NOT_FOR_READERS: Final = {"webhook-trust", "webhook-answers", "certificates", "prometheus"}
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """FracGPU on a real API server, and the accounts of an administrator and of a reader."""

    client: KubeClient
    admin: Path
    reader: Path
    capsys: pytest.CaptureFixture[str]

    async def examined(self, *flags: str, kubeconfig: Path | None = None) -> dict[str, Json]:
        """Run the command; return every check by its name."""
        self.capsys.readouterr()
        words = ["--kubeconfig", str(kubeconfig or self.admin), "-o", "json", *flags]
        await asyncio.to_thread(main, words)
        captured = self.capsys.readouterr()
        assert captured.out, captured.err
        return {check["name"]: check for check in json.loads(captured.out)["checks"]}

    async def found(self, check: str, *flags: str) -> list[Json]:
        """Return what one check finds."""
        findings: list[Json] = (await self.examined("--check", check, *flags))[check]["findings"]
        return findings

    async def finds(self, check: str, observed: str, cure: str, *flags: str) -> None:
        """Assert that a check finds one thing, with these words."""
        findings = await self.found(check, *flags)
        assert len(findings) == 1, (check, findings)
        assert observed in findings[0]["seen"], findings
        assert cure in findings[0]["cure"], findings


def now() -> datetime:
    return SystemClock().now().astimezone(UTC)


async def status(client: KubeClient, kind: Kind, body: Json) -> None:
    """Create an object of the system namespace, and then its status."""
    await client.create(kind, body, namespace=SYSTEM)
    await client.patch(
        kind,
        body["metadata"]["name"],
        {"status": body["status"]},
        namespace=SYSTEM,
        subresource="status",
    )


async def before_the_policies(client: KubeClient) -> None:
    """Write what the policies of deploy/ let only kubelets and agents write."""
    await client.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=SYSTEM)
    node = a_node()
    node["metadata"]["annotations"][names.NODE_LOAD_TIME] = now().strftime("%Y-%m-%dT%H:%M:%SZ")
    await register(client, node)
    for name, app in (("agent-1", "fracgpu-deviceplugin"), (LEADER, "fracgpu-scheduler")):
        pod = a_role_pod(name, app)
        pod["spec"]["containers"][0]["name"] = "main"
        pod["spec"]["tolerations"] = [{"operator": "Exists"}]
        await status(client, PODS, pod)


async def as_controllers_do(client: KubeClient) -> None:
    """Write what controllers and leaders write: replicas, endpoints, Leases."""
    for raw in (await client.list(DEPLOYMENTS, namespace=SYSTEM)).items:
        body = decode_object(raw)
        count = body["spec"]["replicas"]
        counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas"), count)
        await client.patch(
            DEPLOYMENTS,
            body["metadata"]["name"],
            {"status": counts},
            namespace=SYSTEM,
            subresource="status",
        )
    for slice_ in (
        a_slice("fracgpu-webhook-x2c4f", "10.1.0.3", service="fracgpu-webhook"),
        a_slice("fracgpu-scheduler-leader", "10.1.0.7"),
    ):
        body = {**slice_, "addressType": "IPv4", "ports": []}
        await client.create(ENDPOINT_SLICES, body, namespace=SYSTEM)
    with suppress(AlreadyExists):  # the API server makes it by itself, some time after its start
        await client.create(NAMESPACES, {"metadata": {"name": "kube-node-lease"}})
    for namespace, name, holder in (
        (SYSTEM, "fracgpu-scheduler-extender", LEADER),
        (SYSTEM, "fracgpu-rebalancer", "fracgpu-rebalancer-1"),
        ("kube-node-lease", NODE, NODE),
    ):
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 3600, "renewTime": stamp(now())}
        await client.create(LEASES, {"metadata": {"name": name}, "spec": spec}, namespace=namespace)


async def certified(client: KubeClient, kubeconfig: Path) -> None:
    """Run the role certs until every certificate and bundle is well."""
    settings = CertsSettings(
        kubeconfig=str(kubeconfig), telemetry_host="127.0.0.1", telemetry_port=0, overlap_s=0.2
    )

    async def well() -> bool:
        report = await collect_report(client, settings, now=now())
        return not report.problems

    async with running_service(build(settings)):
        await until(well, what="certificates and bundles", limit_s=120)


def readers_role() -> Json:
    """Return the ClusterRole that the documentation gives to those who may only read."""
    page = COMMANDS_PAGE.read_text(encoding="utf-8")
    text = page.partition("```yaml reader")[2].partition("```")[0]
    role: Json = yaml.safe_load(text)
    return role


@asynccontextmanager
async def installation(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Installation]:
    async with real_api_server(folder) as api:
        admin = api.kubeconfig(folder / "admin.kubeconfig")
        kubectl = Kubectl.find(admin)
        async with connect(str(admin)) as client:
            await before_the_policies(client)
            await kubectl("apply", "--server-side", "--validate=false", "-k", str(DEPLOY))
            await as_controllers_do(client)
            await certified(client, admin)
            await kubectl("apply", "-f", "-", stdin=readers_role())
            await kubectl("create", "serviceaccount", "reader", "-n", "default")
            await kubectl(
                *("create", "clusterrolebinding", "reader", "--clusterrole=fracgpu-doctor"),
                "--serviceaccount=default:reader",
            )
            token = await issue_token(client, namespace="default", account="reader")
            reader = write_kubeconfig(
                folder / "reader.kubeconfig", server=api.url, token=token, ca_file=api.ca_file
            )
            yield Installation(
                client=client,
                admin=admin,
                reader=reader,
                capsys=capsys,
            )


async def test_doctor_finds_what_only_a_real_api_server_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with installation(tmp_path, capsys) as there:
        await a_reader_finds_no_fault_and_is_told_what_it_may_not_see(there)
        await a_reader_is_told_which_permission_is_missing(there)
        await the_webhook_is_not_reached(there)
        await the_definition_is_missing(there)


async def a_reader_finds_no_fault_and_is_told_what_it_may_not_see(there: Installation) -> None:
    checks = await there.examined(kubeconfig=there.reader)

    verdicts = {name: check["verdict"] for name, check in checks.items()}
    assert {name for name, verdict in verdicts.items() if verdict == "found"} == set(), checks
    unknown = {name for name, verdict in verdicts.items() if verdict == "not checked"}
    assert unknown == NOT_FOR_READERS, checks
    assert len(verdicts) == len(CHECKS)


async def a_reader_is_told_which_permission_is_missing(there: Installation) -> None:
    there.capsys.readouterr()

    code = await asyncio.to_thread(moves.main, ["--kubeconfig", str(there.reader)])

    error = there.capsys.readouterr().err
    assert code == FAILED
    assert "fracgpu moves: may not list moves: " in error
    assert 'cannot list resource "moves" in API group "fracgpu.io"' in error
    assert "kubectl auth can-i list moves -A" in error


async def the_webhook_is_not_reached(there: Installation) -> None:
    # No pod of the webhook runs here, so the API server cannot reach it.
    await there.finds("webhook-answers", "failed calling webhook", "NetworkPolicy")


async def the_definition_is_missing(there: Installation) -> None:
    await there.client.delete(CUSTOM_RESOURCE_DEFINITIONS, "moves.fracgpu.io")

    async def gone() -> bool:  # a finalizer removes the Moves first
        try:
            await there.client.get(CUSTOM_RESOURCE_DEFINITIONS, "moves.fracgpu.io")
        except NotFound:
            return True
        return False

    await until(gone, what="the definition of Moves is deleted")
    await there.finds("definition", "no CustomResourceDefinition", "kubectl apply --server-side")
