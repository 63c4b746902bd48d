"""The steps of an uninstallation, on the embedded API server."""

from collections.abc import Mapping
from typing import Any

import pytest

from cli.removal import OURS, Left, Removal, StillSharesError, make_plan
from fracgpu import names
from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import (
    CLUSTER_ROLES,
    CONFIGMAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    LEASES,
    MOVES,
    NAMESPACES,
    NODES,
    PDBS,
    PODS,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    VALIDATING_POLICIES,
    Kind,
)
from process.clock import SystemClock
from simulator.demo.definitions import install_definitions
from simulator.demo.service_accounts import DEPLOY
from tests.cli.live_cluster import NODE, a_pod, bind, furnish
from tests.support.moves import move_body, move_of
from tests.support.yaml_files import read_documents

LABEL, _, VALUE = OURS.partition("=")
ROLE_OF_OTHERS = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}


def labelled(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {LABEL: VALUE}}, **fields}


@pytest.fixture
async def cluster(kube: KubeClient) -> KubeClient:
    """Create a node that shares, objects of ours and of others."""
    await furnish(kube)
    status = {"capacity": {names.GPU_MEM: "48000", names.GPU_SLOT: "0"}}
    await kube.patch(NODES, NODE, {"status": status}, subresource="status")
    await kube.create(NODES, {"metadata": {"name": "other", "labels": {"zone": "a"}}})
    await kube.create(NAMESPACES, labelled("fracgpu-system"))
    await kube.create(CLUSTER_ROLES, labelled("fracgpu-webhook", rules=[]))
    await kube.create(CLUSTER_ROLES, {"metadata": {"name": "somebodys"}, "rules": []})
    return kube


async def removed(kube: KubeClient) -> tuple[Left, list[str]]:
    said: list[str] = []
    removal = Removal(kube, SystemClock(), on_progress=said.append, limit_s=3)
    return await removal.run(await make_plan(kube)), said


async def test_the_plan_has_what_is_ours_and_nothing_else(cluster: KubeClient) -> None:
    await bind(cluster, await a_pod(cluster, "runs", mib=1000), card=0, mib=1000)

    plan = await make_plan(cluster)

    assert list(plan.nodes) == [NODE]
    assert names.SHARE_LABEL in plan.nodes[NODE].labels
    assert set(plan.nodes[NODE].resources) == {
        names.GPU_MEM,
        names.GPU_COUNT,
        names.GPU_SLOT,
    }
    assert [found.key for found in plan.objects] == ["fracgpu-webhook"]
    assert list(plan.namespaces) == ["fracgpu-system"]
    assert list(plan.pods) == ["default/runs"]


async def test_everything_of_the_plan_is_removed_and_pods_are_left_alone(
    cluster: KubeClient,
) -> None:
    await bind(cluster, await a_pod(cluster, "runs", mib=1000), card=0, mib=1000)

    left, said = await removed(cluster)

    node = await cluster.get_object(NODES, NODE)
    assert [label for label in node["metadata"]["labels"] if label.startswith(names.PREFIX)] == []
    assert names.NODE_CARDS not in node["metadata"].get("annotations", {})
    assert [
        resource for resource in node["status"]["capacity"] if resource.startswith(names.PREFIX)
    ] == []
    assert left.nodes == {}
    assert list(left.without_agent) == [NODE]
    roles = (await cluster.list(CLUSTER_ROLES)).items
    assert any(b'"somebodys"' in bytes(role) for role in roles)
    assert not any(b'"fracgpu-webhook"' in bytes(role) for role in roles)
    assert len((await cluster.list(PODS)).items) == 1
    assert "deleted Namespace fracgpu-system" in said


async def test_the_moves_go_with_their_definition(cluster: KubeClient) -> None:
    await install_definitions(cluster)
    labels = {"metadata": {"labels": {LABEL: VALUE}}}  # as kustomize and the chart write it
    await cluster.patch(CUSTOM_RESOURCE_DEFINITIONS, "moves.fracgpu.io", labels)
    await cluster.create(MOVES, move_body(move_of()))

    await removed(cluster)

    assert (await cluster.list(CUSTOM_RESOURCE_DEFINITIONS)).items == []
    with pytest.raises(NotFound):
        await cluster.list(MOVES)


