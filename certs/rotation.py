"""When a certificate is renewed, and whom to trust meanwhile: decisions only, told the time.

Trust comes before use. A new authority joins the bundle first; only when every webhook
configuration has carried that bundle for a while does the authority sign what is served. The old
one stays in the bundle until every replica was seen to serve what the new one signed, and where
nobody can look, until it expires: so whatever a replica still serves stays trusted.

=====================================================  ==========================
a certificate that                                     is renewed
=====================================================  ==========================
is missing, unreadable, expired, or trusted by nobody  at once
is past two thirds of its life                         once its signer is trusted
has other names than wanted                            once its signer is trusted
was signed by an authority before the current          once its signer is trusted
somebody asked to replace                              once its signer is trusted
=====================================================  ==========================
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from certs.authority import CertificateInfo

_RENEWED_BEFORE_END: Final = 3  # a third of the life is left when it is renewed


class RenewalReason(Enum):
    """Why a certificate is made anew; a metric label."""

    MISSING = "missing"
    EXPIRED = "expired"
    DUE = "due"
    NAMES = "names"
    AUTHORITY = "authority"
    ASKED = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Nothing to do before *until*."""

    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Make a new one now."""

    reason: RenewalReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """It wants renewal, but its signer is not trusted everywhere before *until*.

    ``None`` is "as soon as every configuration carries the bundle".
    """

    reason: RenewalReason
    until: datetime | None


def due_at(certificate: CertificateInfo) -> datetime:
    """When two thirds of its life are over."""
    life = certificate.not_after - certificate.not_before
    return certificate.not_after - life / _RENEWED_BEFORE_END


def authority_step(
    ca: CertificateInfo | None, *, now: datetime, asked: bool = False
) -> Keep | Renew:
    """Decide about the authority; None is one that is missing or cannot be read.

    *asked* is whether somebody wants this very one replaced.
    """
    if ca is None or not ca.is_ca:
        return Renew(reason=RenewalReason.MISSING)
    if ca.not_after <= now:
        return Renew(reason=RenewalReason.EXPIRED)
    if due_at(ca) <= now:
        return Renew(reason=RenewalReason.DUE)
    return Renew(reason=RenewalReason.ASKED) if asked else Keep(until=due_at(ca))


def trusted_authorities(bundle: Sequence[CertificateInfo], *, now: datetime) -> frozenset[str]:
    """Name (by fingerprint) the authorities in *bundle* that are still worth trusting."""
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
    """Decide about a server's or client's certificate, as the table above says.

    Args:
        leaf: the one stored; None when missing or unreadable.
        ca: the current authority, which would sign a new one.
        bundle: all authorities that clients trust.
        names: what it must be good for.
        now: the time.
        signs_from: when *ca* is trusted everywhere; None when that is not known yet.
        asked: whether somebody wants this very one replaced.
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
    """When the authorities before *ca* may leave the bundle, if every replica has moved on.

    *grace* after the last certificate was made, for those who cannot be looked at: clients, and
    whoever read the bundle a moment ago. None while a stored certificate is of another authority.
    """
    if not leaves or any(leaf.issuer_key_id != ca.key_id for leaf in leaves):
        return None
    return max(leaf.not_before for leaf in leaves) + grace


def next_look(
    steps: Sequence[Keep | Renew | Wait], *, now: datetime, limit: timedelta
) -> timedelta:
    """How long nothing can become due: to the earliest *until*, at most *limit*."""
    times = [step.until for step in steps if not isinstance(step, Renew) and step.until is not None]
    soonest = min([now + limit, *times])
    return max(timedelta(0), soonest - now)
