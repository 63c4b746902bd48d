"""Webhook configurations as an administrator applies them."""

import base64
from typing import Any

from kube.client import KubeClient
from kube.kinds import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Kind

BOTH = (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)


def a_webhook(name: str, *, ca_bundle: bytes | None = None) -> dict[str, Any]:
    config: dict[str, Any] = {"url": "https://127.0.0.1:9/mutate"}
    if ca_bundle is not None:
        config["caBundle"] = base64.b64encode(ca_bundle).decode()
    return {
        "name": name,
        "clientConfig": config,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "rules": [
            {
                "operations": ["CREATE"], "apiGroups": ["nowhere.example"],
                "apiVersions": ["v1"], "resources": ["things"],
            }
        ],
    }  # fmt: skip


async def apply(kube: KubeClient, kind: Kind, *webhooks: dict[str, Any]) -> None:
    body = {"metadata": {"name": "fracgpu-webhook"}, "webhooks": list(webhooks)}
    await kube.create(kind, body)


async def bundles(kube: KubeClient, kind: Kind) -> list[bytes | None]:
    """Return the CA bundle of each webhook, in order."""
    configuration = await kube.get_object(kind, "fracgpu-webhook")
    texts = [each["clientConfig"].get("caBundle") for each in configuration["webhooks"]]
    return [base64.b64decode(text) if text else None for text in texts]
