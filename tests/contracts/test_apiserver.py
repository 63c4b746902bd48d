"""What the API server promises about objects, pods, lists and watches."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from kube.client import KubeClient
from kube.errors import Conflict, Gone, Invalid, TooManyRequests
from kube.informer import Change, Informer
from kube.kinds import (
    CONFIGMAPS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    PDBS,
    PODS,
)
from kube.objects import ObjectKey, ObjectList, decode_object, identity
from kube.watch import EventType, Selection, WatchEvent, WatchLimits, watch
from tests.support.objects import Json, a_budget, a_config, a_pod, running
from tests.support.waiting import until_true


async def test_a_replace_that_changes_nothing_keeps_the_version(
    client: KubeClient, namespace: str
) -> None:
    first = await client.create(CONFIGMAPS, a_config("a", x="1"), namespace=namespace)

    again = await client.replace(CONFIGMAPS, first)

    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_lease_keeps_microseconds(client: KubeClient, namespace: str) -> None:
    spec = {"holderIdentity": "me", "renewTime": "2026-01-05T12:00:00.000250Z"}

    await client.create(LEASES, {"metadata": {"name": "a"}, "spec": spec}, namespace=namespace)

    found = await client.get_object(LEASES, "a", namespace=namespace)
    assert found["spec"] == spec


async def test_an_event_must_be_about_something_in_its_own_namespace(
    client: KubeClient, namespace: str
) -> None:
    event = {
        "metadata": {"generateName": "a."},
        "involvedObject": {"kind": "Pod", "name": "a", "namespace": namespace},
        "reason": "Tested",
        "message": "as it should be",
        "type": "Normal",
    }
    await client.create(EVENTS, event, namespace=namespace)

    with pytest.raises(Invalid):
        await client.create(EVENTS, event, namespace="default")


async def test_an_endpoint_slice_keeps_what_was_written_and_takes_nothing_over_a_newer_version(
    client: KubeClient, namespace: str
) -> None:
    written = {
        "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": True}}],
        "ports": [{"name": "extender", "port": 9404, "protocol": "TCP"}],
    }
    first = await client.create(ENDPOINT_SLICES, written, namespace=namespace)
    assert {key: first[key] for key in ("addressType", "endpoints", "ports")} == {
        key: written[key] for key in ("addressType", "endpoints", "ports")
    }

    emptied = await client.replace(ENDPOINT_SLICES, {**first, "endpoints": []})
    assert not emptied["endpoints"]  # the real one writes null
    with pytest.raises(Conflict):
        await client.replace(ENDPOINT_SLICES, first)


TO_N1: Json = {"target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}}


def to_n1(pod: Json, **metadata: Any) -> Json:
    """Return a Binding of exactly this version of *pod* to the node n1."""
    observed = {key: pod["metadata"][key] for key in ("uid", "resourceVersion")}
    return {"metadata": observed | metadata, **TO_N1}


async def budget_status(
    client: KubeClient, namespace: str, *, allowed: int, healthy: int = 1, desired: int = 1
) -> None:
    """Write the budget's status as the disruption controller would."""
    found = await client.get_object(PDBS, "budget", namespace=namespace)
    status = {
        "observedGeneration": found["metadata"]["generation"],
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": healthy,
    }
    await client.patch(
        PDBS, "budget", {"status": status}, namespace=namespace, subresource="status"
    )


async def a_running_pod(client: KubeClient, namespace: str, name: str) -> Json:
    """Create a pod with the label app=a that is bound, running and ready."""
    await client.create(PODS, a_pod(name, labels={"app": "a"}), namespace=namespace)
    await client.bind(TO_N1, namespace=namespace, name=name)
    return await client.patch(PODS, name, running(), namespace=namespace, subresource="status")


async def test_a_bindings_labels_come_to_the_pod_too(client: KubeClient, namespace: str) -> None:
    """Since Kubernetes 1.35 (PodTopologyLabelsAdmission)."""
    pod = await client.create(PODS, a_pod("a", labels={"old": "1"}), namespace=namespace)

    await client.bind(to_n1(pod, labels={"new": "2"}), namespace=namespace, name="a")

    bound = await client.get_object(PODS, "a", namespace=namespace)
    assert bound["metadata"]["labels"] == {"old": "1", "new": "2"}


