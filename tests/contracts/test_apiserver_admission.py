"""What the API server promises about admission webhooks: TLS, obedience, failing closed."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kube.client import KubeClient, PatchType
from kube.errors import Forbidden, Invalid, KubeError, NotFound, Unavailable
from kube.kinds import MUTATING_WEBHOOKS, PODS, VALIDATING_WEBHOOKS, Kind
from tests.certs.tls_harness import a_ca
from tests.support.objects import Json, a_pod, running
from tests.support.waiting import until
from tests.support.webhook import (
    AdmissionWebhook,
    allow,
    an_admission_webhook,
    patching,
    refusing,
)

HOOK = "pods.contract.example"


@pytest.fixture
async def webhook() -> AsyncIterator[AdmissionWebhook]:
    async with an_admission_webhook() as webhook:
        yield webhook


class Registrar:
    """Registers webhooks for the pods of one namespace, and unregisters them."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._made: list[Kind] = []

    async def register(
        self, client_config: Json, *, kind: Kind = MUTATING_WEBHOOKS, **options: Any
    ) -> None:
        """Register a webhook and wait until the API server calls it or fails: it learns late."""
        rule = {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["pods"],
        }
        hook = {
            "name": HOOK,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 3,
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            "clientConfig": client_config,
        }
        body = {"metadata": {"name": self._namespace}, "webhooks": [hook | options]}
        await self._client.create(kind, body)
        self._made.append(kind)

    async def change(self, client_config: Json) -> None:
        patch = [{"op": "replace", "path": "/webhooks/0/clientConfig", "value": client_config}]

        await self._client.patch(MUTATING_WEBHOOKS, self._namespace, patch, how=PatchType.JSON)

    async def clear(self) -> None:
        for kind in self._made:
            await self._client.delete(kind, self._namespace)


@pytest.fixture
async def registrar(client: KubeClient, namespace: str) -> AsyncIterator[Registrar]:
    registrar = Registrar(client, namespace)
    yield registrar
    await registrar.clear()


async def asked(client: KubeClient, namespace: str, webhook: AdmissionWebhook) -> None:
    """Wait until the API server calls *webhook*; then forget the requests so far."""

    async def is_asked() -> bool:
        try:
            probe = a_pod("probe")
            await client.create(PODS, probe, namespace=namespace, dry_run=True)
        except KubeError:
            return bool(webhook.requests)
        return bool(webhook.requests)

    await until(is_asked, what="the API server asks the webhook")
    webhook.requests.clear()


async def test_a_webhooks_patch_is_in_the_pod_that_is_stored(
    client: KubeClient, namespace: str, webhook: AdmissionWebhook, registrar: Registrar
) -> None:
    await registrar.register(webhook.client_config)
    await asked(client, namespace, webhook)
    webhook.answer = patching(
        {"op": "add", "path": "/metadata/annotations", "value": {"granted": "yes"}}
    )

    created = await client.create(PODS, a_pod("a"), namespace=namespace)

    assert created["metadata"]["annotations"] == {"granted": "yes"}
    assert created == await client.get_object(PODS, "a", namespace=namespace)


