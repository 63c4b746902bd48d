"""How every certificate stands and who trusts it, as the API server tells it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from certs.authority import AuthorityError, CertificateInfo, Pair, read, read_pair
from certs.reconciler import Client, Purpose
from certs.service import desired_of, serving_secret, targets_of
from certs.settings import CertsSettings
from certs.store import CertStore, StoredSecret, read_bundle
from certs.trust.ca_injector import BundleTarget, carried_bundles
from kube.errors import NotFound
from process.tls import CA_KEY, CERT_KEY, PRIVATE_KEY_KEY

_CERT_MANAGERS: Final = "cert-manager.io/certificate-name"


class CertificateRole(Enum):
    """What a certificate is for."""

    AUTHORITY = "authority"
    SERVER = "server"
    CLIENT = "client"


class TrustState(Enum):
    """What a webhook configuration carries."""

    CURRENT = "current"
    OTHER = "trusts the authority, with another bundle"
    LACKS = "does not trust the authority"
    EMPTY = "has no bundle"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStatus:
    """One certificate; *facts* is None where there is none to read."""

    secret: str
    role: CertificateRole
    facts: CertificateInfo | None
    signed_by: str
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleStatus:
    """What one webhook of one configuration trusts."""

    configuration: str
    webhook: str
    trust: TrustState


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How it stands.

    Attributes:
        rows: the certificates, the authority's first where it is ours.
        bundles: the webhook configurations.
        authorities: how many authorities the bundle holds.
        foreign_maker: whether cert-manager makes the certificates.
        now: when this was true.
    """

    rows: Sequence[CertificateStatus]
    bundles: Sequence[BundleStatus]
    authorities: int
    foreign_maker: bool
    now: datetime

    @property
    def problems(self) -> list[str]:
        """What is not as it should be, in sentences; nothing when all is well."""
        found = [f"Secret {row.secret}: {row.problem}" for row in self.rows if row.problem]
        found += [
            f"{row.configuration}, webhook {row.webhook}: {row.trust.value}"
            for row in self.bundles
            if row.trust in (TrustState.LACKS, TrustState.EMPTY)
        ]
        if self.bundles and all(row.trust is TrustState.ABSENT for row in self.bundles):
            found.append("no webhook configuration exists that could trust the authority")
        return found


async def look(client: Client, settings: CertsSettings, *, now: datetime) -> Report:
    """Read everything and judge it.

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
    bundle = [facts for _, facts in read_bundle(bundle_pem)]
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
    """Tell whether cert-manager writes this Secret."""
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
        facts = read_pair(pair) if own else read(pair.cert_pem)
    except AuthorityError as error:
        return CertificateStatus(
            secret=name, role=role, facts=None, signed_by="-", problem=str(error)
        )
    signed_by = (
        "itself"
        if role is CertificateRole.AUTHORITY
        else signers.get(facts.issuer_key_id, "unknown")
    )
    wrong: str | None = None
    if facts.not_after <= now:
        wrong = f"expired at {facts.not_after.isoformat()}"
    elif signed_by == "unknown":
        wrong = "signed by an authority that is not in the bundle"
    return CertificateStatus(
        secret=name, role=role, facts=facts, signed_by=signed_by, problem=wrong
    )


async def _bundle_rows(
    client: Client, target: BundleTarget, *, bundle_pem: bytes, bundle: Sequence[CertificateInfo]
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
    trusted = {facts.fingerprint for _, facts in read_bundle(carried_pem)}
    # The first of the bundle is the one that signs.
    return TrustState.OTHER if bundle and bundle[0].fingerprint in trusted else TrustState.LACKS
