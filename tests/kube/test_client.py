import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kube.access import connect_to
from kube.client import KubeClient, PatchType
from kube.errors import (
    AlreadyExists,
    Cause,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeDecodeError,
    KubeError,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    error_from_status,
)
from kube.kinds import CONFIGMAPS, DEPLOYMENTS, LEASES, MOVES, NODES, PODS, Kind
from kube.objects import (
    ObjectKey,
    RawList,
    WatchFrame,
    decode,
    encode,
    identity,
    version_of,
)
from kube.retry import RetryPolicy
from tests.support.scripted import (
    Handler,
    ScriptedServer,
    a_server,
    answering,
    json_answer,
    status_answer,
)

FAST = RetryPolicy(attempts=4, first_pause_s=0.001, longest_pause_s=0.004)
DOWN = status_answer(503, "ServiceUnavailable", "starting")
BUSY = status_answer(429, "TooManyRequests", "slow down")
OK = json_answer({"metadata": {"name": "a"}})


@asynccontextmanager
async def talking_to(handler: Handler) -> AsyncIterator[tuple[KubeClient, ScriptedServer]]:
    async with a_server(handler) as server, connect_to(server.url) as client:
        yield client.with_retry(FAST), server


def a_page(*names: str, version: str = "7", more: str = "") -> web.Response:
    metadata = {"resourceVersion": version} | ({"continue": more} if more else {})
    return json_answer({"metadata": metadata, "items": [{"metadata": {"name": n}} for n in names]})


async def test_a_read_is_repeated_while_the_server_is_failing_or_busy() -> None:
    async with talking_to(answering(DOWN, BUSY, DOWN, OK)) as (client, server):
        found = await client.get_object(NODES, "a")

    assert found["metadata"]["name"] == "a"
    assert len(server.heard) == 4


@pytest.mark.parametrize(
    ("answer", "error", "attempts"),
    [(DOWN, Unavailable, FAST.attempts), (status_answer(404, "NotFound", "no"), NotFound, 1)],
    ids=["after the last attempt", "at a clear answer"],
)
async def test_a_read_is_given_up(
    answer: web.Response, error: type[KubeError], attempts: int
) -> None:
    async with talking_to(answering(answer)) as (client, server):
        with pytest.raises(error):
            await client.get(NODES, "a")
    assert len(server.heard) == attempts


each_write = pytest.mark.parametrize(
    "write",
    [
        lambda client: client.create(NODES, {"metadata": {"name": "a"}}),
        lambda client: client.replace(NODES, {"metadata": {"name": "a"}}),
        lambda client: client.patch(NODES, "a", {}),
        lambda client: client.delete(NODES, "a"),
        lambda client: client.bind({}, namespace="ml", name="a"),
        lambda client: client.evict(namespace="ml", name="a", uid="u"),
    ],
    ids=["create", "replace", "patch", "delete", "bind", "evict"],
)


@each_write
@pytest.mark.parametrize(("answer", "error"), [(DOWN, Unavailable), (BUSY, TooManyRequests)])
async def test_a_write_is_never_repeated(
    write: Callable[[KubeClient], Awaitable[Any]],
    answer: web.Response,
    error: type[Exception],
) -> None:
    async with talking_to(answering(answer)) as (client, server):
        with pytest.raises(error):
            await write(client)

    assert len(server.heard) == 1


@each_write
async def test_a_guarded_client_reads_and_writes_nothing_where_the_guard_objects(
    write: Callable[[KubeClient], Awaitable[object]],
) -> None:
    def guard() -> None:
        raise PermissionError

    async with talking_to(answering(OK)) as (client, server):
        guarded = client.guarded(guard).with_retry(FAST)
        await guarded.get(NODES, "a")
        with pytest.raises(PermissionError):
            await write(guarded)

    assert len(server.heard) == 1


async def test_a_list_is_read_page_by_page() -> None:
    pages = answering(a_page("a", "b", more="t1"), a_page("c", more="t2"), a_page("d"))
    async with talking_to(pages) as (client, server):
        listed = await client.list(
            PODS, namespace="ml", label_selector="x=y", field_selector="spec.nodeName=n1"
        )

    assert [json.loads(bytes(item))["metadata"]["name"] for item in listed.items] == [*"abcd"]
    assert listed.resource_version == "7"
    assert [heard.query.get("continue") for heard in server.heard] == [None, "t1", "t2"]
    assert all(heard.query["limit"] == "500" for heard in server.heard)
    assert all(heard.query["labelSelector"] == "x=y" for heard in server.heard)
    assert all(heard.query["fieldSelector"] == "spec.nodeName=n1" for heard in server.heard)


async def test_a_list_whose_pages_expired_is_read_afresh() -> None:
    expired = status_answer(410, "Expired", "continue parameter is too old")
    pages = answering(a_page("old", more="t1"), expired, a_page("a", version="9"))
    async with talking_to(pages) as (client, _):
        listed = await client.list(PODS)

    assert [bytes(item) for item in listed.items] == [b'{"metadata": {"name": "a"}}']
    assert listed.resource_version == "9"


