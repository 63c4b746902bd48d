"""Writes the CA bundle into webhook configurations, so that the API server trusts us."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import structlog

from certs.metrics import CertsMetrics
from kube.client import KubeClient, PatchType
from kube.errors import Conflict, Invalid, NotFound
from kube.kinds import Kind

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleTarget:
    """One webhook configuration that must have our bundle."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.kind}/{self.name}"


class InjectionResult(Enum):
    """The result of injecting the bundle into one target."""

    ABSENT = "absent"
    """There is no such configuration, or no webhook in it."""
    CURRENT = "current"
    PATCHED = "patched"
    MOVED = "moved"
    """It changed between reading and patching: read it again."""


def bundle_patch(configuration: Mapping[str, Any], *, bundle_pem: bytes) -> list[dict[str, Any]]:
    """Return the JSON patch that puts *bundle_pem* into every webhook; empty when all have it.

    A test of the webhook's name precedes each change, so that the patch fails instead of changing
    another webhook if the list was reordered meanwhile.
    """
    wanted = base64.b64encode(bundle_pem).decode()
    operations: list[dict[str, Any]] = []
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        if (webhook.get("clientConfig") or {}).get("caBundle") == wanted:
            continue
        path = f"/webhooks/{index}"
        operations += [
            {"op": "test", "path": f"{path}/name", "value": webhook.get("name")},
            {"op": "add", "path": f"{path}/clientConfig/caBundle", "value": wanted},
        ]
    return operations


async def current_bundles(client: KubeClient, target: BundleTarget) -> list[bytes]:
    """Return the bundles of *target*'s webhooks; empty for a target that does not exist.

    Raises:
        KubeError: the API server did not answer, or refused.
    """
    try:
        configuration = await client.get_object(target.kind, target.name)
    except NotFound:
        return []
    return [pem for _, pem in carried_bundles(configuration)]


def carried_bundles(configuration: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    """Return the name and the bundle of each webhook; an empty bundle if it has none."""
    return [
        (
            str(webhook.get("name")),
            base64.b64decode((webhook.get("clientConfig") or {}).get("caBundle") or ""),
        )
        for webhook in configuration.get("webhooks") or ()
    ]


async def inject_all(
    client: KubeClient,
    targets: Sequence[BundleTarget],
    *,
    bundle_pem: bytes,
    metrics: CertsMetrics,
) -> bool:
    """Write *bundle_pem* into every target; report whether one changed concurrently.

    Raises:
        KubeError: the API server did not answer, or refused.
    """
    moved = False
    for target in targets:
        valid = False
        try:
            outcome = await inject(client, target, bundle_pem=bundle_pem)
            valid = outcome in (InjectionResult.CURRENT, InjectionResult.PATCHED)
        finally:
            metrics.saw_configuration(str(target), valid=valid)
        moved = moved or outcome is InjectionResult.MOVED
        if outcome is InjectionResult.PATCHED:
            metrics.injected(str(target))
            log.info("bundle_injected", configuration=str(target))
    return moved


async def inject(client: KubeClient, target: BundleTarget, *, bundle_pem: bytes) -> InjectionResult:
    """Write *bundle_pem* into *target* unless it has that bundle already.

    Raises:
        KubeError: the API server did not answer, or refused.
    """
    try:
        configuration = await client.get_object(target.kind, target.name)
        patch = bundle_patch(configuration, bundle_pem=bundle_pem)
        if not patch:
            there = configuration.get("webhooks")
            return InjectionResult.CURRENT if there else InjectionResult.ABSENT
        await client.patch(target.kind, target.name, patch, how=PatchType.JSON)
    except NotFound:
        return InjectionResult.ABSENT
    except (Conflict, Invalid):
        # A test in the patch failed (422): the list of webhooks is not the one we read.
        return InjectionResult.MOVED
    return InjectionResult.PATCHED
