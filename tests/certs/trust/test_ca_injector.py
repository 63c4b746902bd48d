import base64
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from certs.authority import make_ca
from certs.metrics import CertsMetrics
from certs.trust.ca_injector import (
    BundleTarget,
    InjectionResult,
    bundle_patch,
    inject,
    inject_all,
)
from kube.client import KubeClient, PatchType
from kube.errors import KubeError
from kube.kinds import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Kind
from process.telemetry import new_registry
from tests.certs.webhooks import BOTH, a_webhook, apply, bundles
from tests.fakes.clock import NOON, VirtualClock

PEM = make_ca(name="ours", now=NOON, life=timedelta(days=1)).cert_pem
THEIRS = make_ca(name="theirs", now=NOON, life=timedelta(days=1)).cert_pem
TEXT = base64.b64encode(PEM).decode()


def target(kind: Kind = MUTATING_WEBHOOKS) -> BundleTarget:
    return BundleTarget(kind=kind, name="fracgpu-webhook")


def test_only_webhooks_without_the_bundle_are_patched_each_behind_a_test_of_its_name() -> None:
    configuration = {
        "webhooks": [
            a_webhook("a.example.org"),
            a_webhook("b.example.org", ca_bundle=PEM),
            a_webhook("c.example.org", ca_bundle=THEIRS),
        ]
    }

    assert bundle_patch(configuration, bundle_pem=PEM) == [
        {"op": "test", "path": "/webhooks/0/name", "value": "a.example.org"},
        {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": TEXT},
        {"op": "test", "path": "/webhooks/2/name", "value": "c.example.org"},
        {"op": "add", "path": "/webhooks/2/clientConfig/caBundle", "value": TEXT},
    ]


@pytest.mark.parametrize("configuration", [{}, {"webhooks": None}, {"webhooks": []}])
def test_a_configuration_without_webhooks_needs_no_patch(configuration: dict[str, Any]) -> None:
    assert bundle_patch(configuration, bundle_pem=PEM) == []


@pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.plural)
async def test_the_bundle_gets_in_once_and_is_then_left_alone(kube: KubeClient, kind: Kind) -> None:
    await apply(kube, kind, a_webhook("a.example.org"), a_webhook("b.example.org"))

    first = await inject(kube, target(kind), bundle_pem=PEM)
    version = (await kube.get_object(kind, "fracgpu-webhook"))["metadata"]["resourceVersion"]
    second = await inject(kube, target(kind), bundle_pem=PEM)

    assert (first, second) == (InjectionResult.PATCHED, InjectionResult.CURRENT)
    assert await bundles(kube, kind) == [PEM, PEM]
    after = await kube.get_object(kind, "fracgpu-webhook")
    assert after["metadata"]["resourceVersion"] == version


async def test_a_configuration_that_does_not_exist_is_no_trouble(kube: KubeClient) -> None:
    assert await inject(kube, target(), bundle_pem=PEM) is InjectionResult.ABSENT


class Reordering(KubeClient):
    """The real client, but the webhooks are reversed between our read and our patch."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        seen = await self._kube.get_object(kind, name)
        reverse = [{"op": "replace", "path": "/webhooks", "value": seen["webhooks"][::-1]}]
        await self._kube.patch(kind, name, reverse, how=PatchType.JSON)
        return seen

    async def patch(self, *args: Any, **fields: Any) -> dict[str, Any]:
        return await self._kube.patch(*args, **fields)


async def test_a_list_that_was_reordered_meanwhile_is_not_patched_in_the_wrong_place(
    kube: KubeClient,
) -> None:
    theirs = a_webhook("b.example.org", ca_bundle=PEM)
    await apply(kube, MUTATING_WEBHOOKS, a_webhook("a.example.org"), theirs)

    outcome = await inject(Reordering(kube), target(), bundle_pem=PEM)

    assert outcome is InjectionResult.MOVED
    assert await bundles(kube, MUTATING_WEBHOOKS) == [PEM, None]


class Refusing(KubeClient):
    """The real client of an account that may read configurations and not change them."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        return await self._kube.get_object(kind, name)

    async def patch(self, *args: Any, **fields: Any) -> dict[str, Any]:
        raise KubeError(verb="PATCH", path="/", status=403, reason="Forbidden", message="no")


async def valid(client: KubeClient) -> dict[str, float | None]:
    """Inject into both configurations once; return which of them count as valid."""
    registry = new_registry()
    metrics = CertsMetrics(registry, VirtualClock())
    targets = [target(kind) for kind in BOTH]
    with suppress(KubeError):
        await inject_all(client, targets, bundle_pem=PEM, metrics=metrics)
    name = "fracgpu_certs_webhook_configuration_valid"
    return {
        each.kind.kind.removesuffix("WebhookConfiguration"): registry.get_sample_value(
            name, {"configuration": str(each)}
        )
        for each in targets
    }


async def test_a_configuration_is_valid_that_has_webhooks_which_all_trust_us(
    kube: KubeClient,
) -> None:
    await apply(kube, MUTATING_WEBHOOKS, a_webhook("a.example.org", ca_bundle=THEIRS))
    assert await valid(Refusing(kube)) == {"Mutating": 0, "Validating": None}
    assert await valid(kube) == {"Mutating": 1, "Validating": 0}

    await apply(kube, VALIDATING_WEBHOOKS)
    assert await valid(kube) == {"Mutating": 1, "Validating": 0}
