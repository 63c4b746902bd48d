"""The loop that keeps every certificate fresh and every webhook configuration trusting it.

Read, decide, act: the authority first, then trust in it, then what it signs. Everything is read
from the API server in each round, so a restart forgets nothing but how long trust has lasted,
which only makes it more patient.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog

from certs.authority import (
    AuthorityError,
    Facts,
    Pair,
    make_ca,
    make_serving,
    read,
    read_pair,
    split,
)
from certs.injection import BundleTarget, ConfigurationClient, Injection, inject
from certs.metrics import CertsMetrics
from certs.rotation import (
    Keep,
    Reason,
    Renew,
    Wait,
    authority_step,
    next_look,
    serving_step,
    trusted_authorities,
)
from certs.store import CertStore, SecretClient, StoredSecret
from kube.errors import KubeError
from process.clock import Clock, wait_at_most
from process.tls import CA_KEY, CERT_KEY, PRIVATE_KEY_KEY

log = structlog.get_logger()

_LOOK_AT_LEAST_EVERY: Final = timedelta(minutes=5)
_RETRY: Final = timedelta(seconds=5)
# Looking again after a write is the rule; but should a write never take, it must not hammer.
_AGAIN_FIRST: Final = timedelta(milliseconds=20)
_AGAIN_DOUBLINGS: Final = 8


class Client(SecretClient, ConfigurationClient, Protocol):
    """What the loop needs of ``kube.client.KubeClient``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What there shall be.

    Attributes:
        ca_secret: name of the Secret of the authority.
        serving: for each Secret the names its certificate is good for.
        targets: the webhook configurations that shall trust the authority.
        ca_life: of the authority.
        serving_life: of a serving certificate.
        overlap: how long a new authority is trusted everywhere before it signs.
    """

    ca_secret: str
    serving: Mapping[str, Sequence[str]]
    targets: Sequence[BundleTarget]
    ca_life: timedelta
    serving_life: timedelta
    overlap: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class _Authority:
    pair: Pair
    facts: Facts
    bundle_pem: bytes
    bundle: Sequence[Facts]
    step: Keep


class _LookAgain(Exception):  # noqa: N818 - not an error
    """What was read is stale: we or somebody else wrote since."""


class CertsLoop:
    """Acts when something changed and when something is due."""

    def __init__(
        self, client: Client, clock: Clock, *, namespace: str, wanted: Wanted, metrics: CertsMetrics
    ) -> None:
        self._client = client
        self._clock = clock
        self._store = CertStore(client, namespace=namespace)
        self._wanted = wanted
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._trusted: tuple[str, datetime] | None = None
        self._restless = 0
        self.problem: str | None = "no round finished yet"
        """Why not all is as wanted, or None: the readiness check."""

    def look(self) -> None:
        """Tell the loop that something it reads may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Go round until cancelled."""
        while True:
            self._changed.clear()
            pause = await self.round()
            await wait_at_most(self._clock, self._changed, limit_s=pause.total_seconds())

    async def round(self) -> timedelta:
        """Make everything as wanted, as far as it goes now; return when to look again."""
        now = self._clock.now()
        try:
            authority = await self._keep_authority(now)
            trusted_since = await self._keep_trust(authority, now)
            steps = [
                await self._keep_serving(name, authority, now=now, trusted_since=trusted_since)
                for name in self._wanted.serving
            ]
        except _LookAgain:
            self._restless = min(self._restless + 1, _AGAIN_DOUBLINGS)
            return _AGAIN_FIRST * (1 << self._restless)
        except KubeError as error:
            self.problem = str(error)
            self._metrics.failed(reason=error.reason)
            log.warning("certificates_not_checked", reason=str(error))
            return _RETRY
        self._restless = 0
        self.problem = None if trusted_since is not None else "a webhook configuration changes"
        return next_look([authority.step, *steps], now=now, limit=_LOOK_AT_LEAST_EVERY)

    async def _keep_authority(self, now: datetime) -> _Authority:
        name = self._wanted.ca_secret
        stored = await self._store.read(name)
        pair, facts = _read_stored_pair(stored)
        bundle = _read_bundle(stored)
        step = authority_step(facts, now=now)
        trusted = trusted_authorities([each for _, each in bundle], now=now)
        kept = b"".join(pem for pem, each in bundle if each.fingerprint in trusted)
        if isinstance(step, Renew) or pair is None or facts is None:
            reason = step.reason if isinstance(step, Renew) else Reason.MISSING
            pair = make_ca(name=name, now=now, life=self._wanted.ca_life)
            await self._write(name, pair, bundle_pem=pair.cert_pem + kept, over=stored)
            self._renewed(name, pair, reason)
            raise _LookAgain
        whole = kept if facts.fingerprint in trusted else pair.cert_pem + kept
        if stored is None or stored.data.get(CA_KEY) != whole:
            await self._write(name, pair, bundle_pem=whole, over=stored)
            log.info("bundle_trimmed", secret=name, authorities=len(split(whole)))
        self._metrics.expires(name, at=facts.not_after)
        return _Authority(
            pair=pair,
            facts=facts,
            bundle_pem=whole,
            bundle=[read(pem) for pem in split(whole)],
            step=step,
        )

    async def _keep_trust(self, authority: _Authority, now: datetime) -> datetime | None:
        """Give every configuration the bundle; return since when all of them have it."""
        outcomes = []
        for target in self._wanted.targets:
            outcome = await inject(self._client, target, bundle_pem=authority.bundle_pem)
            outcomes.append(outcome)
            if outcome is Injection.PATCHED:
                self._metrics.injected(str(target))
                log.info("bundle_injected", configuration=str(target))
        if Injection.MOVED in outcomes:
            self._trusted = None
            self.look()
            return None
        if self._trusted is None or self._trusted[0] != authority.facts.fingerprint:
            self._trusted = (authority.facts.fingerprint, now)
        return self._trusted[1]

    async def _keep_serving(
        self, name: str, authority: _Authority, *, now: datetime, trusted_since: datetime | None
    ) -> Keep | Renew | Wait:
        stored = await self._store.read(name)
        pair, facts = _read_stored_pair(stored)
        names = self._wanted.serving[name]
        step = serving_step(
            facts,
            ca=authority.facts,
            bundle=authority.bundle,
            names=frozenset(names),
            now=now,
            signs_from=None if trusted_since is None else trusted_since + self._wanted.overlap,
        )
        if isinstance(step, Renew) or pair is None or facts is None:
            reason = step.reason if isinstance(step, Renew) else Reason.MISSING
            life = self._wanted.serving_life
            pair = make_serving(authority.pair, names=names, now=now, life=life)
            await self._write(name, pair, bundle_pem=authority.bundle_pem, over=stored)
            self._renewed(name, pair, reason)
            raise _LookAgain
        if stored is None or stored.data.get(CA_KEY) != authority.bundle_pem:
            await self._write(name, pair, bundle_pem=authority.bundle_pem, over=stored)
        self._metrics.expires(name, at=facts.not_after)
        return step

    async def _write(
        self, name: str, pair: Pair, *, bundle_pem: bytes, over: StoredSecret | None
    ) -> None:
        data = {CERT_KEY: pair.cert_pem, PRIVATE_KEY_KEY: pair.key_pem, CA_KEY: bundle_pem}
        if not await self._store.write(name, data, over=over):
            self._metrics.race_lost(name)
            log.info("secret_adopted", secret=name)
            raise _LookAgain

    def _renewed(self, name: str, pair: Pair, reason: Reason) -> None:
        self._metrics.renewed(name, reason=reason)
        until = read(pair.cert_pem).not_after
        log.info("certificate_renewed", secret=name, reason=reason.value, until=until.isoformat())


def _read_stored_pair(stored: StoredSecret | None) -> tuple[Pair | None, Facts | None]:
    if stored is None or not stored.data.get(CERT_KEY):
        return None, None
    pair = Pair(cert_pem=stored.data[CERT_KEY], key_pem=stored.data.get(PRIVATE_KEY_KEY, b""))
    try:
        return pair, read_pair(pair)
    except AuthorityError as error:
        log.warning("secret_unusable", secret=stored.name, reason=str(error))
        return None, None


def _read_bundle(stored: StoredSecret | None) -> list[tuple[bytes, Facts]]:
    try:
        pems = split(stored.data.get(CA_KEY, b"")) if stored is not None else ()
        return [(pem, read(pem)) for pem in pems]
    except AuthorityError as error:
        log.warning("bundle_unusable", reason=str(error))
        return []
