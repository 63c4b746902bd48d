"""Keeps CA bundles current for certificates that cert-manager issues.

cert-manager replaces a Secret's certificate and its ``ca.crt`` in one write. Our bundle keeps the
previous authority besides the new one until every replica serves the new certificate, so that no
call fails in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from certs.authority import AuthorityError, read
from certs.metrics import CertsMetrics
from certs.rotation import trusted_authorities
from certs.store import CertStore, read_bundle
from certs.trust.ca_injector import (
    BundleTarget,
    current_bundles,
    inject_all,
)
from certs.trust.served_certificates import ServedCertificates
from certs.work_loop import LOOK_AT_LEAST_EVERY, REPLICAS_EVERY, WorkLoop
from kube.client import KubeClient
from process.clock import Clock
from process.tls import CA_KEY, CERT_KEY

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedCertificates:
    """The certificates that cert-manager issues, and the webhook configurations that trust them.

    Attributes:
        bundle_secret: the Secret whose ``ca.crt`` the webhook configurations trust.
        service: the Service whose replicas serve its certificate.
        secrets: all Secrets whose certificate's expiry is published as a metric.
        targets: the webhook configurations.
    """

    bundle_secret: str
    service: str
    secrets: Sequence[str]
    targets: Sequence[BundleTarget]


class CertManagerReconciler(WorkLoop):
    """Keeps the webhook configurations' bundles equal to a Secret's; writes no Secret."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        namespace: str,
        wanted: AdoptedCertificates,
        metrics: CertsMetrics,
    ) -> None:
        super().__init__(clock, metrics)
        self._client = client
        self._store = CertStore(client, namespace=namespace)
        self._replicas = ServedCertificates(client, namespace=namespace)
        self._wanted = wanted

    async def _go_round(self, now: datetime) -> timedelta:
        await self._measure()
        stored = await self._store.read(self._wanted.bundle_secret)
        given = read_bundle(stored.data.get(CA_KEY, b"") if stored is not None else b"")
        if not given:
            self.problem = f"Secret {self._wanted.bundle_secret} has no usable {CA_KEY} yet"
            return LOOK_AT_LEAST_EVERY
        mine = frozenset(each.fingerprint for _, each in given)
        carried = {
            each.fingerprint: (pem, each)
            for target in self._wanted.targets
            for bundle in await current_bundles(self._client, target)
            for pem, each in read_bundle(bundle)
            if each.fingerprint not in mine
        }
        living = trusted_authorities([each for _, each in carried.values()], now=now)
        older = [carried[fingerprint][0] for fingerprint in sorted(living)]
        newest = b"".join(pem for pem, _ in given)
        if older and await self._replicas.all_serve([self._wanted.service], trusting=newest):
            older = []
        self._metrics.trusted(len(given) + len(older))
        moved = await inject_all(
            self._client,
            self._wanted.targets,
            bundle_pem=b"".join([newest, *older]),
            metrics=self._metrics,
        )
        self.problem = "a webhook configuration changes" if moved else None
        if moved:
            self.wake()
        return REPLICAS_EVERY if older else LOOK_AT_LEAST_EVERY

    async def _measure(self) -> None:
        for name in self._wanted.secrets:
            stored = await self._store.read(name)
            if stored is None or not stored.data.get(CERT_KEY):
                continue
            try:
                self._metrics.expires(name, at=read(stored.data[CERT_KEY]).not_after)
            except AuthorityError as error:
                log.warning("secret_unusable", secret=name, reason=str(error))