async def test_kubelets_slots_that_are_not_zero_yet_are_waited_for_and_then_named(
    kube: KubeClient,
) -> None:
    await furnish(kube)
    status = {"capacity": {names.GPU_SLOT: "64"}}
    await kube.patch(NODES, NODE, {"status": status}, subresource="status")

    left, said = await removed(kube)

    assert left.nodes == {NODE: [f"capacity {names.GPU_SLOT}"]}
    assert left.unfinished
    assert said[-1] == "waiting for kubelets to drop the slots, up to five minutes"


async def test_slots_alone_are_waited_for_and_no_agent_is_missed(kube: KubeClient) -> None:
    await kube.create(NODES, {"metadata": {"name": NODE}})
    status = {"capacity": {names.GPU_SLOT: "64"}}
    await kube.patch(NODES, NODE, {"status": status}, subresource="status")

    plan = await make_plan(kube)
    left, _ = await removed(kube)

    assert plan.on_nodes == {NODE: (f"capacity {names.GPU_SLOT}",)}
    assert left.nodes == {NODE: [f"capacity {names.GPU_SLOT}"]}
    assert left.without_agent == []

    zero = {"capacity": {names.GPU_SLOT: "0"}}
    await kube.patch(NODES, NODE, {"status": zero}, subresource="status")
    left, _ = await removed(kube)

    assert not left.unfinished
    assert not await make_plan(kube)


async def test_the_namespace_that_helm_created_without_our_label_is_removed(
    kube: KubeClient,
) -> None:
    for name in (names.SYSTEM_NAMESPACE, "somebodys"):
        await kube.create(NAMESPACES, {"metadata": {"name": name}})

    plan = await make_plan(kube)
    _, said = await removed(kube)

    assert list(plan.namespaces) == [names.SYSTEM_NAMESPACE]
    assert said == [f"deleted Namespace {names.SYSTEM_NAMESPACE}"]


@pytest.mark.parametrize("labels", [{}, {LABEL: VALUE}], ids=["helm", "namespace.create"])
async def test_a_namespace_in_which_others_live_stays_and_only_what_is_ours_goes(
    kube: KubeClient, labels: dict[str, str]
) -> None:
    system = names.SYSTEM_NAMESPACE
    await kube.create(NAMESPACES, {"metadata": {"name": system, "labels": labels}})
    for name in ("kube-root-ca.crt", names.CONFIG_MAP):  # no reason to stay
        await kube.create(CONFIGMAPS, {"metadata": {"name": name, "namespace": system}})
    assert list((await make_plan(kube)).namespaces) == [system]

    pod = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    owner = {"apiVersion": "x/v1", "kind": "Db", "name": "db", "uid": "1", "controller": True}
    meta = {"name": "somebodys", "namespace": system, "ownerReferences": [owner]}
    await kube.create(PODS, {"metadata": meta, **pod})
    ours = {"namespace": system, "labels": {LABEL: VALUE}}
    web = {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, **pod},
    }
    await kube.create(DEPLOYMENTS, {"metadata": {"name": "x-webhook", **ours}, "spec": web})
    await kube.create(LEASES, {"metadata": {"name": "fracgpu-scheduler", "namespace": system}})

    plan = await make_plan(kube)
    left, said = await removed(kube)

    assert list(plan.namespaces) == []
    assert dict(plan.shared) == {system: ["Pod somebodys"]}
    assert said == [
        f"deleted Deployment {system}/x-webhook",
        f"deleted Lease {system}/fracgpu-scheduler",
    ]
    assert not left.unfinished
    assert (await kube.get_object(PODS, "somebodys", namespace=system))["metadata"]["name"]
    assert not await make_plan(kube)


async def test_what_a_user_named_like_ours_is_the_users(kube: KubeClient) -> None:
    system, meta = names.SYSTEM_NAMESPACE, {"namespace": names.SYSTEM_NAMESPACE}
    mine = {"name": "fracgpu-mine", **meta}
    await kube.create(NAMESPACES, labelled(system))
    await kube.create(CONFIGMAPS, {"metadata": mine})
    tls = {"tls.crt": "", "tls.key": ""}
    await kube.create(SECRETS, {"metadata": mine, "type": "kubernetes.io/tls", "data": tls})
    await kube.create(LEASES, {"metadata": mine})
    ours = {**labelled("fracgpu-ca"), "type": "kubernetes.io/tls", "data": tls}
    await kube.create(SECRETS, ours | {"metadata": {**ours["metadata"], **meta}})

    plan = await make_plan(kube)
    _, said = await removed(kube)

    assert dict(plan.shared) == {system: ["ConfigMap fracgpu-mine", "Secret fracgpu-mine"]}
    assert said == [f"deleted Secret {system}/fracgpu-ca"]
    for kind in (CONFIGMAPS, SECRETS, LEASES):
        assert await kube.get_object(kind, "fracgpu-mine", namespace=system)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ROLES, {"rules": []}),
        (ROLE_BINDINGS, {"roleRef": ROLE_OF_OTHERS, "subjects": []}),
        (SERVICE_ACCOUNTS, {}),
        (RESOURCE_QUOTAS, {"spec": {"hard": {"pods": "1"}}}),
        (PDBS, {"spec": {"minAvailable": 1, "selector": {}}}),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