async def test_a_list_that_always_expires_is_gone() -> None:
    async with talking_to(answering(status_answer(410, "Expired", "old"))) as (client, server):
        with pytest.raises(Gone):
            await client.list(PODS)

    assert len(server.heard) == 3


@pytest.mark.parametrize("body", ["", "[]", "<html>", '{"items": 3}'])
async def test_an_answer_that_is_no_json_of_its_kind_is_a_decode_error(body: str) -> None:
    async with talking_to(answering(web.Response(text=body))) as (client, _):
        with pytest.raises(KubeDecodeError) as caught:
            await client.list(PODS)
        if not body.startswith("{"):
            with pytest.raises(KubeDecodeError):
                await client.get_object(PODS, "a", namespace="ml")
    assert caught.value.path == "/api/v1/pods"


async def test_a_created_object_says_what_it_is_and_where_it_goes() -> None:
    async with talking_to(answering(OK)) as (client, server):
        await client.create(
            CONFIGMAPS, {"metadata": {"name": "a", "namespace": "ml"}}, dry_run=True
        )

    (heard,) = server.heard
    assert (heard.method, heard.path) == ("POST", "/api/v1/namespaces/ml/configmaps")
    assert heard.query == {"dryRun": "All"}
    assert json.loads(heard.body) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": "ml"},
    }


async def test_a_replace_goes_where_its_body_says() -> None:
    async with talking_to(answering(OK)) as (client, server):
        body = {"metadata": {"name": "a", "namespace": "ml", "resourceVersion": "3"}}
        await client.replace(PODS, body, subresource="status")

    (heard,) = server.heard
    assert (heard.method, heard.path) == ("PUT", "/api/v1/namespaces/ml/pods/a/status")


@pytest.mark.parametrize(
    ("how", "patch"),
    [
        (PatchType.JSON, [{"op": "remove", "path": "/x"}]),
        (PatchType.MERGE, {"x": None}),
        (PatchType.STRATEGIC, {"x": {}}),
    ],
    ids=["json", "merge", "strategic"],
)
async def test_a_patch_says_how_it_is_to_be_read(how: PatchType, patch: Any) -> None:
    async with talking_to(answering(OK)) as (client, server):
        await client.patch(NODES, "n1", patch, subresource="status", how=how)

    (heard,) = server.heard
    assert (heard.method, heard.path) == ("PATCH", "/api/v1/nodes/n1/status")
    assert heard.headers["Content-Type"] == how.value
    assert json.loads(heard.body) == patch


async def test_a_delete_carries_its_conditions() -> None:
    async with talking_to(answering(OK)) as (client, server):
        await client.delete(PODS, "a", namespace="ml", uid="u", grace_s=0)

    (heard,) = server.heard
    assert json.loads(heard.body) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u"},
        "gracePeriodSeconds": 0,
    }


