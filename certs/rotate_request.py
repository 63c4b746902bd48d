"""Requests a rotation from the running certs role, and waits until it is done.

The request is an annotation on the Secret, so it needs only the API server, and the caller needs
no key: the role issues the new certificate.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from certs.settings import CertsSettings
from certs.status import CertificateRole, CertificateStatus, Report, TrustState, collect_report
from certs.store import ROTATE_KEY
from kube.client import KubeClient
from kube.kinds import SECRETS
from process.clock import Clock

_LOOK_EVERY_S: Final = 0.5


class RotationRefused(Exception):  # noqa: N818 - an answer
    """There is nothing to rotate; ``str()`` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationRequest:
    """A requested rotation: the fingerprints to be replaced, by Secret."""

    replaced: dict[str, str]
    authority: bool


async def request_rotation(
    client: KubeClient, clock: Clock, settings: CertsSettings, *, authority: bool
) -> RotationRequest:
    """Request the replacement of the authority (and so all it signed), or only of what it signed.

    Raises:
        RotationRefused: cert-manager makes the certificates, or there are none.
        KubeError: the API server did not answer, or refused.
    """
    report = await collect_report(client, settings, now=clock.now())
    if report.foreign_maker:
        raise RotationRefused(
            "cert-manager makes these certificates; ask it: cmctl renew --all "
            f"--namespace {settings.namespace}"
        )
    rows = [row for row in report.rows if (row.role is CertificateRole.AUTHORITY) is authority]
    present = {row.secret: row.facts.fingerprint for row in rows if row.facts is not None}
    if not present:
        raise RotationRefused(
            f"there is no certificate to replace in namespace {settings.namespace}; "
            "is the certificates role running?"
        )
    for secret, fingerprint in present.items():
        wish = {"metadata": {"annotations": {ROTATE_KEY: fingerprint}}}
        await client.patch(SECRETS, secret, wish, namespace=settings.namespace)
    return RotationRequest(replaced=present, authority=authority)


def missing(request: RotationRequest, report: Report) -> list[str]:
    """Return the steps still to come, in order; empty when the rotation is done."""
    here = {row.secret: row for row in report.rows}
    lacking = [
        f"{secret} is not renewed yet"
        for secret, fingerprint in request.replaced.items()
        if _is_old(here.get(secret), fingerprint)
    ]
    if request.authority:
        # A bundle may still trust only an older authority: the newest one is required.
        lacking += [
            f"{row.configuration} does not trust the new authority yet"
            for row in report.bundles
            if row.trust not in (TrustState.CURRENT, TrustState.ABSENT)
        ]
        lacking += [
            f"{row.secret} is not signed by the new authority yet"
            for row in report.rows
            if row.role is not CertificateRole.AUTHORITY and row.signed_by != "current"
        ]
    return list(dict.fromkeys(lacking))


async def watch(
    client: KubeClient,
    clock: Clock,
    settings: CertsSettings,
    request: RotationRequest,
    *,
    on_progress: Callable[[str], None],
) -> Report:
    """Wait, without a limit, until *request* is done; pass the steps to come to *on_progress*.

    Raises:
        KubeError: the API server did not answer, or refused.
    """
    reported: list[str] | None = None
    while True:
        report = await collect_report(client, settings, now=clock.now())
        lacking = missing(request, report)
        if not lacking:
            return report
        if lacking != reported:
            on_progress(lacking[0] + (f" (and {len(lacking) - 1} more)" if lacking[1:] else ""))
            reported = lacking
        await clock.sleep(_LOOK_EVERY_S)


def _is_old(row: CertificateStatus | None, fingerprint: str) -> bool:
    return row is None or row.facts is None or row.facts.fingerprint == fingerprint


async def rotate(
    client: KubeClient,
    clock: Clock,
    settings: CertsSettings,
    *,
    authority: bool,
    limit_s: float,
    on_progress: Callable[[str], None],
) -> Report | None:
    """Request a rotation and wait at most *limit_s* seconds; None if it was not done by then.

    Raises:
        RotationRefused: there is nothing to rotate.
        KubeError: the API server did not answer, or refused.
    """
    request = await request_rotation(client, clock, settings, authority=authority)
    on_progress(f"asked to replace {', '.join(request.replaced)}")
    try:
        async with asyncio.timeout(limit_s):
            return await watch(client, clock, settings, request, on_progress=on_progress)
    except TimeoutError:
        return None
