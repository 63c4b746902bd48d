import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from kube.access import connect_to
from kube.errors import Gone, KubeDecodeError, KubeError, NotFound, Unavailable
from kube.kinds import PODS
from kube.watch import EventType, Selection, WatchEvent, WatchLimits, read_event, watch
from tests.support.scripted import Handler, a_server, answering, status_answer

ALL_PODS = Selection(kind=PODS)


def a_line(type_: str, **obj: Any) -> bytes:
    return json.dumps({"type": type_, "object": obj}).encode() + b"\n"


def a_pod_line(type_: str, name: str, version: int) -> bytes:
    metadata = {"name": name, "namespace": "ml", "uid": "u", "resourceVersion": str(version)}
    return a_line(type_, metadata=metadata)


def streaming(*chunks: bytes) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    return handler


async def collect(
    handler: Handler, selected: Selection = ALL_PODS, limits: WatchLimits | None = None
) -> list[WatchEvent]:
    async with a_server(handler) as server, connect_to(server.url) as client:
        limits = limits or WatchLimits()
        events = watch(client, selected, resource_version="41", limits=limits)
        async with asyncio.timeout(10), aclosing(events) as stream:
            return [event async for event in stream]


async def test_events_come_out_as_they_happened() -> None:
    lines = [a_pod_line("ADDED", "a", 42), a_pod_line("MODIFIED", "a", 43)]
    lines.append(a_pod_line("DELETED", "a", 44))

    events = await collect(streaming(*lines))

    assert [event.type for event in events] == [
        EventType.ADDED,
        EventType.MODIFIED,
        EventType.DELETED,
    ]
    assert [event.resource_version for event in events] == ["42", "43", "44"]
    assert {str(event.metadata.key) for event in events if event.metadata} == {"ml/a"}


async def test_a_bookmark_only_moves_the_version_on() -> None:
    line = a_line("BOOKMARK", kind="Pod", metadata={"resourceVersion": "99"})

    (event,) = await collect(streaming(line))

    assert (event.type, event.resource_version, event.metadata) == (EventType.BOOKMARK, "99", None)


async def test_a_watch_asks_for_bookmarks_an_end_and_what_is_selected() -> None:
    selected = Selection(
        kind=PODS, namespace="ml", label_selector="x=y", field_selector="spec.nodeName=n1"
    )
    async with a_server(streaming()) as server, connect_to(server.url) as client:
        limits = WatchLimits(server_s=33)
        events = watch(client, selected, resource_version="41", limits=limits)
        assert [event async for event in events] == []

    (heard,) = server.heard
    assert heard.path == "/api/v1/namespaces/ml/pods"
    assert heard.query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "41",
        "timeoutSeconds": "33",
        "labelSelector": "x=y",
        "fieldSelector": "spec.nodeName=n1",
    }


async def test_a_line_the_server_did_not_finish_is_not_an_event() -> None:
    whole, part = a_pod_line("ADDED", "a", 42), a_pod_line("ADDED", "b", 43)[:-10]

    events = await collect(streaming(whole, part))

    assert [event.resource_version for event in events] == ["42"]


async def test_an_expired_version_is_gone_as_a_status() -> None:
    with pytest.raises(Gone):
        await collect(answering(status_answer(410, "Expired", "too old resource version")))


async def test_an_expired_version_is_gone_as_an_event() -> None:
    line = a_line("ERROR", kind="Status", code=410, reason="Expired", message="too old: 1 (9)")

    with pytest.raises(Gone, match="too old: 1"):
        await collect(streaming(line))


async def test_any_other_error_event_is_the_error_it_names() -> None:
    line = a_line("ERROR", kind="Status", code=500, reason="InternalError", message="etcd")

    with pytest.raises(Unavailable, match="etcd"):
        await collect(streaming(line))


async def test_a_refused_watch_is_the_error_of_its_status() -> None:
    with pytest.raises(NotFound):
        await collect(answering(status_answer(404, "NotFound", "no such kind")))


async def test_silence_ends_a_watch() -> None:
    gate = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(a_pod_line("ADDED", "a", 42))
        await gate.wait()
        return response

    async with a_server(handler) as server, connect_to(server.url) as client:
        limits = WatchLimits(inactivity_s=0.2)
        events = watch(client, ALL_PODS, resource_version="41", limits=limits)
        async with asyncio.timeout(10), aclosing(events) as stream:
            assert (await anext(stream)).resource_version == "42"
            with pytest.raises(Unavailable) as caught:
                await anext(stream)
        gate.set()

    assert caught.value.reason == "Timeout"


async def test_a_watch_that_is_left_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for version in range(42, 100_000):
                await response.write(a_pod_line("MODIFIED", "a", version))
        except ConnectionError:
            closed.set()
        return response

    async with a_server(handler) as server, connect_to(server.url) as client:
        events = watch(client, ALL_PODS, resource_version="41", limits=WatchLimits())
        async with aclosing(events) as stream:
            await anext(stream)
        async with asyncio.timeout(10):
            await closed.wait()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"[]",
        b'{"type":"ADDED"}',
        b'{"type":"INVENTED","object":{"metadata":{"name":"a"}}}',
        b'{"type":"ADDED","object":{"metadata":{}}}',
        b'{"type":"BOOKMARK","object":{}}',
        b'{"type":"ERROR","object":3}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a"}}',
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_no_event_is_a_decode_error(line: bytes) -> None:
    with pytest.raises(KubeDecodeError) as caught:
        read_event(line, path="/api/v1/pods")

    assert isinstance(caught.value, KubeError)
    assert caught.value.path == "/api/v1/pods"
