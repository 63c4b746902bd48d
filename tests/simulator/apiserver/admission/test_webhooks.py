import base64
import random
from collections.abc import Callable
from typing import Any

import pytest

from simulator.apiserver.admission.webhooks import Call, CallError, WebhookAdmission
from simulator.apiserver.apimachinery.errors import ApiError
from simulator.apiserver.apimachinery.request_info import Attributes, Context, Operation
from simulator.apiserver.apimachinery.resources import MUTATING_WEBHOOKS, PODS, Resource
from simulator.apiserver.apimachinery.storage import Key, Store
from simulator.objects import Json, decode, encode
from tests.simulator.apiserver.admission.test_matching import a_webhook
from tests.simulator.harness import a_pod, at

Answer = dict[str, Any] | bytes | Exception


class Webhooks:
    """Answers each URL as the test says, and keeps every call."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answers: dict[str, Answer] = {}

    async def post(self, call: Call) -> bytes:
        self.calls.append(call)
        answer = self.answers.get(call.url.partition("?")[0], {"allowed": True})
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, bytes):
            return answer
        uid = decode(call.body)["request"]["uid"]
        return encode(review({"uid": uid, **answer}))

    @property
    def requests(self) -> list[Json]:
        return [decode(call.body)["request"] for call in self.calls]


def review(response: Json | None) -> Json:
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "response": response,
    }


class Harness:
    """An admission over a store, with webhooks by the names of their hosts."""

    def __init__(self, *, resolve: Callable[[str, str, int], str] | None = None) -> None:
        self.store = Store()
        self.webhooks = Webhooks()
        rng = random.Random(1)  # noqa: S311 - uids of reviews, nothing secret
        self.admission = WebhookAdmission(self.store, self.webhooks, rng, resolve_service=resolve)

    def add(
        self, host: str, answer: Answer, kind: Resource = MUTATING_WEBHOOKS, /, **parts: Any
    ) -> None:
        webhook = a_webhook(f"{host}.example.org", **parts)
        webhook.setdefault("clientConfig", {})
        if "clientConfig" not in parts:
            webhook["clientConfig"] = {"url": f"https://{host}/"}
        value = {"metadata": {"name": host}, "webhooks": [webhook]}
        self.store.write(Key(kind.qualified, "", host), value, expected=0)
        self.webhooks.answers[f"https://{host}/"] = answer

    async def mutate(self, **parts: Any) -> Json:
        return await self.admission.mutate(asked(**parts))

    async def validate(self, **parts: Any) -> None:
        await self.admission.validate(asked(**parts))


def asked(**parts: Any) -> Attributes:
    given: dict[str, Any] = {
        "target": at(PODS, "a"),
        "operation": Operation.CREATE,
        "kind": ("", "v1", "Pod"),
        "value": a_pod(),
        "before": None,
        "context": Context(),
        **parts,
    }
    return Attributes(**given)


def patching(*steps: Json) -> Json:
    patch = base64.b64encode(encode(steps)).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": patch}


@pytest.mark.parametrize(
    "answer",
    [
        CallError("failed to call webhook: no route"),
        b"not json",
        b"[]",
        encode({"kind": "Other"}),
        encode(review(None)),
        encode(review({"uid": "another", "allowed": True})),
        {"allowed": True, "patch": "W10=", "patchType": "Other"},
    ],
    ids=["away", "no-json", "list", "kind", "empty", "uid", "patch-type"],
)
async def test_a_webhook_that_cannot_be_understood_fails_as_its_policy_says(answer: Answer) -> None:
    closed, opened = Harness(), Harness()
    closed.add("a", answer, failurePolicy="Fail")
    opened.add("a", answer, failurePolicy="Ignore")

    with pytest.raises(ApiError, match=r'failed calling webhook "a.example.org"') as caught:
        await closed.mutate()
    assert caught.value.code == 500
    assert await opened.mutate() == a_pod()


@pytest.mark.parametrize(
    "answer",
    [
        patching({"op": "remove", "path": "/gone"}),
        {"allowed": True, "patchType": "JSONPatch", "patch": "!!"},
        patching({"op": "replace", "path": "", "value": []}),
    ],
)
async def test_a_patch_that_does_not_apply_fails_whatever_the_policy(answer: Answer) -> None:
    harness = Harness()
    harness.add("a", answer, failurePolicy="Ignore")

    with pytest.raises(ApiError) as caught:
        await harness.mutate()
    assert caught.value.code == 500


async def test_a_condition_that_fails_fails_as_the_policy_says() -> None:
    broken = [{"name": "c", "expression": "object.spec.gone == 1"}]
    closed, opened = Harness(), Harness()
    closed.add("a", {"allowed": True}, matchConditions=broken, failurePolicy="Fail")
    opened.add("a", {"allowed": True}, matchConditions=broken, failurePolicy="Ignore")

    with pytest.raises(ApiError) as caught:
        await closed.mutate()
    assert caught.value.code == 403
    await opened.mutate()
    assert closed.webhooks.calls == opened.webhooks.calls == []


async def test_a_service_is_called_where_it_resolves_by_the_name_of_its_certificate() -> None:
    harness = Harness(resolve=lambda namespace, name, port: f"https://{name}-{namespace}:{port}")
    service = {"namespace": "fracgpu-system", "name": "webhook", "port": 443, "path": "/mutate"}
    harness.add("a", {"allowed": True}, clientConfig={"service": service})

    await harness.mutate()

    (call,) = harness.webhooks.calls
    assert call.url == "https://webhook-fracgpu-system:443/mutate?timeout=10s"
    assert call.server_name == "webhook.fracgpu-system.svc"