async def test_a_binding_keeps_its_preconditions_and_annotations() -> None:
    binding: dict[str, Any] = {
        "metadata": {"uid": "u", "resourceVersion": "3", "annotations": {"x": "y"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    async with talking_to(answering(OK)) as (client, server):
        await client.bind(binding, namespace="ml", name="a")

    (heard,) = server.heard
    assert (heard.method, heard.path) == ("POST", "/api/v1/namespaces/ml/pods/a/binding")
    sent = json.loads(heard.body)
    assert (sent["apiVersion"], sent["kind"], sent["target"]) == (
        "v1",
        "Binding",
        binding["target"],
    )
    assert sent["metadata"] == {"name": "a", "namespace": "ml", **binding["metadata"]}


async def test_an_eviction_is_of_one_pod_and_no_other_of_its_name() -> None:
    async with talking_to(answering(OK)) as (client, server):
        await client.evict(namespace="ml", name="a", uid="u", dry_run=True, grace_s=5)

    (heard,) = server.heard
    assert (heard.method, heard.path) == ("POST", "/api/v1/namespaces/ml/pods/a/eviction")
    assert heard.query == {"dryRun": "All"}
    assert json.loads(heard.body) == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "a", "namespace": "ml"},
        "deleteOptions": {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 5},
    }


def an_error(status: int, reason: str = "", message: str = "why", **more: object) -> KubeError:
    return error_from_status(
        verb="GET",
        path="/api/v1/pods",
        status=status,
        reason=reason,
        message=message,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("status", "reason", "wanted"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", KubeError),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (410, "Gone", Gone),
        (0, "Expired", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
def test_each_status_has_its_error(status: int, reason: str, wanted: type[KubeError]) -> None:
    assert type(an_error(status, reason)) is wanted


def test_an_error_names_the_request_and_the_answer() -> None:
    error = an_error(403, "Forbidden", "pods is forbidden")

    assert str(error) == (
        "kube-apiserver answered 403 Forbidden to GET /api/v1/pods: pods is forbidden"
    )


def test_silence_is_not_reported_as_an_answer() -> None:
    error = Unavailable(verb="GET", path="/x", status=None, reason="Timeout", message="too late")

    assert str(error) == "no answer from kube-apiserver to GET /x: too late"


def test_a_long_message_is_cut() -> None:
    error = an_error(422, "Invalid", "x" * 5000)

    assert len(error.message) == 1000
    assert error.message.endswith("…")


def test_a_busy_server_and_a_disruption_budget_can_be_told_apart() -> None:
    busy = an_error(429, retry_after_s=3.0)
    budget = an_error(429, causes=[Cause(type="DisruptionBudget")])

    assert isinstance(busy, TooManyRequests)
    assert isinstance(budget, TooManyRequests)
    assert (busy.by_disruption_budget, busy.retry_after_s) == (False, 3.0)
    assert (budget.by_disruption_budget, budget.retry_after_s) == (True, None)


POLICY = RetryPolicy(first_pause_s=0.2, longest_pause_s=3.0)


@given(st.integers(1, 10_000))
def test_a_pause_lies_between_half_its_ceiling_and_its_ceiling(failures: int) -> None:
    ceiling = min(3.0, 0.2 * 2 ** min(failures - 1, 30))

    assert ceiling / 2 <= POLICY.pause_s(failures) <= ceiling


def test_a_crowd_does_not_come_back_all_at_once() -> None:
    assert len({POLICY.pause_s(5) for _ in range(50)}) > 1


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (PODS.path(), "/api/v1/pods"),
        (PODS.path(namespace="ml"), "/api/v1/namespaces/ml/pods"),
        (
            PODS.path(namespace="ml", name="a", subresource="binding"),
            "/api/v1/namespaces/ml/pods/a/binding",
        ),
        (NODES.path(name="n1", subresource="status"), "/api/v1/nodes/n1/status"),
        (DEPLOYMENTS.path(namespace="ml"), "/apis/apps/v1/namespaces/ml/deployments"),
        (
            LEASES.path(namespace="x", name="y"),
            "/apis/coordination.k8s.io/v1/namespaces/x/leases/y",
        ),
    ],
)
def test_a_path_follows_the_layout_of_the_api(path: str, wanted: str) -> None:
    assert path == wanted


def test_a_name_cannot_climb_out_of_its_path() -> None:
    assert NODES.path(name="../pods/a?x=1#y") == "/api/v1/nodes/..%2Fpods%2Fa%3Fx%3D1%23y"


@pytest.mark.parametrize(
    ("kind", "parts", "reason"),
    [
        (PODS, {"name": "a"}, "Pod 'a' needs a namespace"),
        (NODES, {"namespace": "ml"}, "Node has no namespace; got 'ml'"),
        (NODES, {"name": ""}, "needs a name"),
        (NODES, {"subresource": "status"}, "needs a name"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(
    kind: Kind, parts: dict[str, str], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        kind.path(**parts)


def test_a_kind_is_named_as_kubectl_names_it() -> None:
    assert [kind.qualified_name for kind in (PODS, DEPLOYMENTS, MOVES)] == [
        "pod", "deployment.apps", "move.fracgpu.io"
    ]  # fmt: skip


def test_a_list_keeps_its_items_as_they_came() -> None:
    body = b'{"metadata":{"resourceVersion":"7","continue":"abc"},"items":[{"a": 1},{"b":2}]}'

    page = decode(body, RawList)

    assert (page.metadata.resource_version, page.metadata.continue_) == ("7", "abc")
    assert [bytes(item) for item in page.items or ()] == [b'{"a": 1}', b'{"b":2}']


def test_an_empty_list_of_go_is_null() -> None:
    assert not decode(b'{"metadata":{"resourceVersion":"7"},"items":null}', RawList).items


def test_an_event_keeps_its_object_as_it_came() -> None:
    event = decode(b'{"type":"ADDED","object":{"kind":"Pod"}}', WatchFrame)

    assert (event.type, bytes(event.object)) == ("ADDED", b'{"kind":"Pod"}')


def test_an_identity_is_read_from_among_everything_else() -> None:
    body = encode(
        {
            "spec": {"x": [1]},
            "metadata": {
                "name": "a",
                "namespace": "ml",
                "uid": "u",
                "resourceVersion": "9",
                "labels": {"x": "y"},
            },
        }
    )

    found = identity(body)

    assert found.key == ObjectKey("ml", "a")
    assert (found.uid, found.resource_version) == ("u", "9")


def test_a_key_reads_like_kubectl_writes_it() -> None:
    assert [str(ObjectKey("ml", "a")), str(ObjectKey("", "n1"))] == ["ml/a", "n1"]


def test_a_bookmark_has_a_version_but_no_name() -> None:
    assert version_of(b'{"kind":"Pod","metadata":{"resourceVersion":"12"}}') == "12"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"metadata":{}}', b'{"metadata":{"name":1}}'])
def test_what_has_no_name_has_no_identity(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expected|Input|missing"):
        identity(body)
