"""The parts of kube that rely on several promises at once, against each API server."""

import asyncio
from collections.abc import Set
from functools import partial
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from kube.client import KubeClient
from kube.event_correlator import EventCorrelator
from kube.events import EventLevel, EventRecorder, Regarding
from kube.informer import Informer
from kube.kinds import EVENTS, LEASES, NODES, PODS, RESOURCE_CLAIMS
from kube.leader_election import LeaderElector, LeaseDurations
from kube.objects import ObjectKey, decode_object
from kube.retry import RetryPolicy
from process.clock import SystemClock
from simulator.background import background
from tests.support.objects import a_node, a_pod
from tests.support.waiting import until_true

BRIEF = LeaseDurations(duration_s=2, renew_deadline_s=1.5, retry_s=0.1)
QUICK = RetryPolicy(attempts=2, first_pause_s=0.05)


def a_candidate(client: KubeClient, namespace: str, identity: str) -> LeaderElector:
    return LeaderElector(
        client.with_retry(QUICK),
        SystemClock(),
        name="leader",
        namespace=namespace,
        identity=identity,
        times=BRIEF,
    )


async def test_the_lease_passes_from_a_holder_that_went_silent_to_the_other_candidate(
    client: KubeClient, namespace: str
) -> None:
    one, two = (a_candidate(client, namespace, name) for name in ("one", "two"))
    await one.acquire()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(two.run())
        await until_true(lambda: not one.still_leader(), what="one counts itself out")
        assert not two.still_leader()
        await until_true(two.still_leader, what="two leads")
        found = await client.get_object(LEASES, "leader", namespace=namespace)
        waiting.cancel()

    assert found["spec"]["holderIdentity"] == "two"
    assert found["spec"]["leaseTransitions"] == 1


async def test_a_lease_that_was_given_back_is_free_at_once(
    client: KubeClient, namespace: str
) -> None:
    one, two = (a_candidate(client, namespace, name) for name in ("one", "two"))
    await one.acquire()
    await one.release()

    async with asyncio.timeout(BRIEF.duration_s / 2):
        await two.acquire()

    assert two.still_leader()


@pytest.mark.parametrize("note", ["moved off a hot card", "ü" * 2000], ids=["short", "long"])
async def test_events_of_the_recorder_are_accepted(
    client: KubeClient, namespace: str, note: str
) -> None:
    pod = await client.create(PODS, a_pod("a"), namespace=namespace)
    node = await client.create(NODES, a_node(f"node-of-{namespace}"))
    recorder = EventRecorder(client, "fracgpu-test", SystemClock())

    with capture_logs() as logs:
        on_pod = Regarding(kind=PODS, namespace=namespace, name="a", uid=pod["metadata"]["uid"])
        await recorder.emit(on_pod, reason="Moved", note=note, level=EventLevel.WARNING)
        on_node = Regarding(kind=NODES, name=node["metadata"]["name"])
        await recorder.emit(on_node, reason="Hot", note=note)

    assert (recorder.failed, logs) == (0, [])
    (event,) = await events_about(client, namespace, "a")
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "Moved", 1)
    assert len(await events_about(client, "default", node["metadata"]["name"])) == 1


async def test_an_event_that_is_repeated_is_one_object_with_a_count(
    client: KubeClient, namespace: str
) -> None:
    recorder = EventRecorder(client, "fracgpu-test", SystemClock(), correlator=EventCorrelator())
    pod = Regarding(kind=PODS, name="a", namespace=namespace, uid="u")

    for _ in range(3):
        await recorder.emit(pod, reason="Moved", note="off a hot card")

    (event,) = await events_about(client, namespace, "a")
    assert event["count"] == 3
    assert recorder.failed == 0


async def events_about(client: KubeClient, namespace: str, name: str) -> list[dict[str, Any]]:
    """Return the Events of an object as ``kubectl describe`` finds them."""
    selector = f"involvedObject.name={name}"
    found = await client.list(EVENTS, namespace=namespace, field_selector=selector)
    return [decode_object(item) for item in found.items]


def _has(informer: Informer[bytes], keys: Set[ObjectKey]) -> bool:
    return informer.items().keys() == keys


# The simulated API server reads no such object.
@pytest.mark.parametrize("api_server", [pytest.param("real", marks=pytest.mark.e2e)], indirect=True)
@pytest.mark.parametrize(
    "written",
    [
        pytest.param(b'{"f:a":' * 1_200 + b"{}" + b"}" * 1_200, id="nested deeply"),
        pytest.param(rb'{"f:\ud800":{}}', id="half a surrogate pair"),
        pytest.param(b'{"f:a":"\xff"}', id="no UTF-8"),
    ],
)
async def test_what_anybody_may_write_is_listed_and_watched_beside_everything_else(
    client: KubeClient, namespace: str, written: bytes
) -> None:
    """One pod or claim that could not be read ended every role at its first list."""
    device = {"driver": "other.example.com", "parameters": msgspec.Raw(written)}
    request = {"name": "r", "exactly": {"deviceClassName": "other"}}
    claim = {
        "metadata": {"name": "odd"},
        "spec": {"devices": {"requests": [request], "config": [{"opaque": device}]}},
    }
    manager = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    pod = a_pod("odd")
    pod["metadata"]["managedFields"] = [{**manager, "fieldsV1": msgspec.Raw(written)}]
    both = {ObjectKey(namespace, name) for name in ("odd", "other")}
    for kind, body in ((PODS, pod), (RESOURCE_CLAIMS, claim)):
        await client.create(kind, body, namespace=namespace)
        other = {**body, "metadata": {"name": "other"}}
        informer = Informer(client, kind, decode=bytes, namespace=namespace)
        async with background(informer.run()):
            await informer.wait_synced()
            await client.create(kind, other, namespace=namespace)
            await until_true(partial(_has, informer, both), what="both")
        assert decode_object(await client.get(kind, "odd", namespace=namespace))
