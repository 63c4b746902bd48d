from datetime import timedelta

import pytest

from certs.authority import Pair
from certs.cert_manager import AdoptedCertificates, CertManagerReconciler
from certs.metrics import CertsMetrics
from certs.store import CertStore
from certs.trust.ca_injector import BundleTarget
from kube.client import KubeClient
from kube.kinds import SECRETS
from process.telemetry import new_registry
from tests.certs.slices import WithReplicas
from tests.certs.tls_harness import a_ca, a_leaf, https, now, serving
from tests.certs.webhooks import BOTH, a_webhook, apply, bundles
from tests.fakes.clock import VirtualClock

NAMESPACE, SECRET = "fracgpu-system", "fracgpu-webhook-tls"
WANTED = AdoptedCertificates(
    bundle_secret=SECRET,
    service="fracgpu-webhook",
    secrets=[SECRET, "fracgpu-scheduler-tls"],
    targets=[BundleTarget(kind=kind, name="fracgpu-webhook") for kind in BOTH],
)
MINUTES_5, SECONDS_10 = timedelta(minutes=5), timedelta(seconds=10)


class Harness:
    """Secrets as cert-manager writes them, and the reconciler that injects their bundle."""

    def __init__(self, kube: KubeClient) -> None:
        self.kube, self.clock, self.registry = kube, VirtualClock(now()), new_registry()
        self.store = CertStore(kube, namespace=NAMESPACE)
        self.client = WithReplicas(kube, {})
        metrics = CertsMetrics(self.registry, self.clock)
        self.loop = CertManagerReconciler(
            self.client, self.clock, namespace=NAMESPACE, wanted=WANTED, metrics=metrics
        )

    async def issue(self, ca: Pair, *, life: timedelta = timedelta(hours=1)) -> Pair:
        leaf = a_leaf(ca, "fracgpu-webhook.fracgpu-system.svc", life=life)
        data = {"tls.crt": leaf.cert_pem, "tls.key": leaf.key_pem, "ca.crt": ca.cert_pem}
        assert await self.store.write(SECRET, data, over=await self.store.read(SECRET))
        return leaf

    async def trusted(self) -> list[bytes | None]:
        first, second = [await bundles(self.kube, kind) for kind in BOTH]
        assert first == second
        return first


@pytest.fixture
async def cluster(kube: KubeClient) -> Harness:
    for kind in BOTH:
        await apply(kube, kind, a_webhook("a.example.org"))
    return Harness(kube)


async def test_until_there_is_a_secret_the_role_is_not_ready_and_injects_nothing(
    cluster: Harness,
) -> None:
    assert await cluster.loop.run_once() == MINUTES_5

    assert cluster.loop.problem == "Secret fracgpu-webhook-tls has no usable ca.crt yet"
    assert await cluster.trusted() == [None]


async def test_what_the_secret_says_is_trusted_and_its_end_is_measured(cluster: Harness) -> None:
    ca = a_ca()
    await cluster.issue(ca)

    assert await cluster.loop.run_once() == MINUTES_5

    assert cluster.loop.problem is None
    assert await cluster.trusted() == [ca.cert_pem]
    left_s = cluster.registry.get_sample_value(
        "fracgpu_certs_expiry_seconds", {"certificate": SECRET}
    )
    assert left_s == pytest.approx(3600, abs=10)


async def test_the_authority_before_stays_trusted_until_every_replica_serves_the_new_certificate(
    cluster: Harness,
) -> None:
    old, new = a_ca(), a_ca()
    old_leaf = await cluster.issue(old)
    await cluster.loop.run_once()
    new_leaf = await cluster.issue(new)

    async with https(serving(old_leaf)) as late:
        assert cluster.client.urls is not None
        cluster.client.urls["fracgpu-webhook"] = [late]
        pause = await cluster.loop.run_once()
        assert (pause, await cluster.trusted()) == (SECONDS_10, [new.cert_pem + old.cert_pem])

    async with https(serving(new_leaf)) as moved_on:
        cluster.client.urls["fracgpu-webhook"] = [moved_on]
        pause = await cluster.loop.run_once()
        assert (pause, await cluster.trusted()) == (MINUTES_5, [new.cert_pem])


async def test_an_authority_that_has_expired_is_trusted_no_longer(cluster: Harness) -> None:
    old, new = a_ca(), a_ca(life=timedelta(days=9))
    await cluster.issue(old)
    await cluster.loop.run_once()
    await cluster.issue(new)
    await cluster.loop.run_once()
    both = await cluster.trusted()

    await cluster.clock.advance(timedelta(hours=2).total_seconds())
    await cluster.loop.run_once()

    assert both == [new.cert_pem + old.cert_pem]
    assert await cluster.trusted() == [new.cert_pem]


async def test_no_secret_is_written(cluster: Harness) -> None:
    await cluster.issue(a_ca())
    before = await cluster.kube.get(SECRETS, SECRET, namespace=NAMESPACE)

    await cluster.loop.run_once()

    assert await cluster.kube.get(SECRETS, SECRET, namespace=NAMESPACE) == before
