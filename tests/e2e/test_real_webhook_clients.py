"""A real kube-apiserver presents a client certificate to the webhook, as in docs/security.md."""

import json
from pathlib import Path

import aiohttp
import pytest

from certs.authority import make_client
from fracgpu import names
from simulator.envtest.ports import free_ports
from tests.certs.tls_harness import HOUR, a_ca, now, trusting
from tests.support.gpu import a_sharing_node, register
from tests.support.real_apiserver import real_api_server
from tests.webhook.builders import a_pod, a_review
from tests.webhook.cluster import Harness, a_harness, running, says

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CLIENT = "kube-apiserver-kubelet-client"


def admission_configuration(folder: Path, *, server: str) -> tuple[Path, Path]:
    """Return the admission configuration and the authority of its client certificate."""
    authority = a_ca()
    client = make_client(authority, name=CLIENT, now=now(), life=HOUR)
    for name, content in (
        ("client.crt", client.cert_pem),
        ("client.key", client.key_pem),
        ("authority.crt", authority.cert_pem),
    ):
        (folder / name).write_bytes(content)
    user = {
        "client-certificate": str(folder / "client.crt"),
        "client-key": str(folder / "client.key"),
    }
    kubeconfig = folder / "webhooks.kubeconfig"
    users = [{"name": server, "user": user}]
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "users": users}))
    version = "apiserver.config.k8s.io/v1"
    plugin = {
        "apiVersion": version,
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": str(kubeconfig),
    }
    plugins = [
        {"name": name, "configuration": plugin}
        for name in ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")
    ]
    configuration = {"apiVersion": version, "kind": "AdmissionConfiguration", "plugins": plugins}
    (folder / "admission.yaml").write_text(json.dumps(configuration))  # JSON is YAML
    return folder / "admission.yaml", folder / "authority.crt"


async def test_the_webhook_asks_the_api_server_for_a_client_certificate(tmp_path: Path) -> None:
    (listen_port,) = free_ports(1)
    configuration, authority = admission_configuration(tmp_path, server=f"127.0.0.1:{listen_port}")
    flags = {"admission-control-config-file": str(configuration)}
    async with real_api_server(tmp_path, flags=flags) as api:
        kubeconfig = api.kubeconfig(tmp_path / "admin.kubeconfig")
        asked = {"client_ca_file": str(authority), "client_names": (CLIENT,)}
        async with a_harness(kubeconfig, listen_port=listen_port, **asked) as harness:
            await register(harness.client, a_sharing_node("gpu-1"))
            async with running(harness):
                await harness.give_certificate()
                await says(harness, "200")
                await harness.register()

                granted = await harness.create(a_pod(fraction="0.5"))

                assert granted["metadata"]["annotations"][names.GRANTED]
                assert not await answers_a_stranger(harness)


async def answers_a_stranger(harness: Harness) -> bool:
    """Report whether a client without the certificate gets an answer."""
    url = f"https://127.0.0.1:{harness.settings.listen_port}/mutate"
    body = json.dumps(a_review(a_pod(fraction="0.5")))
    connector = aiohttp.TCPConnector(ssl=trusting(harness.ca.cert_pem))
    try:
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(url, data=body) as response,
        ):
            return response.status == 200
    except (aiohttp.ClientError, OSError):
        return False
