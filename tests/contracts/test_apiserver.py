"""What the API server promises about objects: names, versions, patches, selectors, refusals."""

import base64
from typing import Any

import pytest

from kube.client import KubeClient, PatchType
from kube.errors import AlreadyExists, Conflict, Invalid, KubeError, NotFound
from kube.kinds import (
    CONFIGMAPS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    Kind,
)
from tests.support.objects import a_config, a_node, a_pod, running


async def test_a_created_object_gets_an_identity_a_version_and_a_birthday(
    client: KubeClient, namespace: str
) -> None:
    created = await client.create(CONFIGMAPS, a_config("a", colour="red"), namespace=namespace)

    metadata = created["metadata"]
    assert metadata["namespace"] == namespace
    assert len(metadata["uid"]) == 36
    assert int(metadata["resourceVersion"]) > 0
    assert metadata["creationTimestamp"].endswith("Z")
    assert created == await client.get_object(CONFIGMAPS, "a", namespace=namespace)


async def test_a_missing_object_is_not_found_by_name(client: KubeClient, namespace: str) -> None:
    with pytest.raises(NotFound) as caught:
        await client.get_object(PODS, "nobody", namespace=namespace)

    assert (caught.value.status, caught.value.reason) == (404, "NotFound")
    assert caught.value.message == 'pods "nobody" not found'


async def test_a_kind_the_server_does_not_know_is_not_found(client: KubeClient) -> None:
    with pytest.raises(NotFound):
        await client.list(Kind("nobody.example/v1", "nothings", "Nothing", namespaced=False))


async def test_a_taken_name_already_exists(client: KubeClient, namespace: str) -> None:
    await client.create(CONFIGMAPS, a_config("a"), namespace=namespace)

    with pytest.raises(AlreadyExists) as caught:
        await client.create(CONFIGMAPS, a_config("a"), namespace=namespace)

    assert caught.value.message == 'configmaps "a" already exists'


async def test_a_generated_name_keeps_its_stem_and_is_new_each_time(
    client: KubeClient, namespace: str
) -> None:
    pods = [
        await client.create(PODS, a_pod(generate_name="train-"), namespace=namespace)
        for _ in range(3)
    ]

    found = {pod["metadata"]["name"] for pod in pods}
    assert len(found) == 3
    assert all(name.startswith("train-") and len(name) == len("train-") + 5 for name in found)


async def test_nothing_can_be_created_in_a_namespace_that_does_not_exist(
    client: KubeClient,
) -> None:
    with pytest.raises(NotFound):
        await client.create(CONFIGMAPS, a_config("a"), namespace="no-such-namespace")


async def test_a_namespace_carries_its_name_as_a_label(client: KubeClient, namespace: str) -> None:
    found = await client.get_object(NAMESPACES, namespace)

    assert found["metadata"]["labels"]["kubernetes.io/metadata.name"] == namespace


async def test_a_dry_run_answers_but_stores_nothing(client: KubeClient, namespace: str) -> None:
    answer = await client.create(CONFIGMAPS, a_config("a"), namespace=namespace, dry_run=True)

    assert answer["metadata"]["name"] == "a"
    with pytest.raises(NotFound):
        await client.get(CONFIGMAPS, "a", namespace=namespace)


async def test_an_impossible_name_is_invalid_and_the_field_is_named(
    client: KubeClient, namespace: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await client.create(CONFIGMAPS, a_config("No_Such_Name"), namespace=namespace)

    assert caught.value.status == 422
    assert [cause.field for cause in caught.value.causes] == ["metadata.name"]


async def test_a_pod_without_containers_is_invalid(client: KubeClient, namespace: str) -> None:
    empty = a_pod("a") | {"spec": {"containers": []}}

    with pytest.raises(Invalid) as caught:
        await client.create(PODS, empty, namespace=namespace)

    assert "spec.containers" in {cause.field for cause in caught.value.causes}


async def test_a_replace_with_a_stale_version_conflicts(client: KubeClient, namespace: str) -> None:
    first = await client.create(CONFIGMAPS, a_config("a", x="1"), namespace=namespace)
    second = await client.replace(CONFIGMAPS, first | {"data": {"x": "2"}})
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]

    with pytest.raises(Conflict) as caught:
        await client.replace(CONFIGMAPS, first | {"data": {"x": "3"}})

    assert not isinstance(caught.value, AlreadyExists)
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    found = await client.get_object(CONFIGMAPS, "a", namespace=namespace)
    assert found["data"] == {"x": "2"}


