"""What the API server promises about lists: selectors, pages and one version for all of it."""

import msgspec
import pytest

from kube.client import KubeClient
from kube.errors import Gone, Invalid
from kube.kinds import CONFIGMAPS, PODS
from kube.objects import ObjectList, decode_object, identity
from tests.support.objects import a_config, a_pod, running


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


async def test_a_field_that_does_not_select_is_refused(client: KubeClient, namespace: str) -> None:
    with pytest.raises(Invalid) as caught:
        await client.list(PODS, namespace=namespace, field_selector="spec.priority=1")

    assert caught.value.status == 400


async def test_a_list_is_as_new_as_its_newest_object(client: KubeClient, namespace: str) -> None:
    created = await client.create(CONFIGMAPS, a_config("a"), namespace=namespace)

    listed = await client.list(CONFIGMAPS, namespace=namespace)

    assert int(listed.resource_version) >= int(created["metadata"]["resourceVersion"])


async def test_a_list_spans_all_namespaces_or_one(client: KubeClient, namespace: str) -> None:
    label = f"of={namespace}"
    for where in (namespace, "default"):
        config = a_config(f"of-{namespace}", labels={"of": namespace})
        await client.create(CONFIGMAPS, config, namespace=where)

    everywhere = await client.list(CONFIGMAPS, label_selector=label)
    here = await client.list(CONFIGMAPS, namespace=namespace, label_selector=label)

    assert {identity(item).namespace for item in everywhere.items} == {namespace, "default"}
    assert {identity(item).namespace for item in here.items} == {namespace}


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


async def test_a_token_that_no_page_was_given_is_refused(
    client: KubeClient, namespace: str
) -> None:
    with pytest.raises((Invalid, Gone)):
        await client.get_path(
            PODS.path(namespace=namespace), query={"limit": "2", "continue": "nonsense"}
        )


async def test_items_of_a_list_are_raw_json(client: KubeClient, namespace: str) -> None:
    await client.create(PODS, a_pod("a"), namespace=namespace)

    listed = await client.list(PODS, namespace=namespace)

    assert [type(item) for item in listed.items] == [msgspec.Raw]
    assert decode_object(listed.items[0])["spec"]["schedulerName"] == "nobody"
