from datetime import timedelta
from typing import Any

import pytest

from certs.metrics import CertsMetrics
from certs.reconciler import Reconciler
from certs.service import desired_of
from certs.settings import CertsSettings
from certs.status import CertificateRole, Report, TrustState, collect_report
from certs.store import ROTATE_KEY, CertStore
from kube.client import KubeClient
from kube.kinds import MUTATING_WEBHOOKS, SECRETS
from process.telemetry import new_registry
from tests.certs.tls_harness import a_ca
from tests.certs.webhooks import a_webhook, apply
from tests.fakes.clock import NOON, VirtualClock

SETTINGS = CertsSettings()
CA, WEBHOOK, SCHEDULER, CLIENT = (
    "fracgpu-ca",
    "fracgpu-webhook-tls",
    "fracgpu-scheduler-tls",
    "fracgpu-scheduler-client",
)


class Harness:
    """The running certs role, on a virtual clock."""

    def __init__(self, kube: KubeClient) -> None:
        self.kube, self.clock = kube, VirtualClock()
        metrics = CertsMetrics(new_registry(), self.clock)
        self.loop = Reconciler(
            kube, self.clock, namespace="fracgpu-system", desired=desired_of(SETTINGS),
            metrics=metrics,
        )  # fmt: skip

    async def settle(self) -> None:
        for _ in range(20):
            if await self.loop.run_once() >= timedelta(seconds=10):
                return
        raise AssertionError("the loop does not come to rest")

    async def look(self) -> Report:
        return await collect_report(self.kube, SETTINGS, now=self.clock.now())

    async def change(self, secret: str, patch: dict[str, Any]) -> None:
        await self.kube.patch(SECRETS, secret, patch, namespace="fracgpu-system")


@pytest.fixture
async def cluster(kube: KubeClient) -> Harness:
    await apply(kube, MUTATING_WEBHOOKS, a_webhook("a.example.org"))
    return Harness(kube)


async def test_when_all_is_well_every_certificate_and_bundle_is_current(cluster: Harness) -> None:
    await cluster.settle()

    report = await cluster.look()

    assert [(row.secret, row.role, row.signed_by) for row in report.rows] == [
        (CA, CertificateRole.AUTHORITY, "itself"),
        (WEBHOOK, CertificateRole.SERVER, "current"),
        (SCHEDULER, CertificateRole.SERVER, "current"),
        (CLIENT, CertificateRole.CLIENT, "current"),
    ]
    assert [row.facts.names for row in report.rows if row.facts is not None][3] == {
        "fracgpu-scheduler"
    }
    assert [row.trust for row in report.bundles] == [TrustState.CURRENT, TrustState.ABSENT]
    assert (report.authorities, report.foreign_maker, report.problems) == (1, False, [])


async def test_before_anything_is_made_everything_is_a_problem(kube: KubeClient) -> None:
    report = await Harness(kube).look()

    assert report.problems == [
        *(f"Secret {name}: there is none" for name in (CA, WEBHOOK, SCHEDULER, CLIENT)),
        "no webhook configuration exists that could trust the authority",
    ]


async def test_a_configuration_without_a_bundle_or_with_somebody_elses_is_a_problem(
    cluster: Harness,
) -> None:
    await cluster.settle()
    await cluster.kube.delete(MUTATING_WEBHOOKS, "fracgpu-webhook")
    stranger = a_webhook("b.example.org", ca_bundle=a_ca().cert_pem)
    await apply(cluster.kube, MUTATING_WEBHOOKS, a_webhook("a.example.org"), stranger)

    assert (await cluster.look()).problems == [
        "MutatingWebhookConfiguration/fracgpu-webhook, webhook a.example.org: has no bundle",
        "MutatingWebhookConfiguration/fracgpu-webhook, webhook b.example.org: does not trust the "
        "authority",
    ]


async def test_a_bundle_that_trusts_more_than_ours_is_other_but_well(cluster: Harness) -> None:
    await cluster.settle()
    stored = await CertStore(cluster.kube, namespace="fracgpu-system").read(CA)
    assert stored is not None
    await cluster.kube.delete(MUTATING_WEBHOOKS, "fracgpu-webhook")
    bundle = stored.data["ca.crt"] + a_ca().cert_pem
    await apply(cluster.kube, MUTATING_WEBHOOKS, a_webhook("a.example.org", ca_bundle=bundle))

    report = await cluster.look()

    assert (report.bundles[0].trust, report.problems) == (TrustState.OTHER, [])


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ({"data": {"tls.crt": None}}, "it has no tls.crt"),
        ({"data": {"tls.crt": "bm8="}}, "the certificate cannot be read"),
        ({"data": {"tls.key": "bm8="}}, "the private key cannot be read"),
    ],
)
async def test_a_damaged_secret_is_a_problem_that_quotes_nothing(
    cluster: Harness, patch: dict[str, Any], problem: str
) -> None:
    await cluster.settle()
    await cluster.change(WEBHOOK, patch)

    (found,) = (await cluster.look()).problems

    assert found.startswith(f"Secret {WEBHOOK}: {problem}")
    assert "bm8" not in found


async def test_while_a_rotation_lasts_the_old_leaves_are_of_the_older_authority(
    cluster: Harness,
) -> None:
    await cluster.settle()
    ca = (await cluster.look()).rows[0].facts
    assert ca is not None
    await cluster.change(CA, {"metadata": {"annotations": {ROTATE_KEY: ca.fingerprint}}})

    await cluster.settle()

    report = await cluster.look()
    assert {row.signed_by for row in report.rows[1:]} == {"older"}
    assert (report.authorities, report.problems) == (2, [])


async def test_what_has_expired_is_a_problem(cluster: Harness) -> None:
    await cluster.settle()
    await cluster.clock.advance(timedelta(days=31).total_seconds())

    problems = (await cluster.look()).problems

    end = (NOON + timedelta(days=30)).isoformat()
    assert problems == [f"Secret {name}: expired at {end}" for name in (WEBHOOK, SCHEDULER, CLIENT)]


async def test_cert_managers_certificates_are_judged_by_their_own_bundle(cluster: Harness) -> None:
    await cluster.settle()
    for name in (WEBHOOK, SCHEDULER, CLIENT):
        theirs = {"metadata": {"annotations": {"cert-manager.io/certificate-name": name}}}
        await cluster.change(name, theirs)
    await cluster.kube.delete(SECRETS, CA, namespace="fracgpu-system")

    report = await cluster.look()

    assert (report.foreign_maker, report.problems) == (True, [])
    assert [(row.secret, row.signed_by) for row in report.rows] == [
        (WEBHOOK, "current"),
        (SCHEDULER, "current"),
        (CLIENT, "current"),
    ]


async def test_where_no_webhook_configuration_is_expected_none_is_missed(cluster: Harness) -> None:
    await cluster.settle()
    settings = CertsSettings(webhook_configurations=())

    report = await collect_report(cluster.kube, settings, now=cluster.clock.now())

    assert (report.bundles, report.problems) == ([], [])
