"""The status of every certificate and CA bundle, as read from the API server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from certs.authority import AuthorityError, CertificateInfo, Pair, read, read_pair
from certs.reconciler import Purpose
from certs.service import desired_of, serving_secret, targets_of
from certs.settings import CertsSettings
from certs.store import CertStore, StoredSecret, read_bundle
from certs.trust.ca_injector import BundleTarget, carried_bundles
from kube.client import KubeClient
from kube.errors import NotFound
from process.tls import CA_KEY, CERT_KEY, PRIVATE_KEY_KEY

_CERT_MANAGERS: Final = "cert-manager.io/certificate-name"


class CertificateRole(Enum):
    """What a certificate is for."""

    AUTHORITY = "authority"
    SERVER = "server"
    CLIENT = "client"


class TrustState(Enum):
    """Whether a webhook configuration trusts the authority."""

    CURRENT = "current"
    OTHER = "trusts the authority, with another bundle"
    LACKS = "does not trust the authority"
    EMPTY = "has no bundle"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStatus:
    """The status of one certificate; *facts* is None if it cannot be read."""

    secret: str
    role: CertificateRole
    facts: CertificateInfo | None
    signed_by: str
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleStatus:
    """Whether one webhook of one configuration trusts the authority."""

    configuration: str
    webhook: str
    trust: TrustState


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The status of all certificates and bundles.

    Attributes:
        rows: the certificates, starting with the authority's if it is ours.
        bundles: the webhook configurations.
        authorities: number of authorities in the bundle.
        foreign_maker: whether cert-manager issues the certificates.
        now: when the status was read.
    """

    rows: Sequence[CertificateStatus]
    bundles: Sequence[BundleStatus]
    authorities: int
    foreign_maker: bool
    now: datetime

    @property
    def problems(self) -> list[str]:
        """The problems, as sentences; empty when there is none."""
        found = [f"Secret {row.secret}: {row.problem}" for row in self.rows if row.problem]
        found += [
            f"{row.configuration}, webhook {row.webhook}: {row.trust.value}"
            for row in self.bundles
            if row.trust in (TrustState.LACKS, TrustState.EMPTY)
        ]
        if self.bundles and all(row.trust is TrustState.ABSENT for row in self.bundles):
            found.append("no webhook configuration exists that could trust the authority")
        return found


async def collect_report(client: KubeClient, settings: CertsSettings, *, now: datetime) -> Report:
    """Return the status of all certificates and bundles.

    Raises:
        KubeError: the API server did not answer, or refused.
    """
    store = CertStore(client, namespace=settings.namespace)
    desired = desired_of(settings)
    leaves = {name: await store.read(name) for name in desired.leaves}
    authority = await store.read(settings.ca_secret)
    foreign = any(is_cert_managers(stored) for stored in leaves.values())
    first = leaves.get(serving_secret(settings.webhook_service)) if foreign else authority
    bundle_pem = first.data.get(CA_KEY, b"") if first is not None else b""
    bundle = [info for _, info in read_bundle(bundle_pem)]
    signers = {each.key_id: "older" for each in bundle}
    rows = []
    if not foreign:
        row = _row(
            settings.ca_secret, CertificateRole.AUTHORITY, authority, signers={}, now=now, own=True
        )
        rows.append(row)
        if row.facts is not None:
            signers[row.facts.key_id] = "current"
    else:
        signers = dict.fromkeys(signers, "current")
    rows += [
        _row(name, _role(desired.leaves[name].purpose), stored, signers=signers, now=now,
             own=not foreign)
        for name, stored in leaves.items()
    ]  # fmt: skip
    return Report(
        rows=rows,
        bundles=[
            row
            for target in targets_of(settings)
            for row in await _bundle_rows(client, target, bundle_pem=bundle_pem, bundle=bundle)
        ],
        authorities=len(bundle),
        foreign_maker=foreign,
        now=now,
    )


def is_cert_managers(stored: StoredSecret | None) -> bool:
    """Report whether cert-manager writes this Secret."""
    annotations = stored.body.get("metadata", {}).get("annotations") if stored is not None else None
    return _CERT_MANAGERS in (annotations or {})


def _role(purpose: Purpose) -> CertificateRole:
    return CertificateRole.CLIENT if purpose is Purpose.CALL else CertificateRole.SERVER


def _row(
    name: str,
    role: CertificateRole,
    stored: StoredSecret | None,
    *,
    signers: Mapping[str, str],
    now: datetime,
    own: bool,
) -> CertificateStatus:
    if stored is None or not stored.data.get(CERT_KEY):
        problem = "there is none" if stored is None else f"it has no {CERT_KEY}"
        return CertificateStatus(secret=name, role=role, facts=None, signed_by="-", problem=problem)
    pair = Pair(cert_pem=stored.data[CERT_KEY], key_pem=stored.data.get(PRIVATE_KEY_KEY, b""))
    try:
        info = read_pair(pair) if own else read(pair.cert_pem)
    except AuthorityError as error:
        return CertificateStatus(
            secret=name, role=role, facts=None, signed_by="-", problem=str(error)
        )
    signed_by = (
        "itself"
        if role is CertificateRole.AUTHORITY
        else signers.get(info.issuer_key_id, "unknown")
    )
    wrong: str | None = None
    if info.not_after <= now:
        wrong = f"expired at {info.not_after.isoformat()}"
    elif signed_by == "unknown":
        wrong = "signed by an authority that is not in the bundle"
    return CertificateStatus(secret=name, role=role, facts=info, signed_by=signed_by, problem=wrong)


async def _bundle_rows(
    client: KubeClient,
    target: BundleTarget,
    *,
    bundle_pem: bytes,
    bundle: Sequence[CertificateInfo],
) -> list[BundleStatus]:
    try:
        configuration: Mapping[str, Any] = await client.get_object(target.kind, target.name)
    except NotFound:
        return [BundleStatus(configuration=str(target), webhook="-", trust=TrustState.ABSENT)]
    return [
        BundleStatus(
            configuration=str(target),
            webhook=webhook,
            trust=_trust(carried, bundle_pem=bundle_pem, bundle=bundle),
        )
        for webhook, carried in carried_bundles(configuration)
    ]


def _trust(
    carried_pem: bytes, *, bundle_pem: bytes, bundle: Sequence[CertificateInfo]
) -> TrustState:
    if not carried_pem:
        return TrustState.EMPTY
    if carried_pem == bundle_pem:
        return TrustState.CURRENT
    trusted = {info.fingerprint for _, info in read_bundle(carried_pem)}
    # The first authority of the bundle is the one that signs.
    return TrustState.OTHER if bundle and bundle[0].fingerprint in trusted else TrustState.LACKS
