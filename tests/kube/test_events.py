import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from structlog.testing import capture_logs

from kube.access import connect_to
from kube.event_correlator import EventCorrelator
from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import NODES, PODS
from tests.fakes.clock import VirtualClock
from tests.support.scripted import (
    Handler,
    ScriptedServer,
    a_server,
    answering,
    json_answer,
    status_answer,
)

POD = Regarding(kind=PODS, namespace="ml", name="a", uid="u")


@asynccontextmanager
async def recording(
    handler: Handler, *, correlator: EventCorrelator | None = None
) -> AsyncIterator[tuple[EventRecorder, ScriptedServer]]:
    async with a_server(handler) as server, connect_to(server.url) as client:
        recorder = EventRecorder(
            client, "fracgpu-test", VirtualClock(), instance="pod-1", correlator=correlator
        )
        yield recorder, server


def sent(server: ScriptedServer) -> dict[str, Any]:
    (heard,) = server.heard
    body: dict[str, Any] = json.loads(heard.body)
    return body


async def test_an_event_says_who_what_when_and_why() -> None:
    async with recording(answering(json_answer({}))) as (recorder, server):
        await recorder.emit(POD, reason="Moved", note="off a hot card", level=EventLevel.WARNING)

    assert server.heard[0].path == "/api/v1/namespaces/ml/events"
    assert sent(server) == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "a."},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "ml",
            "name": "a",
            "uid": "u",
        },
        "reason": "Moved",
        "message": "off a hot card",
        "type": "Warning",
        "source": {"component": "fracgpu-test"},
        "reportingComponent": "fracgpu-test",
        "reportingInstance": "pod-1",
        "action": "Moved",
        "eventTime": "2026-01-05T12:00:00.000000Z",
        "firstTimestamp": "2026-01-05T12:00:00Z",
        "lastTimestamp": "2026-01-05T12:00:00Z",
        "count": 1,
    }


async def test_an_event_on_a_node_goes_to_the_default_namespace() -> None:
    async with recording(answering(json_answer({}))) as (recorder, server):
        await recorder.emit(Regarding(kind=NODES, name="n1"), reason="Hot", note="card 3")

    assert server.heard[0].path == "/api/v1/namespaces/default/events"
    assert sent(server)["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}


async def test_a_long_note_is_cut_to_what_the_server_takes() -> None:
    async with recording(answering(json_answer({}))) as (recorder, server):
        await recorder.emit(POD, reason="Moved", note="ä" * 5000)

    message = sent(server)["message"]
    assert message.endswith("ä…")
    assert 1022 <= len(message.encode()) <= 1024


async def test_an_event_that_cannot_be_written_is_logged_and_counted_not_raised() -> None:
    refusal = status_answer(403, "Forbidden", "no events for you")
    async with recording(answering(refusal)) as (recorder, _):
        with capture_logs() as logs:
            await recorder.emit(POD, reason="Moved", note="off a hot card")

    assert recorder.failed == 1
    (line,) = logs
    assert (line["event"], line["object"], line["reason"]) == (
        "event_not_written",
        "ml/a",
        "Moved",
    )
    assert "no events for you" in line["error"]


async def test_a_repeated_event_is_counted_up_and_written_anew_once_it_has_expired() -> None:
    expired = False

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH" and expired:
            return status_answer(404, "NotFound", "it expired")
        return json_answer({"metadata": {"name": "a.1"}})

    async with recording(handle, correlator=EventCorrelator()) as (recorder, server):
        await recorder.emit(POD, reason="Moved", note="off a hot card")
        await recorder.emit(POD, reason="Moved", note="off a hot card")
        await recorder.emit(POD, reason="Moved", note="off another card")
        expired = True
        await recorder.emit(POD, reason="Moved", note="off a hot card")

    assert [heard.method for heard in server.heard] == ["POST", "PATCH", "POST", "PATCH", "POST"]
    assert server.heard[1].path == "/api/v1/namespaces/ml/events/a.1"
    assert json.loads(server.heard[1].body) == {
        "count": 2,
        "lastTimestamp": "2026-01-05T12:00:00Z",
    }
    assert recorder.failed == 0


async def test_too_many_events_about_one_object_are_dropped() -> None:
    answer = answering(json_answer({"metadata": {"name": "a.1"}}))
    async with recording(answer, correlator=EventCorrelator()) as (recorder, server):
        for number in range(30):
            await recorder.emit(POD, reason="Moved", note=f"for the {number}th time")
        await recorder.emit(POD, reason="Lost", note="no replacement", level=EventLevel.WARNING)

    assert len(server.heard) == 26
    assert recorder.dropped == 5