async def test_an_annotation_written_through_the_status_makes_an_older_binding_conflict(
    client: KubeClient, namespace: str
) -> None:
    pod = await client.create(PODS, a_pod("a", annotations={"old": "1"}), namespace=namespace)

    def mark(uid: str) -> Json:
        return {"metadata": {"uid": uid, "annotations": {"mark": "x"}}}

    with pytest.raises(Invalid, match=r"metadata\.uid"):
        await client.patch(PODS, "a", mark("another"), namespace=namespace, subresource="status")
    marked = await client.patch(
        PODS, "a", mark(pod["metadata"]["uid"]), namespace=namespace, subresource="status"
    )

    assert marked["metadata"]["annotations"] == {"old": "1", "mark": "x"}
    assert marked["metadata"]["resourceVersion"] != pod["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await client.bind(to_n1(pod), namespace=namespace, name="a")
    await client.bind(to_n1(marked), namespace=namespace, name="a")


async def test_a_pod_that_is_on_its_way_out_cannot_be_bound(
    client: KubeClient, namespace: str
) -> None:
    await client.create(PODS, a_pod("a", finalizers=["example.com/wait"]), namespace=namespace)
    await client.delete(PODS, "a", namespace=namespace)

    with pytest.raises(Conflict):
        await client.bind(TO_N1, namespace=namespace, name="a")


async def test_a_budget_is_asked_before_the_uid_is_compared(
    client: KubeClient, namespace: str
) -> None:
    await a_running_pod(client, namespace, "a")
    await client.create(PDBS, a_budget("budget", app="a", min_available=1), namespace=namespace)

    await budget_status(client, namespace, allowed=0)
    with pytest.raises(TooManyRequests) as caught:
        await client.evict(namespace=namespace, name="a", uid="another")
    assert caught.value.by_disruption_budget

    await budget_status(client, namespace, allowed=1, healthy=2)
    with pytest.raises(Conflict):
        await client.evict(namespace=namespace, name="a", uid="another", dry_run=True)
    with pytest.raises(Conflict):
        await client.evict(namespace=namespace, name="a", uid="another")
    status = (await client.get_object(PDBS, "budget", namespace=namespace))["status"]
    assert status["disruptionsAllowed"] == 0


async def test_an_eviction_of_a_pod_that_has_changed_since_conflicts_and_costs_the_budget(
    client: KubeClient, namespace: str
) -> None:
    pod = await a_running_pod(client, namespace, "a")
    uid, version = pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]
    await client.create(PDBS, a_budget("budget", app="a", min_available=1), namespace=namespace)
    await budget_status(client, namespace, allowed=1, healthy=2)
    note = {"metadata": {"annotations": {"changed": "since"}}}
    await client.patch(PODS, "a", note, namespace=namespace)

    with pytest.raises(Conflict) as caught:
        await client.evict(namespace=namespace, name="a", uid=uid, version=version)

    assert f"the ResourceVersion in the precondition ({version})" in caught.value.message
    found = await client.get_object(PODS, "a", namespace=namespace)
    assert "deletionTimestamp" not in found["metadata"]
    assert "DisruptionTarget" not in {one["type"] for one in found["status"]["conditions"]}
    status = (await client.get_object(PDBS, "budget", namespace=namespace))["status"]
    assert status["disruptionsAllowed"] == 0


