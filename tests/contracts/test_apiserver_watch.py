"""What the API server promises to those who watch."""

import asyncio
from contextlib import aclosing

import pytest

from kube.client import KubeClient
from kube.errors import Gone
from kube.informer import Change, Informer
from kube.kinds import CONFIGMAPS, PODS
from kube.objects import ObjectKey
from kube.watch import EventType, Selection, WatchEvent, WatchLimits, watch
from tests.support.objects import a_config, a_pod
from tests.support.waiting import until_true

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


def told(events: list[WatchEvent]) -> list[tuple[str, str]]:
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

    assert told(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    versions = [int(event.resource_version) for event in events]
    assert versions == sorted(set(versions))


async def test_a_watch_tells_what_happens_while_it_is_open(
    client: KubeClient, namespace: str
) -> None:
    since = await version_now(client, namespace)
    selected = Selection(kind=CONFIGMAPS, namespace=namespace)

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(take(client, selected, since=since, count=2))
        await client.create(CONFIGMAPS, a_config("a"), namespace=namespace)
        await client.delete(CONFIGMAPS, "a", namespace=namespace)

    assert told(watching.result()) == [("ADDED", "a"), ("DELETED", "a")]


async def test_a_watch_goes_on_from_the_last_event_seen(client: KubeClient, namespace: str) -> None:
    since = await version_now(client, namespace)
    for name in "abc":
        await client.create(CONFIGMAPS, a_config(name), namespace=namespace)
    selected = Selection(kind=CONFIGMAPS, namespace=namespace)
    (first,) = await take(client, selected, since=since, count=1)

    rest = await take(client, selected, since=first.resource_version, count=2)

    assert told([first]) == [("ADDED", "a")]
    assert told(rest) == [("ADDED", "b"), ("ADDED", "c")]


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

    assert told(events) == [("ADDED", "a"), ("DELETED", "a")]


async def test_a_pod_enters_the_watch_of_its_node_when_it_is_bound(
    client: KubeClient, namespace: str
) -> None:
    since = await version_now(client, namespace)
    await client.create(PODS, a_pod("a"), namespace=namespace)
    await client.bind({"target": {"kind": "Node", "name": "n1"}}, namespace=namespace, name="a")

    selected = Selection(kind=PODS, namespace=namespace, field_selector="spec.nodeName=n1")
    events = await take(client, selected, since=since, count=1)

    assert told(events) == [("ADDED", "a")]


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

    assert told(events) == [("ADDED", "a")]
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