async def test_a_replace_that_changes_nothing_keeps_the_version(
    client: KubeClient, namespace: str
) -> None:
    first = await client.create(CONFIGMAPS, a_config("a", x="1"), namespace=namespace)

    again = await client.replace(CONFIGMAPS, first)

    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_replace_of_a_missing_object_is_not_found(
    client: KubeClient, namespace: str
) -> None:
    created = await client.create(CONFIGMAPS, a_config("a"), namespace=namespace)
    await client.delete(CONFIGMAPS, "a", namespace=namespace)

    with pytest.raises((NotFound, Conflict)):  # the UID in it no longer belongs to anybody
        await client.replace(CONFIGMAPS, created)


async def test_a_merge_patch_sets_keys_and_null_removes_them(
    client: KubeClient, namespace: str
) -> None:
    await client.create(CONFIGMAPS, a_config("a", old="1", kept="2"), namespace=namespace)

    patch = {"data": {"old": None, "new": "3"}}
    await client.patch(CONFIGMAPS, "a", patch, namespace=namespace)

    found = await client.get_object(CONFIGMAPS, "a", namespace=namespace)
    assert found["data"] == {"kept": "2", "new": "3"}


async def test_a_merge_patch_with_a_stale_version_conflicts(
    client: KubeClient, namespace: str
) -> None:
    first = await client.create(CONFIGMAPS, a_config("a", x="1"), namespace=namespace)
    await client.patch(CONFIGMAPS, "a", {"data": {"x": "2"}}, namespace=namespace)

    version = first["metadata"]["resourceVersion"]
    stale = {"metadata": {"resourceVersion": version}, "data": {"x": "3"}}
    with pytest.raises(Conflict):
        await client.patch(CONFIGMAPS, "a", stale, namespace=namespace)

    found = await client.get_object(CONFIGMAPS, "a", namespace=namespace)
    assert found["data"] == {"x": "2"}


async def test_a_json_patch_adds_replaces_and_removes(client: KubeClient, namespace: str) -> None:
    await client.create(CONFIGMAPS, a_config("a", old="1", kept="2"), namespace=namespace)

    patch = [
        {"op": "test", "path": "/data/kept", "value": "2"},
        {"op": "add", "path": "/data/new", "value": "3"},
        {"op": "replace", "path": "/data/kept", "value": "4"},
        {"op": "remove", "path": "/data/old"},
    ]
    await client.patch(CONFIGMAPS, "a", patch, namespace=namespace, how=PatchType.JSON)

    found = await client.get_object(CONFIGMAPS, "a", namespace=namespace)
    assert found["data"] == {"kept": "4", "new": "3"}


async def test_a_json_patch_reads_escaped_slashes(client: KubeClient, namespace: str) -> None:
    await client.create(CONFIGMAPS, a_config("a", labels={"x": "1"}), namespace=namespace)

    patch = [{"op": "add", "path": "/metadata/labels/example.com~1y", "value": "2"}]
    await client.patch(CONFIGMAPS, "a", patch, namespace=namespace, how=PatchType.JSON)

    found = await client.get_object(CONFIGMAPS, "a", namespace=namespace)
    assert found["metadata"]["labels"] == {"x": "1", "example.com/y": "2"}


@pytest.mark.parametrize(
    "step",
    [
        {"op": "test", "path": "/data/x", "value": "other"},
        {"op": "remove", "path": "/data/missing"},
    ],
    ids=["test", "remove"],
)
async def test_a_json_patch_that_does_not_fit_changes_nothing(
    client: KubeClient, namespace: str, step: dict[str, Any]
) -> None:
    await client.create(CONFIGMAPS, a_config("a", x="1"), namespace=namespace)

    patch = [{"op": "add", "path": "/data/y", "value": "2"}, step]
    with pytest.raises(Invalid):
        await client.patch(CONFIGMAPS, "a", patch, namespace=namespace, how=PatchType.JSON)

    found = await client.get_object(CONFIGMAPS, "a", namespace=namespace)
    assert found["data"] == {"x": "1"}


async def test_a_strategic_patch_merges_conditions_by_type(
    client: KubeClient, namespace: str
) -> None:
    await client.create(PODS, a_pod("a"), namespace=namespace)
    await client.patch(PODS, "a", running(), namespace=namespace, subresource="status")

    more = {"status": {"conditions": [{"type": "Initialized", "status": "True"}]}}
    changed = await client.patch(
        PODS, "a", more, namespace=namespace, subresource="status", how=PatchType.STRATEGIC
    )

    assert {one["type"] for one in changed["status"]["conditions"]} == {"Ready", "Initialized"}


async def test_a_merge_patch_replaces_a_whole_list(client: KubeClient, namespace: str) -> None:
    await client.create(PODS, a_pod("a"), namespace=namespace)
    await client.patch(PODS, "a", running(), namespace=namespace, subresource="status")

    other = {"status": {"conditions": [{"type": "Initialized", "status": "True"}]}}
    changed = await client.patch(PODS, "a", other, namespace=namespace, subresource="status")

    assert {one["type"] for one in changed["status"]["conditions"]} == {"Initialized"}