async def test_a_namespace_stays_for_whatever_a_user_has_made_there(
    kube: KubeClient, kind: Kind, fields: dict[str, Any]
) -> None:
    system = names.SYSTEM_NAMESPACE
    await kube.create(NAMESPACES, labelled(system))
    for each, name in (
        (SERVICE_ACCOUNTS, "builder"),
        (ROLE_BINDINGS, "system:image-pullers"),
    ):  # as OpenShift does
        more = {"roleRef": ROLE_OF_OTHERS, "subjects": []} if each is ROLE_BINDINGS else {}
        await kube.create(each, {"metadata": {"name": name, "namespace": system}, **more})
    assert list((await make_plan(kube)).namespaces) == [system]

    await kube.create(kind, {"metadata": {"name": "somebodys", "namespace": system}, **fields})

    plan = await make_plan(kube)
    assert list(plan.namespaces) == []
    assert dict(plan.shared) == {system: [f"{kind.kind} somebodys"]}


async def test_a_node_that_goes_meanwhile_stops_nothing(cluster: KubeClient) -> None:
    plan = await make_plan(cluster)
    await cluster.delete(NODES, NODE)

    left = await Removal(cluster, SystemClock(), on_progress=lambda _: None, limit_s=3).run(plan)

    assert left.nodes == {}
    assert not (await make_plan(cluster)).objects


async def test_one_node_is_cleaned_only_when_it_no_longer_shares(cluster: KubeClient) -> None:
    with pytest.raises(StillSharesError, match=r"kubectl label node gpu-1 fracgpu\.io/share-"):
        await make_plan(cluster, node=NODE)

    patch = {"metadata": {"labels": {names.SHARE_LABEL: None}}}
    await cluster.patch(NODES, NODE, patch)
    plan = await make_plan(cluster, node=NODE)

    assert list(plan.nodes) == [NODE]
    assert not plan.objects
    assert not plan.namespaces


async def test_only_what_is_on_nodes_is_removed_and_kubelets_slots_are_not_waited_for(
    cluster: KubeClient,
) -> None:
    slots = {"capacity": {names.GPU_SLOT: "64"}}
    await cluster.patch(NODES, NODE, {"status": slots}, subresource="status")
    plan = await make_plan(cluster, nodes_only=True)
    assert (list(plan.nodes), plan.objects, plan.namespaces) == ([NODE], (), ())

    said: list[str] = []
    left = await Removal(cluster, SystemClock(), on_progress=said.append, limit_s=3).clean_nodes(
        plan
    )

    assert left == Left(without_agent=[NODE])
    assert not (await make_plan(cluster, nodes_only=True)).nodes
    assert (await make_plan(cluster)).objects
    assert "waiting for kubelets" not in "".join(said)


async def test_a_cluster_without_us_has_no_plan(kube: KubeClient) -> None:
    assert not await make_plan(kube)


def documents() -> list[Mapping[str, Any]]:
    return [
        document
        for file in sorted(DEPLOY.glob("*.yaml"))
        for document in read_documents(file.read_text())
        if document
    ]


def test_every_object_of_deploy_without_a_namespace_is_of_a_kind_that_is_looked_for() -> None:
    from cli import removal  # noqa: PLC0415 - its table is what is tested

    known = {kind.kind for kind in removal._KINDS} | {"Namespace"}
    apart = {
        document["kind"]
        for document in documents()
        if document.get("metadata", {}).get("namespace") != names.SYSTEM_NAMESPACE
        and document["kind"] not in ("Kustomization", "KubeSchedulerConfiguration")
    }

    assert apart - known == set()
    unlabelled = [
        document["metadata"]["name"]
        for document in documents()
        if "metadata" in document and document["metadata"]["labels"].get(LABEL) != VALUE
    ]
    assert unlabelled == []
    assert VALIDATING_POLICIES.kind in apart
