from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from simulator.apiserver.apimachinery.storage import Store
from simulator.apiserver.endpoints.handlers import Handlers, Reply, Request
from simulator.apiserver.registry.registry import Registry
from simulator.objects import Json, decode, encode
from tests.fakes.clock import VirtualClock
from tests.simulator.harness import Consent, a_pod

if TYPE_CHECKING:
    from collections.abc import Callable

POD_PATH = "/api/v1/namespaces/default/pods"


class Caller:
    """Sends requests without HTTP."""

    def __init__(self) -> None:
        self.admission = Consent()
        registry = Registry(Store(), self.admission, VirtualClock(), random.Random(1))  # noqa: S311
        self.rest = Handlers(registry)

    async def __call__(self, method: str, path: str, body: Any = None, **parts: Any) -> Reply:
        path, _, query = path.partition("?")
        pairs = dict(part.partition("=")[::2] for part in query.split("&") if part)
        data = b"" if body is None else encode(body)
        request = Request(method=method, path=path, query=pairs, body=data, **parts)
        return await self.rest.handle(request)


@pytest.fixture
async def call() -> Caller:
    caller = Caller()
    await caller("POST", "/api/v1/namespaces", {"metadata": {"name": "default"}})
    return caller


def body_of(reply: Reply) -> Json:
    found: Json = decode(reply.body)
    return found


async def test_an_object_lives_by_the_verbs(call: Caller) -> None:
    made = await call("POST", POD_PATH, a_pod())
    read = await call("GET", f"{POD_PATH}/a")
    listed = await call("GET", POD_PATH)
    everywhere = await call("GET", "/api/v1/pods")
    gone = await call("DELETE", f"{POD_PATH}/a")
    missing = await call("GET", f"{POD_PATH}/a")

    assert [reply.code for reply in (made, read, listed, everywhere, gone, missing)] == [
        201, 200, 200, 200, 200, 404,
    ]  # fmt: skip
    assert body_of(made) == body_of(read)
    assert "kind" not in body_of(listed)["items"][0]
    assert body_of(listed) == body_of(everywhere)
    assert body_of(gone)["kind"] == "Pod"


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/version", "/apis", "/api/v1"])
async def test_probes_and_discovery_answer(call: Caller, path: str) -> None:
    assert (await call("GET", path)).code == 200


async def test_a_namespace_is_not_taken_for_a_prefix(call: Caller) -> None:
    response = await call("GET", "/api/v1/namespaces/default")
    patched = await call(
        "PATCH",
        "/api/v1/namespaces/default",
        {"metadata": {"labels": {"a": "b"}}},
        content_type="application/merge-patch+json",
    )

    assert body_of(response)["kind"] == "Namespace"
    assert body_of(patched)["metadata"]["labels"]["a"] == "b"


async def test_delete_options_come_in_the_body_or_the_query(call: Caller) -> None:
    await call("POST", POD_PATH, a_pod(nodeName="n1"))

    by_query = await call("DELETE", f"{POD_PATH}/a?gracePeriodSeconds=20")
    by_body = await call("DELETE", f"{POD_PATH}/a", {"gracePeriodSeconds": 10})
    refused = await call("DELETE", f"{POD_PATH}/a", {"preconditions": {"uid": "x"}})
    dry = await call("DELETE", f"{POD_PATH}/a?dryRun=All", {"gracePeriodSeconds": 0})

    assert body_of(by_query)["metadata"]["deletionGracePeriodSeconds"] == 20
    assert body_of(by_body)["metadata"]["deletionGracePeriodSeconds"] == 10
    assert refused.code == 409
    assert dry.code == 200
    assert (await call("GET", f"{POD_PATH}/a")).code == 200


async def test_warnings_and_retry_after_are_part_of_the_answer(call: Caller) -> None:
    def warn(attributes: Any) -> None:
        attributes.context.warnings.append("mind the gap")

    call.admission.mutate = warned(call.admission.mutate, warn)  # type: ignore[method-assign]

    reply = await call("POST", POD_PATH, a_pod())

    assert reply.warnings == ("mind the gap",)


def warned(inner: Any, warn: Callable[[Any], None]) -> Any:
    async def mutate(attributes: Any) -> Json:
        warn(attributes)
        value: Json = await inner(attributes)
        return value

    return mutate
