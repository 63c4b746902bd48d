"""The certificates role against a real kube-apiserver."""

import base64
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from certs.service import build
from certs.settings import CertsSettings
from certs.store import CertStore
from certs.trust.ca_injector import BundleTarget, InjectionResult, inject
from kube.access import connect
from kube.client import KubeClient, PatchType
from kube.kinds import MUTATING_WEBHOOKS, NAMESPACES, SECRETS
from tests.certs.tls_harness import a_ca
from tests.certs.trust.test_rollout import Reordering
from tests.certs.webhooks import BOTH, a_webhook, apply, bundles
from tests.support.real_apiserver import real_api_server
from tests.support.running_service import running_service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

NAMESPACE, CA, LEAF = "fracgpu-system", "fracgpu-ca", "fracgpu-webhook-tls"


def running(kubeconfig: Path) -> AbstractAsyncContextManager[None]:
    settings = CertsSettings(
        kubeconfig=str(kubeconfig), telemetry_host="127.0.0.1", telemetry_port=0
    )
    return running_service(build(settings))


async def test_certificates_are_made_injected_restored_and_agreed_on(tmp_path: Path) -> None:
    async with real_api_server(tmp_path) as api:
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
        async with connect(str(kubeconfig)) as kube:
            await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
            for kind in BOTH:
                await apply(kube, kind, a_webhook("a.example.org"), a_webhook("b.example.org"))

            async with running(kubeconfig), running(kubeconfig):
                await until(lambda: trusted(kube), what="the authority's bundle everywhere")
                await overwrite_a_bundle(kube)
                await until(lambda: trusted(kube), what="the bundle restored")
                first = await certificate(kube)
                await kube.delete(SECRETS, LEAF, namespace=NAMESPACE)
                await until(lambda: renewed(kube, first), what="the Secret made anew")

            await check_a_stale_write_is_refused(kube)
            await check_a_reordered_list_is_left_alone(kube)


async def check_a_stale_write_is_refused(kube: KubeClient) -> None:
    store = CertStore(kube, namespace=NAMESPACE)
    observed = await store.read(CA)
    assert observed is not None
    assert await store.write(CA, {**observed.data, "note": b"one"}, over=observed)
    assert not await store.write(CA, {**observed.data, "note": b"two"}, over=observed)
    assert not await store.write(CA, observed.data, over=None)


async def check_a_reordered_list_is_left_alone(kube: KubeClient) -> None:
    before = await bundles(kube, MUTATING_WEBHOOKS)
    target = BundleTarget(kind=MUTATING_WEBHOOKS, name="fracgpu-webhook")
    outcome = await inject(Reordering(kube), target, bundle_pem=a_ca().cert_pem)
    assert outcome is InjectionResult.MOVED
    assert await bundles(kube, MUTATING_WEBHOOKS) == before


async def overwrite_a_bundle(kube: KubeClient) -> None:
    theirs = base64.b64encode(a_ca().cert_pem).decode()
    patch = [{"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": theirs}]
    await kube.patch(MUTATING_WEBHOOKS, "fracgpu-webhook", patch, how=PatchType.JSON)


async def certificate(kube: KubeClient) -> bytes | None:
    stored = await CertStore(kube, namespace=NAMESPACE).read(LEAF)
    return stored.data["tls.crt"] if stored is not None else None


async def renewed(kube: KubeClient, first: bytes | None) -> bool:
    return await certificate(kube) not in (None, first)


async def trusted(kube: KubeClient) -> bool:
    stored = await CertStore(kube, namespace=NAMESPACE).read(LEAF)
    if stored is None:
        return False
    ca_pem = stored.data["ca.crt"]
    return all([await bundles(kube, kind) == [ca_pem, ca_pem] for kind in BOTH])
