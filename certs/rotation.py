"""Decides when a certificate is renewed and which authorities are trusted meanwhile; pure.

Trust comes before use. A new authority is first added to the bundle; only after every webhook
configuration has had that bundle for a while does it sign certificates. The old authority stays in
the bundle until every replica serves a certificate of the new one or, if replicas cannot be
reached, until it expires: so whatever a replica still serves stays trusted.

=====================================================  ==========================
a certificate that                                     is renewed
=====================================================  ==========================
is missing, unreadable, expired, or trusted by nobody  at once
is past two thirds of its life                         once its signer is trusted
has other names than desired                           once its signer is trusted
was signed by a previous authority                     once its signer is trusted
has a rotation request                                 once its signer is trusted
=====================================================  ==========================
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from certs.authority import CertificateInfo

_RENEWED_BEFORE_END: Final = 3  # a certificate is renewed with a third of its life left


class RenewalReason(Enum):
    """Why a certificate is renewed; a metric label."""

    MISSING = "missing"
    EXPIRED = "expired"
    DUE = "due"
    NAMES = "names"
    AUTHORITY = "authority"
    ASKED = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """There is nothing to do before *until*."""

    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Renew the certificate now."""

    reason: RenewalReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The renewal is due, but its signer is not trusted everywhere before *until*.

    ``None`` means "as soon as every configuration has the bundle".
    """

    reason: RenewalReason
    until: datetime | None


def due_at(certificate: CertificateInfo) -> datetime:
    """Return when two thirds of the certificate's life are over."""
    life = certificate.not_after - certificate.not_before
    return certificate.not_after - life / _RENEWED_BEFORE_END


def authority_step(
    ca: CertificateInfo | None, *, now: datetime, asked: bool = False
) -> Keep | Renew:
    """Return what to do about the authority; *ca* is None if it is missing or unreadable.

    *asked* is whether a rotation of this very certificate was requested.
    """
    if ca is None or not ca.is_ca:
        return Renew(reason=RenewalReason.MISSING)
    if ca.not_after <= now:
        return Renew(reason=RenewalReason.EXPIRED)
    if due_at(ca) <= now:
        return Renew(reason=RenewalReason.DUE)
    return Renew(reason=RenewalReason.ASKED) if asked else Keep(until=due_at(ca))


def trusted_authorities(bundle: Sequence[CertificateInfo], *, now: datetime) -> frozenset[str]:
    """Return the fingerprints of the authorities in *bundle* that are still valid."""
    return frozenset(each.fingerprint for each in bundle if each.is_ca and now < each.not_after)


def serving_step(  # noqa: PLR0913 - one keyword for each fact it decides by
    leaf: CertificateInfo | None,
    *,
    ca: CertificateInfo,
    bundle: Sequence[CertificateInfo],
    names: frozenset[str],
    now: datetime,
    signs_from: datetime | None,
    asked: bool = False,
) -> Keep | Renew | Wait:
    """Return what to do about a server's or client's certificate, by the table above.

    Args:
        leaf: the stored certificate; None when missing or unreadable.
        ca: the current authority, which would sign a new certificate.
        bundle: all authorities that clients trust.
        names: the desired names.
        now: the current time.
        signs_from: when *ca* is trusted everywhere; None when not known yet.
        asked: whether a rotation of this very certificate was requested.
    """
    if leaf is None:
        return Renew(reason=RenewalReason.MISSING)
    if leaf.not_after <= now:
        return Renew(reason=RenewalReason.EXPIRED)
    if leaf.issuer_key_id not in {each.key_id for each in bundle if now < each.not_after}:
        return Renew(reason=RenewalReason.AUTHORITY)
    reason = _wanted(leaf, ca=ca, names=names, now=now)
    if reason is None and asked:
        reason = RenewalReason.ASKED
    if reason is None:
        return Keep(until=due_at(leaf))
    if signs_from is None or now < signs_from:
        return Wait(reason=reason, until=signs_from)
    return Renew(reason=reason)


def _wanted(
    leaf: CertificateInfo, *, ca: CertificateInfo, names: frozenset[str], now: datetime
) -> RenewalReason | None:
    if leaf.names != names:
        return RenewalReason.NAMES
    if leaf.issuer_key_id != ca.key_id:
        return RenewalReason.AUTHORITY
    return RenewalReason.DUE if due_at(leaf) <= now else None


def retired_from(
    leaves: Sequence[CertificateInfo], *, ca: CertificateInfo, grace: timedelta
) -> datetime | None:
    """Return when authorities before *ca* may leave the bundle, if no replica needs them any more.

    That is *grace* after the last certificate was issued, for programs that cannot be checked:
    clients, and readers of the old bundle. None while another authority signed a stored one.
    """
    if not leaves or any(leaf.issuer_key_id != ca.key_id for leaf in leaves):
        return None
    return max(leaf.not_before for leaf in leaves) + grace


def next_look(
    steps: Sequence[Keep | Renew | Wait], *, now: datetime, limit: timedelta
) -> timedelta:
    """Return the time to the earliest *until*, at most *limit*."""
    times = [step.until for step in steps if not isinstance(step, Renew) and step.until is not None]
    soonest = min([now + limit, *times])
    return max(timedelta(0), soonest - now)