async def test_a_webhook_is_told_all_about_the_request(
    client: KubeClient, namespace: str, webhook: AdmissionWebhook, registrar: Registrar
) -> None:
    await registrar.register(webhook.client_config)
    await asked(client, namespace, webhook)

    await client.create(PODS, a_pod(generate_name="a-"), namespace=namespace)

    (request,) = webhook.requests
    assert request["operation"] == "CREATE"
    assert request["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert request["namespace"] == namespace
    assert request["dryRun"] is False
    assert request["oldObject"] is None
    assert request["object"]["metadata"]["generateName"] == "a-"
    assert request["object"]["spec"]["containers"][0]["name"] == "main"
    assert request["uid"]
    assert "groups" in request["userInfo"]


async def test_a_webhook_sees_the_old_and_the_new_of_an_update(
    client: KubeClient, namespace: str, webhook: AdmissionWebhook, registrar: Registrar
) -> None:
    await client.create(PODS, a_pod("a"), namespace=namespace)
    await registrar.register(webhook.client_config)
    await asked(client, namespace, webhook)

    patch = {"metadata": {"labels": {"x": "1"}}}
    await client.patch(PODS, "a", patch, namespace=namespace)

    (request,) = webhook.requests
    assert (request["operation"], request["name"]) == ("UPDATE", "a")
    assert "labels" not in request["oldObject"]["metadata"]
    assert request["object"]["metadata"]["labels"] == {"x": "1"}


async def test_a_webhook_is_told_of_a_dry_run(
    client: KubeClient, namespace: str, webhook: AdmissionWebhook, registrar: Registrar
) -> None:
    await registrar.register(webhook.client_config)
    await asked(client, namespace, webhook)

    await client.create(PODS, a_pod("a"), namespace=namespace, dry_run=True)

    assert [request["dryRun"] for request in webhook.requests] == [True]


@pytest.mark.parametrize(
    "kind", [MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS], ids=lambda kind: kind.kind
)
async def test_a_refusal_carries_the_webhooks_own_words(
    client: KubeClient,
    namespace: str,
    webhook: AdmissionWebhook,
    registrar: Registrar,
    kind: Kind,
) -> None:
    await registrar.register(webhook.client_config, kind=kind)
    await asked(client, namespace, webhook)
    webhook.answer = refusing("want a fraction above 0", code=422)

    with pytest.raises(Invalid) as caught:
        await client.create(PODS, a_pod("a"), namespace=namespace)

    wanted = f'admission webhook "{HOOK}" denied the request: want a fraction above 0'
    assert caught.value.message == wanted
    with pytest.raises(NotFound):
        await client.get(PODS, "a", namespace=namespace)


@pytest.mark.parametrize(("code", "wanted"), [(None, (Invalid, 400)), (403, (Forbidden, 403))])
async def test_a_refusal_has_the_code_the_webhook_chose_or_400(
    client: KubeClient,
    namespace: str,
    webhook: AdmissionWebhook,
    registrar: Registrar,
    code: int | None,
    wanted: tuple[type[KubeError], int],
) -> None:
    await registrar.register(webhook.client_config)
    await asked(client, namespace, webhook)
    webhook.answer = refusing("no", code=code)

    with pytest.raises(KubeError) as caught:
        await client.create(PODS, a_pod("a"), namespace=namespace)

    assert (type(caught.value), caught.value.status) == wanted


async def test_what_a_mutating_webhook_did_is_what_a_validating_one_sees(
    client: KubeClient, namespace: str, webhook: AdmissionWebhook, registrar: Registrar
) -> None:
    def answer(request: Json) -> Json:
        granted = request["object"]["metadata"].get("annotations")
        return allow(request) if granted else add(request)

    add = patching({"op": "add", "path": "/metadata/annotations", "value": {"granted": "yes"}})
    await registrar.register(webhook.client_config, kind=VALIDATING_WEBHOOKS)
    await asked(client, namespace, webhook)
    await registrar.register(webhook.client_config, kind=MUTATING_WEBHOOKS)
    webhook.answer = answer

    async def both_ask() -> bool:
        webhook.requests.clear()
        await client.create(PODS, a_pod("probe"), namespace=namespace, dry_run=True)
        return len(webhook.requests) == 2

    await until(both_ask, what="the API server asks twice")
    first, second = (request["object"]["metadata"] for request in webhook.requests)
    assert "annotations" not in first
    assert second["annotations"] == {"granted": "yes"}


async def test_a_pod_is_refused_while_the_webhook_is_away_if_it_must_not_fail(
    client: KubeClient, namespace: str, webhook: AdmissionWebhook, registrar: Registrar
) -> None:
    nobody = {"url": "https://127.0.0.1:1/review"}
    await registrar.register(nobody | {"caBundle": webhook.client_config["caBundle"]})

    async def refused() -> bool:
        try:
            await client.create(PODS, a_pod("a"), namespace=namespace, dry_run=True)
        except Unavailable as error:
            assert error.status == 500  # noqa: PT017 - other errors pass through
            assert f'failed calling webhook "{HOOK}"' in error.message  # noqa: PT017
            return True
        return False

    await until(refused, what="the API server fails closed")


async def test_a_pod_passes_while_the_webhook_is_away_if_it_may(
    client: KubeClient, namespace: str, webhook: AdmissionWebhook, registrar: Registrar
) -> None:
    await registrar.register(webhook.client_config, failurePolicy="Ignore")
    await asked(client, namespace, webhook)
    await registrar.change({"url": "https://127.0.0.1:1/review"})

    async def passes_unasked() -> bool:
        webhook.requests.clear()
        await client.create(PODS, a_pod("a"), namespace=namespace, dry_run=True)
        return not webhook.requests

    await until(passes_unasked, what="the API server goes on without the webhook")


async def test_a_webhook_whose_certificate_is_not_of_its_bundle_is_not_trusted(
    client: KubeClient, namespace: str, webhook: AdmissionWebhook, registrar: Registrar
) -> None:
    await registrar.register(webhook.client_config)
    await asked(client, namespace, webhook)
    stranger = base64.b64encode(a_ca().cert_pem).decode()
    await registrar.change(webhook.client_config | {"caBundle": stranger})

    async def refused() -> bool:
        try:
            await client.create(PODS, a_pod("a"), namespace=namespace, dry_run=True)
        except Unavailable:
            return True
        return False

    await until(refused, what="the API server refuses the certificate")
    await registrar.change(webhook.client_config)

    async def accepted() -> bool:
        return not await refused()

    await until(accepted, what="the API server trusts the right bundle again")


async def test_a_webhook_is_asked_only_about_what_it_selects(
    client: KubeClient, namespace: str, webhook: AdmissionWebhook, registrar: Registrar
) -> None:
    await registrar.register(
        webhook.client_config,
        objectSelector={"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]},
        matchConditions=[
            {
                "name": "carries-our-key",
                "expression": "has(object.metadata.annotations) && "
                "object.metadata.annotations.exists(key, key.startsWith('contract.example/'))",
            }
        ],
    )
    ours = {"contract.example/x": "1"}

    async def is_asked() -> bool:
        probe = a_pod("probe", annotations=ours)
        await client.create(PODS, probe, namespace=namespace, dry_run=True)
        return bool(webhook.requests)

    await until(is_asked, what="the API server asks about a pod with our key")
    webhook.requests.clear()

    await client.create(PODS, a_pod("plain"), namespace=namespace)
    await client.create(PODS, a_pod("other", annotations={"x": "1"}), namespace=namespace)
    skipped = a_pod("skipped", annotations=ours, labels={"skip": "1"})
    await client.create(PODS, skipped, namespace=namespace)
    await client.create(PODS, a_pod("asked", annotations=ours), namespace=namespace)
    await client.create(PODS, a_pod("elsewhere", annotations=ours), namespace="default")
    await client.delete(PODS, "elsewhere", namespace="default")

    assert [request["name"] for request in webhook.requests] == ["asked"]


async def test_a_webhook_for_pods_is_not_asked_about_their_status_or_binding(
    client: KubeClient, namespace: str, webhook: AdmissionWebhook, registrar: Registrar
) -> None:
    await client.create(PODS, a_pod("a"), namespace=namespace)
    await registrar.register(webhook.client_config)
    await asked(client, namespace, webhook)

    await client.bind({"target": {"kind": "Node", "name": "n1"}}, namespace=namespace, name="a")
    await client.patch(PODS, "a", running(), namespace=namespace, subresource="status")

    assert webhook.requests == []


async def test_a_patch_that_breaks_the_pod_is_refused(
    client: KubeClient, namespace: str, webhook: AdmissionWebhook, registrar: Registrar
) -> None:
    await registrar.register(webhook.client_config)
    await asked(client, namespace, webhook)
    webhook.answer = patching({"op": "replace", "path": "/spec/containers", "value": []})

    with pytest.raises(Invalid):
        await client.create(PODS, a_pod("a"), namespace=namespace)
