"""Asks the running certificates role for a rotation, and watches until it is done.

The wish is an annotation on the Secret, so it needs no way to the role but the API server, and
whoever asks needs no key: the role makes the new certificate in its own time.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from certs.reconciler import Client as ReadingClient
from certs.settings import CertsSettings
from certs.status import CertificateRole, CertificateStatus, Report, TrustState, look
from certs.store import ROTATE_KEY
from kube.client import PatchType
from kube.kinds import SECRETS, Kind
from process.clock import Clock

_LOOK_EVERY_S: Final = 0.5


class RotationRefused(Exception):  # noqa: N818 - an answer
    """There is nothing that could be rotated; ``str()`` says why."""


class Client(ReadingClient, Protocol):
    """What asking needs of ``kube.client.KubeClient``."""

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str | None = None,
        how: PatchType = PatchType.MERGE,
    ) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationRequest:
    """What was asked for: the fingerprints that shall be gone, by Secret."""

    replaced: dict[str, str]
    authority: bool


async def ask(
    client: Client, clock: Clock, settings: CertsSettings, *, authority: bool
) -> RotationRequest:
    """Mark what shall be replaced: the authority (and so all it signed), or all it signed.

    Raises:
        RotationRefused: cert-manager makes the certificates, or there are none.
        KubeError: the API server did not answer, or refused.
    """
    report = await look(client, settings, now=clock.now())
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


def missing(order: RotationRequest, report: Report) -> list[str]:
    """Say what is still to come, in the order in which it will; nothing when all is done."""
    here = {row.secret: row for row in report.rows}
    lacking = [
        f"{secret} is not renewed yet"
        for secret, fingerprint in order.replaced.items()
        if _is_old(here.get(secret), fingerprint)
    ]
    if order.authority:
        # An older bundle would trust an older authority: only the newest one will do.
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
    client: Client,
    clock: Clock,
    settings: CertsSettings,
    order: RotationRequest,
    *,
    say: Callable[[str], None],
) -> Report:
    """Wait until *order* is done, telling *say* each time what is still to come; no time limit.

    Raises:
        KubeError: the API server did not answer, or refused.
    """
    told: list[str] | None = None
    while True:
        report = await look(client, settings, now=clock.now())
        lacking = missing(order, report)
        if not lacking:
            return report
        if lacking != told:
            say(lacking[0] + (f" (and {len(lacking) - 1} more)" if lacking[1:] else ""))
            told = lacking
        await clock.sleep(_LOOK_EVERY_S)


def _is_old(row: CertificateStatus | None, fingerprint: str) -> bool:
    return row is None or row.facts is None or row.facts.fingerprint == fingerprint


async def rotate(
    client: Client,
    clock: Clock,
    settings: CertsSettings,
    *,
    authority: bool,
    limit_s: float,
    say: Callable[[str], None],
) -> Report | None:
    """Ask, and wait for at most *limit_s* seconds; None when it was not done by then.

    Raises:
        RotationRefused: there is nothing that could be rotated.
        KubeError: the API server did not answer, or refused.
    """
    order = await ask(client, clock, settings, authority=authority)
    say(f"asked to replace {', '.join(order.replaced)}")
    try:
        async with asyncio.timeout(limit_s):
            return await watch(client, clock, settings, order, say=say)
    except TimeoutError:
        return None