def names(listed: ObjectList) -> set[str]:
    return {identity(item).name for item in listed.items}


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ("tier=web", {"a"}),
        ("tier==web,env=prod", {"a"}),
        ("tier!=web", {"b", "c"}),
        ("tier in (web, db)", {"a", "b"}),
        ("tier notin (web)", {"b", "c"}),
        ("tier", {"a", "b"}),
        ("!tier", {"c"}),
        ("tier=nobody", set()),
    ],
)
async def test_labels_select(
    client: KubeClient, namespace: str, selector: str, wanted: set[str]
) -> None:
    labels = {"a": {"tier": "web", "env": "prod"}, "b": {"tier": "db"}, "c": {"env": "prod"}}
    for name, its in labels.items():
        await client.create(CONFIGMAPS, a_config(name, labels=its), namespace=namespace)

    found = await client.list(CONFIGMAPS, namespace=namespace, label_selector=selector)

    assert names(found) == wanted


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ("metadata.name=a", {"a"}),
        ("spec.nodeName=n1", {"b"}),
        ("spec.nodeName=", {"a", "c"}),
        ("spec.nodeName!=n1", {"a", "c"}),
        ("status.phase=Running", {"c"}),
        ("status.phase!=Running,spec.nodeName!=n1", {"a"}),
        ("spec.schedulerName=nobody", {"a", "b", "c"}),
    ],
)
async def test_fields_of_a_pod_select(
    client: KubeClient, namespace: str, selector: str, wanted: set[str]
) -> None:
    for name in "abc":
        await client.create(PODS, a_pod(name), namespace=namespace)
    await client.bind({"target": {"kind": "Node", "name": "n1"}}, namespace=namespace, name="b")
    await client.patch(PODS, "c", running(), namespace=namespace, subresource="status")

    found = await client.list(PODS, namespace=namespace, field_selector=selector)

    assert names(found) == wanted


async def test_a_list_is_as_new_as_its_newest_object(client: KubeClient, namespace: str) -> None:
    created = await client.create(CONFIGMAPS, a_config("a"), namespace=namespace)

    listed = await client.list(CONFIGMAPS, namespace=namespace)

    assert int(listed.resource_version) >= int(created["metadata"]["resourceVersion"])


async def test_a_list_comes_in_pages_of_one_version(client: KubeClient, namespace: str) -> None:
    for name in "abc":
        await client.create(PODS, a_pod(name), namespace=namespace)

    path = PODS.path(namespace=namespace)
    first = decode_object(await client.get_path(path, query={"limit": "2"}))
    await client.create(PODS, a_pod("d"), namespace=namespace)
    token = first["metadata"]["continue"]
    second = decode_object(await client.get_path(path, query={"limit": "2", "continue": token}))

    found = [item["metadata"]["name"] for item in first["items"] + second["items"]]
    assert found == ["a", "b", "c"]
    assert first["metadata"]["remainingItemCount"] == 1
    assert not second["metadata"].get("continue")
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


BRIEF = WatchLimits(server_s=10, inactivity_s=30.0)


async def take(
    client: KubeClient, selected: Selection, *, since: str, count: int
) -> list[WatchEvent]:
    """Return the first *count* events that are not bookmarks."""
    found: list[WatchEvent] = []
    events = watch(client, selected, resource_version=since, limits=BRIEF)
    async with asyncio.timeout(20), aclosing(events) as stream:
        async for event in stream:
            if event.type is not EventType.BOOKMARK:
                found.append(event)
            if len(found) == count:
                break
    return found


def described(events: list[WatchEvent]) -> list[tuple[str, str]]:
    return [(one.type.value, one.metadata.name) for one in events if one.metadata is not None]


async def version_now(client: KubeClient, namespace: str) -> str:
    return (await client.list(CONFIGMAPS, namespace=namespace)).resource_version


async def test_a_watch_tells_what_happened_since_the_list_in_order(
    client: KubeClient, namespace: str
) -> None:
    since = await version_now(client, namespace)
    await client.create(CONFIGMAPS, a_config("a", x="1"), namespace=namespace)
    await client.patch(CONFIGMAPS, "a", {"data": {"x": "2"}}, namespace=namespace)
    await client.create(CONFIGMAPS, a_config("b"), namespace=namespace)
    await client.delete(CONFIGMAPS, "a", namespace=namespace)

    selected = Selection(kind=CONFIGMAPS, namespace=namespace)
    events = await take(client, selected, since=since, count=4)

    assert described(events) == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("ADDED", "b"),
        ("DELETED", "a"),
    ]
    versions = [int(event.resource_version) for event in events]
    assert versions == sorted(set(versions))