async def test_the_status_changes_only_through_its_subresource(
    client: KubeClient, namespace: str
) -> None:
    await client.create(PODS, a_pod("a"), namespace=namespace)

    both = {"metadata": {"labels": {"x": "1"}}, "status": {"phase": "Running"}}
    by_the_front = await client.patch(PODS, "a", both, namespace=namespace)
    assert by_the_front["status"]["phase"] == "Pending"
    assert by_the_front["metadata"]["labels"] == {"x": "1"}

    by_its_own = await client.patch(
        PODS, "a", {"status": {"phase": "Running"}}, namespace=namespace, subresource="status"
    )
    assert by_its_own["status"]["phase"] == "Running"


async def test_a_nodes_capacity_is_patched_as_status(client: KubeClient, namespace: str) -> None:
    name = f"node-of-{namespace}"
    await client.create(NODES, a_node(name))

    patch = {"status": {"capacity": {"example.com/mib": "655360", "cpu": "4"}}}
    await client.patch(NODES, name, patch, subresource="status", how=PatchType.STRATEGIC)
    more = {"status": {"capacity": {"example.com/slots": "8"}}}
    await client.patch(NODES, name, more, subresource="status", how=PatchType.STRATEGIC)

    found = await client.get_object(NODES, name)
    assert found["status"]["capacity"] == {
        "cpu": "4",
        "example.com/mib": "655360",
        "example.com/slots": "8",
    }


async def test_what_a_pod_asked_for_cannot_be_changed(client: KubeClient, namespace: str) -> None:
    await client.create(PODS, a_pod("a"), namespace=namespace)

    with pytest.raises(Invalid) as caught:
        await client.patch(PODS, "a", {"spec": {"nodeName": "n1"}}, namespace=namespace)

    assert caught.value.status == 422


async def test_owners_are_kept_as_they_were_given(client: KubeClient, namespace: str) -> None:
    owner = await client.create(CONFIGMAPS, a_config("owner"), namespace=namespace)
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }

    owned = await client.create(PODS, a_pod("a", ownerReferences=[reference]), namespace=namespace)

    assert owned["metadata"]["ownerReferences"] == [reference]


async def test_the_generation_counts_changes_of_the_spec_alone(
    client: KubeClient, namespace: str
) -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": a_pod("x")["spec"]}
    template["spec"] = {"containers": template["spec"]["containers"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    body = {"metadata": {"name": "a"}, "spec": spec}
    created = await client.create(DEPLOYMENTS, body, namespace=namespace)
    assert created["metadata"]["generation"] == 1

    labelled = {"metadata": {"labels": {"x": "1"}}}
    changed = await client.patch(DEPLOYMENTS, "a", labelled, namespace=namespace)
    assert changed["metadata"]["generation"] == 1

    changed = await client.patch(DEPLOYMENTS, "a", {"spec": {"replicas": 2}}, namespace=namespace)
    assert changed["metadata"]["generation"] == 2


async def test_a_delete_of_somebody_else_conflicts(client: KubeClient, namespace: str) -> None:
    await client.create(PODS, a_pod("a"), namespace=namespace)

    with pytest.raises(Conflict):
        await client.delete(PODS, "a", namespace=namespace, uid="another")

    await client.get(PODS, "a", namespace=namespace)


async def test_a_finalizer_keeps_an_object_until_it_is_taken_off(
    client: KubeClient, namespace: str
) -> None:
    config = a_config("a")
    config["metadata"]["finalizers"] = ["example.com/wait"]
    await client.create(CONFIGMAPS, config, namespace=namespace)

    await client.delete(CONFIGMAPS, "a", namespace=namespace)
    found = await client.get_object(CONFIGMAPS, "a", namespace=namespace)
    assert "deletionTimestamp" in found["metadata"]

    await client.patch(CONFIGMAPS, "a", {"metadata": {"finalizers": None}}, namespace=namespace)
    with pytest.raises(NotFound):
        await client.get(CONFIGMAPS, "a", namespace=namespace)


async def test_a_secret_stores_plain_strings_as_base64(client: KubeClient, namespace: str) -> None:
    secret = {"metadata": {"name": "a"}, "stringData": {"key": "wörd"}}

    created = await client.create(SECRETS, secret, namespace=namespace)

    assert created["type"] == "Opaque"
    assert base64.b64decode(created["data"]["key"]).decode() == "wörd"
    assert "stringData" not in created


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


async def test_a_refusal_is_a_status_object(client: KubeClient, namespace: str) -> None:
    with pytest.raises(KubeError) as caught:
        await client.patch(CONFIGMAPS, "a", {"data": {"x": "1"}}, namespace=namespace)

    assert isinstance(caught.value, NotFound)
    assert caught.value.verb == "PATCH"
    assert caught.value.path == CONFIGMAPS.path(namespace=namespace, name="a")


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
