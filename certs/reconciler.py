"""Reconciles all certificates and the CA bundles of the webhook configurations.

Read, decide, act: first the authority, then trust in it, then the certificates it signs, and last
the removal of previous authorities that are no longer needed. Everything is read from the API
server in each pass, so a restart forgets only how long an authority has been trusted, which only
delays the next step.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

import structlog

from certs.authority import CertificateInfo, Pair, make_ca, make_client, make_serving, read, split
from certs.metrics import CertsMetrics
from certs.rotation import (
    Keep,
    Renew,
    RenewalReason,
    Wait,
    authority_step,
    next_look,
    retired_from,
    serving_step,
    trusted_authorities,
)
from certs.store import CertStore, StoredSecret, asked_for, stored_bundle, stored_pair
from certs.trust.ca_injector import BundleTarget, inject_all
from certs.trust.rollout import name_first_authority, restarted
from certs.trust.served_certificates import ServedCertificates
from certs.work_loop import LOOK_AT_LEAST_EVERY, REPLICAS_EVERY, LookAgain, WorkLoop
from kube.client import KubeClient
from kube.kinds import DAEMONSETS, DEPLOYMENTS
from kube.transport import ServerVersion
from process.clock import Clock
from process.tls import CA_KEY, CERT_KEY, PRIVATE_KEY_KEY

log = structlog.get_logger()

_ROLLOUT_EVERY: Final = timedelta(seconds=2)


class Purpose(Enum):
    """What a certificate is for; a server's cannot be used by a client, nor vice versa."""

    SERVE = "serve"
    CALL = "call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A desired certificate: its names, the first of which is the subject."""

    purpose: Purpose
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredCertificates:
    """The desired certificates.

    Attributes:
        ca_secret: name of the authority's Secret.
        leaves: the desired certificate of each Secret.
        services: Services whose replicas serve them; the replicas are checked by a TLS handshake.
        targets: the webhook configurations that must trust the authority.
        readers: Deployments whose pods read the bundle only when they start.
        node_readers: DaemonSets whose pods each restart such a program on their node.
        ca_life: lifetime of the authority.
        leaf_life: lifetime of the certificates it signs.
        overlap: how long a new authority is trusted everywhere before it signs.
        grace: how long, at least, the previous one stays trusted after all leaves are renewed.
    """

    ca_secret: str
    leaves: Mapping[str, Leaf]
    services: Sequence[str]
    targets: Sequence[BundleTarget]
    readers: Sequence[str]
    node_readers: Sequence[str] = ()
    ca_life: timedelta
    leaf_life: timedelta
    overlap: timedelta
    grace: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class _Authority:
    stored: StoredSecret
    pair: Pair
    facts: CertificateInfo
    bundle_pem: bytes
    bundle: Sequence[CertificateInfo]
    step: Keep