async def test_a_watch_goes_on_from_the_last_event_seen(client: KubeClient, namespace: str) -> None:
    since = await version_now(client, namespace)
    for name in "abc":
        await client.create(CONFIGMAPS, a_config(name), namespace=namespace)
    selected = Selection(kind=CONFIGMAPS, namespace=namespace)
    (first,) = await take(client, selected, since=since, count=1)

    rest = await take(client, selected, since=first.resource_version, count=2)

    assert described([first]) == [("ADDED", "a")]
    assert described(rest) == [("ADDED", "b"), ("ADDED", "c")]


async def test_an_object_enters_and_leaves_a_watch_by_its_labels(
    client: KubeClient, namespace: str
) -> None:
    since = await version_now(client, namespace)
    await client.create(CONFIGMAPS, a_config("a", labels={"x": "no"}), namespace=namespace)
    for value in ("yes", "no"):
        patch = {"metadata": {"labels": {"x": value}}}
        await client.patch(CONFIGMAPS, "a", patch, namespace=namespace)

    selected = Selection(kind=CONFIGMAPS, namespace=namespace, label_selector="x=yes")
    events = await take(client, selected, since=since, count=2)

    assert described(events) == [("ADDED", "a"), ("DELETED", "a")]


async def test_a_pod_enters_the_watch_of_its_node_when_it_is_bound(
    client: KubeClient, namespace: str
) -> None:
    since = await version_now(client, namespace)
    await client.create(PODS, a_pod("a"), namespace=namespace)
    await client.bind({"target": {"kind": "Node", "name": "n1"}}, namespace=namespace, name="a")

    selected = Selection(kind=PODS, namespace=namespace, field_selector="spec.nodeName=n1")
    events = await take(client, selected, since=since, count=1)

    assert described(events) == [("ADDED", "a")]


async def test_a_watch_ends_quietly_after_the_time_asked_for_and_bookmarks_before_that(
    client: KubeClient, namespace: str
) -> None:
    since = await version_now(client, namespace)
    selected = Selection(kind=CONFIGMAPS, namespace=namespace)
    limits = WatchLimits(server_s=5, inactivity_s=30.0)
    events: list[WatchEvent] = []

    async def collect() -> None:
        stream = watch(client, selected, resource_version=since, limits=limits)
        async with asyncio.timeout(20), aclosing(stream) as arriving:
            async for event in arriving:
                events.append(event)  # noqa: PERF401 - the test looks at it meanwhile

    async with asyncio.TaskGroup() as group:
        group.create_task(collect())
        await client.create(CONFIGMAPS, a_config("a"), namespace=namespace)
        await until_true(lambda: bool(events), what="the first event")
        elsewhere = a_config(f"not-in-{namespace}")
        unseen = await client.create(CONFIGMAPS, elsewhere, namespace="default")

    assert described(events) == [("ADDED", "a")]
    assert events[-1].type is EventType.BOOKMARK
    assert int(events[-1].resource_version) >= int(unseen["metadata"]["resourceVersion"])


async def test_a_version_the_server_forgot_is_gone(client: KubeClient, namespace: str) -> None:
    selected = Selection(kind=CONFIGMAPS, namespace=namespace)

    with pytest.raises(Gone):
        await take(client, selected, since="1", count=1)


async def test_an_informer_follows_it_all(client: KubeClient, namespace: str) -> None:
    await client.create(CONFIGMAPS, a_config("a", x="1"), namespace=namespace)
    changes: list[Change[bytes]] = []
    informer = Informer(
        client, CONFIGMAPS, decode=bytes, namespace=namespace, on_change=changes.append
    )

    async with asyncio.TaskGroup() as group:
        following = group.create_task(informer.run())
        async with asyncio.timeout(10):
            await informer.wait_synced()
        await client.patch(CONFIGMAPS, "a", {"data": {"x": "2"}}, namespace=namespace)
        await client.delete(CONFIGMAPS, "a", namespace=namespace)
        await until_true(lambda: len(changes) == 3, what="three changes")
        following.cancel()

    assert [change.type.value for change in changes] == ["ADDED", "MODIFIED", "DELETED"]
    assert {change.key for change in changes} == {ObjectKey(namespace, "a")}
    assert len({change.uid for change in changes}) == 1
    assert not informer.items()
