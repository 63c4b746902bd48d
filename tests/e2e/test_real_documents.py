"""Each manifest of our documents on a real API server that asks the real webhook."""

import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from certs.authority import make_ca
from fracgpu.cards.card import Card, CardUuid
from fracgpu.units import Mib
from kube.kinds import NAMESPACES, SECRETS
from rebalancer.usage.credentials import CredentialFiles, read_credentials
from tests.docs.test_manifests import SHOWN, ours
from tests.fakes.clock import NOON
from tests.support.documented import documented, run
from tests.support.gpu import a_sharing_node, register
from tests.support.helm import ROOT, SYSTEM
from tests.support.kubectl import Kubectl
from tests.support.manifests import Shown
from tests.support.markdown import blocks, documents
from tests.support.real_apiserver import real_api_server
from tests.webhook.cluster import Harness, a_harness, in_force

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

Json = dict[str, Any]
DIALECTS: Final = ("gpushare", "hami", "kai")
CREATE: Final = ("create", "--dry-run=server", "-o=json", "-f=-")


def a100s() -> tuple[Card, ...]:
    return tuple(
        Card(
            uuid=CardUuid(f"GPU-{index}"),
            index=index,
            model="NVIDIA-A100-SXM4-40GB",
            total_mib=Mib(40_960),
        )
        for index in range(2)
    )


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    """A cluster with the cards of our pages, and a namespace for each dialect."""
    async with (
        real_api_server(tmp_path) as api,
        a_harness(api.kubeconfig(tmp_path / "admin.kubeconfig")) as harness,
    ):
        for name in DIALECTS:
            labels = {"fracgpu.io/dialects": name}
            await harness.client.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        await register(harness.client, a_sharing_node("gpu-1", cards=a100s()))
        yield harness


def pod_of(example: Shown) -> Json:
    """Return the pod that a controller makes of the workload, or the pod itself."""
    template = example.template
    metadata = {**template.get("metadata", {}), "name": example.body["metadata"]["name"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


async def check(example: Shown, kubectl: Kubectl) -> None:
    where = ("-n", example.dialect or "default")
    if example.refused:
        said = await kubectl.refused(*where, *CREATE, stdin=example.body)
        assert example.says(said), example
        return
    # kubectl checks every field against the API server's schemas.
    assert json.loads(await kubectl(*where, *CREATE, stdin=example.body))
    pod = json.loads(await kubectl(*where, *CREATE, stdin=pod_of(example)))
    limits = {
        it["name"]: ours(it.get("resources", {}).get("limits", {}))
        for it in pod["spec"]["containers"]
    }
    assert limits == example.becomes, example


async def test_a_real_api_server_makes_of_each_manifest_what_its_document_says(
    harness: Harness,
) -> None:
    quotas = [
        block.text
        for path in documents()
        for block in blocks(str(path.relative_to(ROOT)))
        if (block.language, block.name) == ("yaml", "quota")
    ]
    assert quotas
    async with in_force(harness) as kubectl:
        for example in SHOWN:
            await check(example, kubectl)
        for quota in quotas:
            await kubectl(*CREATE, stdin=yaml.safe_load(quota))


async def test_the_secret_of_the_page_on_prometheus_has_credentials_that_are_read(
    harness: Harness, tmp_path: Path
) -> None:
    assert harness.settings.kubeconfig is not None
    authority = make_ca(name="theirs", now=NOON, life=timedelta(days=1))
    for name, content in {"password": b"secret word", "ca.crt": authority.cert_pem}.items():
        (tmp_path / name).write_bytes(content)
    (command,) = documented("docs/prometheus.md", "credentials")
    await run(command, kubeconfig=Path(harness.settings.kubeconfig), at=tmp_path)

    secret = await harness.client.get_object(SECRETS, "fracgpu-prometheus", namespace=SYSTEM)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for name, coded in secret["data"].items():
        (mounted / name).write_bytes(b64decode(coded))
    found = read_credentials(CredentialFiles(folder=mounted))
    assert found.headers["Authorization"] == f"Basic {b64encode(b'fracgpu:secret word').decode()}"


async def test_the_commands_that_show_what_a_dialect_becomes(
    harness: Harness, tmp_path: Path
) -> None:
    assert harness.settings.kubeconfig is not None
    admin = Path(harness.settings.kubeconfig)
    (example,) = [it for it in SHOWN if it.dialect == "gpushare"]
    file = tmp_path / "theirs.yaml"
    file.write_text(example.block.text)
    words = {"NAMESPACE": "kai", "POD.yaml": str(file)}
    label, look = documented("docs/how-to.md", "dialects")
    async with in_force(harness):
        await run(f"{label} --overwrite", kubeconfig=admin, words=words)
        granted = await run(look, kubeconfig=admin, words=words)

    assert granted.startswith("train: 8192 MiB on 1 card; in other words: train from gpushare")
