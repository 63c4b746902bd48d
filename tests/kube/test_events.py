import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from aiohttp import web
from structlog.testing import capture_logs

from kube.access import connect_to
from kube.event_correlator import EventCorrelator
from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import NODES, PODS
from tests.fakes.clock import NOON, VirtualClock
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


async def test_a_long_name_is_cut_where_a_name_may_end() -> None:
    long = replace(POD, name=f"{'a' * 199}-{'b' * 20}")
    async with recording(answering(json_answer({}))) as (recorder, server):
        await recorder.emit(long, reason="Moved", note="off a hot card")

    assert sent(server)["metadata"] == {"generateName": f"{'a' * 199}."}


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


def test_an_equal_event_is_counted_up_for_ten_minutes_after_the_last() -> None:
    correlator = EventCorrelator()
    assert correlator.same("hot", now=NOON) is None
    correlator.written("hot", namespace="ml", name="a.1", now=NOON)

    later = NOON + timedelta(minutes=10)
    found = correlator.same("hot", now=later)
    assert found is not None
    assert (found.namespace, found.name, found.count) == ("ml", "a.1", 1)
    correlator.counted("hot", now=later)
    again = correlator.same("hot", now=later + timedelta(minutes=10))
    assert again is not None
    assert again.count == 2
    assert correlator.same("hot", now=later + timedelta(minutes=11)) is None


def test_an_event_that_is_gone_is_forgotten() -> None:
    correlator = EventCorrelator()
    correlator.written("hot", namespace="ml", name="a.1", now=NOON)

    correlator.forget("hot")

    assert correlator.same("hot", now=NOON) is None


def test_of_one_object_25_events_are_admitted_and_then_one_in_five_minutes() -> None:
    correlator = EventCorrelator()

    assert [correlator.admits("pod", now=NOON) for _ in range(27)] == [True] * 25 + [False] * 2
    assert correlator.admits("other", now=NOON)
    assert not correlator.admits("pod", now=NOON + timedelta(seconds=299))
    assert correlator.admits("pod", now=NOON + timedelta(seconds=301))
    assert not correlator.admits("pod", now=NOON + timedelta(seconds=302))
    assert not correlator.admits("pod", now=NOON - timedelta(hours=1))  # a clock set back


def test_what_is_remembered_is_bounded() -> None:
    correlator = EventCorrelator()
    for number in range(5000):
        correlator.admits(number, now=NOON)
        correlator.written(number, namespace="ml", name=str(number), now=NOON)

    assert correlator.same(0, now=NOON) is None
    assert correlator.same(5000 - 4096, now=NOON) is not None