class Reconciler(WorkLoop):
    """Reconciles whenever an object has changed or a renewal is due."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        namespace: str,
        desired: DesiredCertificates,
        metrics: CertsMetrics,
        server: Callable[[], Awaitable[ServerVersion]] | None = None,
    ) -> None:
        super().__init__(clock, metrics, server=server)
        self._client = client
        self._store = CertStore(client, namespace=namespace)
        self._replicas = ServedCertificates(client, namespace=namespace)
        self._desired = desired
        self._namespace = namespace
        self._trusted: tuple[str, datetime] | None = None
        self._read_by_all: str | None = None

    async def _go_round(self, now: datetime) -> timedelta:
        authority = await self._keep_authority(now)
        injected_since = await self._keep_trust(authority, now)
        read_by_all = self._read_by_all == authority.facts.fingerprint
        trusted_since = injected_since if read_by_all else None
        steps: list[Keep | Renew | Wait] = [authority.step]
        leaves = []
        for name in self._desired.leaves:
            info, step = await self._keep_leaf(
                name, authority, now=now, trusted_since=trusted_since
            )
            leaves.append(info)
            steps.append(step)
        steps += await self._restart_readers(authority, now)
        steps += await self._retire(authority, leaves, now)
        self.problem = None if injected_since is not None else "a webhook configuration changes"
        return next_look(steps, now=now, limit=LOOK_AT_LEAST_EVERY)

    async def _keep_authority(self, now: datetime) -> _Authority:
        name = self._desired.ca_secret
        stored = await self._store.read(name)
        pair, info = stored_pair(stored)
        bundle = stored_bundle(stored)
        step = authority_step(info, now=now, asked=asked_for(stored, info))
        trusted = trusted_authorities([each for _, each in bundle], now=now)
        kept = b"".join(pem for pem, each in bundle if each.fingerprint in trusted)
        if isinstance(step, Renew) or stored is None or pair is None or info is None:
            reason = step.reason if isinstance(step, Renew) else RenewalReason.MISSING
            pair = make_ca(name=name, now=now, life=self._desired.ca_life)
            await self._write(name, pair, bundle_pem=pair.cert_pem + kept, over=stored)
            self._renewed(name, pair, reason)
            raise LookAgain
        bundle_pem = kept if info.fingerprint in trusted else pair.cert_pem + kept
        if stored.data.get(CA_KEY) != bundle_pem:
            await self._write(name, pair, bundle_pem=bundle_pem, over=stored)
            log.info("bundle_trimmed", secret=name, authorities=len(split(bundle_pem)))
            raise LookAgain
        self._metrics.expires(name, at=info.not_after)
        self._metrics.trusted(len(trusted))
        return _Authority(
            stored=stored,
            pair=pair,
            facts=info,
            bundle_pem=bundle_pem,
            bundle=[each for _, each in bundle],
            step=step,
        )

    async def _keep_trust(self, authority: _Authority, now: datetime) -> datetime | None:
        """Write the bundle into every configuration; return since when all of them have it."""
        if await inject_all(
            self._client,
            self._desired.targets,
            bundle_pem=authority.bundle_pem,
            metrics=self._metrics,
        ):
            self._trusted = None
            self.wake()
            return None
        if self._trusted is None or self._trusted[0] != authority.facts.fingerprint:
            self._trusted = (authority.facts.fingerprint, now)
        return self._trusted[1]

    async def _restart_readers(self, authority: _Authority, now: datetime) -> list[Keep]:
        """Restart programs that read the bundle only at start; called once every Secret has it."""
        fingerprint = authority.facts.fingerprint
        if self._read_by_all == fingerprint:
            return []
        readers = [(DEPLOYMENTS, name) for name in self._desired.readers]
        readers += [(DAEMONSETS, name) for name in self._desired.node_readers]
        done = [
            await restarted(
                self._client, name, namespace=self._namespace, authority=fingerprint, kind=kind
            )
            for kind, name in readers
        ]
        self._metrics.awaits_restarts(done.count(False))
        if not all(done):
            return [Keep(until=now + _ROLLOUT_EVERY)]
        self._read_by_all = fingerprint
        return [Keep(until=now)]  # reconcile again: now the authority may sign

    async def _keep_leaf(
        self, name: str, authority: _Authority, *, now: datetime, trusted_since: datetime | None
    ) -> tuple[CertificateInfo, Keep | Wait]:
        stored = await self._store.read(name)
        pair, info = stored_pair(stored)
        wanted = self._desired.leaves[name]
        step = serving_step(
            info,
            ca=authority.facts,
            bundle=authority.bundle,
            names=frozenset(wanted.names),
            now=now,
            signs_from=None if trusted_since is None else trusted_since + self._desired.overlap,
            asked=asked_for(stored, info),
        )
        if isinstance(step, Renew) or stored is None or pair is None or info is None:
            reason = step.reason if isinstance(step, Renew) else RenewalReason.MISSING
            if stored is None and wanted.purpose is Purpose.CALL:
                await self._name_first_authority(authority)
            pair = self._make(authority.pair, wanted, now)
            await self._write(name, pair, bundle_pem=authority.bundle_pem, over=stored)
            self._renewed(name, pair, reason)
            raise LookAgain
        if stored.data.get(CA_KEY) != authority.bundle_pem:
            await self._write(name, pair, bundle_pem=authority.bundle_pem, over=stored)
        self._metrics.expires(name, at=info.not_after)
        return info, step

    async def _name_first_authority(self, authority: _Authority) -> None:
        """Spare programs a restart that wait for their first bundle, as after an installation."""
        for name in self._desired.readers:
            await name_first_authority(
                self._client,
                name,
                namespace=self._namespace,
                authority=authority.facts.fingerprint,
            )

    def _make(self, ca: Pair, wanted: Leaf, now: datetime) -> Pair:
        if wanted.purpose is Purpose.CALL:
            return make_client(ca, name=wanted.names[0], now=now, life=self._desired.leaf_life)
        return make_serving(ca, names=wanted.names, now=now, life=self._desired.leaf_life)

    async def _retire(
        self, authority: _Authority, leaves: Sequence[CertificateInfo], now: datetime
    ) -> list[Keep]:
        """Remove previous authorities from the bundle once no replica needs them.

        Returns what to wait for. A replica that cannot be reached may still serve an old
        certificate; then the authorities stay until they expire.
        """
        if len(authority.bundle) < 2:  # noqa: PLR2004 - itself and no other
            return []
        since = retired_from(leaves, ca=authority.facts, grace=self._desired.grace)
        if since is None or now < since:
            return [Keep(until=since)] if since is not None else []
        name, pair = self._desired.ca_secret, authority.pair
        if not await self._replicas.all_serve(self._desired.services, trusting=pair.cert_pem):
            return [Keep(until=now + REPLICAS_EVERY)]
        await self._write(name, pair, bundle_pem=pair.cert_pem, over=authority.stored)
        log.info("authorities_retired", secret=name, retired=len(authority.bundle) - 1)
        raise LookAgain

    async def _write(
        self, name: str, pair: Pair, *, bundle_pem: bytes, over: StoredSecret | None
    ) -> None:
        data = {CERT_KEY: pair.cert_pem, PRIVATE_KEY_KEY: pair.key_pem, CA_KEY: bundle_pem}
        if not await self._store.write(name, data, over=over):
            self._metrics.race_lost(name)
            log.info("secret_adopted", secret=name)
            raise LookAgain

    def _renewed(self, name: str, pair: Pair, reason: RenewalReason) -> None:
        self._metrics.renewed(name, reason=reason)
        until = read(pair.cert_pem).not_after
        log.info("certificate_renewed", secret=name, reason=reason.value, until=until.isoformat())
