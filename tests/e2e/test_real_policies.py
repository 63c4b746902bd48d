"""The policies of deploy/ on a real kube-apiserver: in force, and nothing is forged past them.

Each of their rules, for whom it holds and what it says, is below tests/deploy.
"""

import json
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from fracgpu.state.move_object import MovePhase
from kube.access import connect_to
from kube.errors import Forbidden
from kube.kinds import (
    CONFIGMAPS,
    JOBS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    VALIDATING_POLICIES,
    VALIDATING_WEBHOOKS,
    Kind,
)
from kube.objects import decode_object
from rebalancer.moves.record import MoveStore
from scheduler.settings import SchedulerSettings
from simulator.demo.definitions import install_definitions
from tests.fakes.clock import NOON
from tests.support.gpu import a_sharing_node
from tests.support.policed import (
    DENIED,
    SYSTEM,
    Harness,
    a_pod,
    annotated,
    is_refused,
    policed_harness,
    refusal,
    workloads,
)
from tests.support.records import a_record
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PATHS_TO_CARDS = (
    "/", "/dev//nvidia0", "/dev/fd/3", "/proc", "/proc/1/root/dev/nvidia0",
    "//proc/./self/root/dev", "/sys", "/sys/class/drm",
)  # fmt: skip
FORGED = json.dumps({"c": [{"card": "GPU-n1-0", "mib": 24_000}]})
KUBELET = ("--as=system:node:n1", "--as-group=system:nodes", "--as-group=system:authenticated")
RUNTIME_CLASSES = Kind("node.k8s.io/v1", "runtimeclasses", "RuntimeClass", namespaced=False)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with policed_harness(tmp_path) as harness:
        yield harness


async def test_no_pod_or_template_gets_a_key_of_ours_but_from_us(harness: Harness) -> None:
    """Without a webhook: the policies are enough."""
    kubectl, admin = harness.kubectl, harness.admin
    for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        await admin.delete(kind, "fracgpu-webhook")
    for key in (names.ASSIGNMENT, names.WIRED, names.RESIZED, names.APPLIED):
        said = await kubectl.refused("create", "-f-", stdin=a_pod("x", notes={key: FORGED}))
        assert key in said
    said = await kubectl.refused(
        "create", "-n=kube-system", "-f-", stdin=a_pod("x", notes={names.GRANTED: "all"})
    )
    assert "written only by the FracGPU webhook" in said
    for kind, body in workloads({names.GRANTED: "all"}):
        answer = await refusal(admin.create(kind, body, namespace="default"))
        assert "leave them out of the pod template." in answer, kind
    for kind, body in workloads({"fracgpu.io/fraction": "0.5"}):
        await admin.create(kind, body, namespace="default")
        forged = body | {"spec": dict(workloads({names.ASSIGNMENT: "{}"}))[kind]["spec"]}
        if kind is not JOBS:  # a Job's template cannot change at all
            answer = await refusal(admin.patch(kind, "w", forged, namespace="default"))
            assert "leave them out of the pod template." in answer, kind
    await check_the_binding_is_the_only_way_in(harness)
    await check_who_may_resize(harness)
    await check_whose_pods_may_use_more_than_they_are_guaranteed(harness)
    await check_that_the_api_server_finds_nothing_to_warn_of(harness)


async def check_who_may_resize(harness: Harness) -> None:
    """Whoever may create resizes in the namespace, and nobody else, of a pod that is there."""
    admin = harness.admin
    said = await harness.kubectl.refused(
        "create", "-f-", stdin=a_pod("y", notes={names.RESIZE: "12Gi"})
    )
    assert "for a pod that runs" in said
    await admin.create(PODS, a_pod("resized"), namespace="default")
    await admin.create(SERVICE_ACCOUNTS, {"metadata": {"name": "who"}}, namespace=SYSTEM)

    async def let(name: str, group: str, resource: str, verb: str) -> None:
        rules = [{"apiGroups": [group], "resources": [resource], "verbs": [verb]}]
        meta = {"metadata": {"name": name}}
        await admin.create(ROLES, {**meta, "rules": rules}, namespace="default")
        role = {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
        who = {"kind": "ServiceAccount", "name": "who", "namespace": SYSTEM}
        binding = {**meta, "roleRef": role, "subjects": [who]}
        await admin.create(ROLE_BINDINGS, binding, namespace="default")

    await let("editor", "", "pods", "patch")
    account = await harness.as_account("who")

    def write(key: str, value: str) -> Awaitable[Any]:
        return account.patch(PODS, "resized", annotated(key, value), namespace="default")

    async def edits() -> bool:  # the API server sees the binding a moment later
        return "Only who may create resizes" in await refusal(write(names.RESIZE, "12Gi"))

    await until(edits, what="the role that may edit")
    await let("resizer", "fracgpu.io", "resizes", "create")

    async def allowed() -> bool:
        try:
            await write(names.RESIZE, "12Gi")
        except Forbidden:
            return False
        return True

    await until(allowed, what="the role that may resize")
    for key in (names.RESIZED, names.APPLIED):
        assert key in await refusal(write(key, "{}"))


async def let_create(harness: Harness, who: str, group: str, resource: str) -> None:
    """Let a service account of the namespace default create a resource there."""
    meta = {"metadata": {"name": f"{who}-{resource}"}}
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": ["create"]}]
    role = {"kind": "Role", "name": f"{who}-{resource}", "apiGroup": "rbac.authorization.k8s.io"}
    subject = {"kind": "ServiceAccount", "name": who, "namespace": "default"}
    binding = {**meta, "roleRef": role, "subjects": [subject]}
    await harness.admin.create(ROLES, {**meta, "rules": rules}, namespace="default")
    await harness.admin.create(ROLE_BINDINGS, binding, namespace="default")


async def check_whose_pods_may_use_more_than_they_are_guaranteed(harness: Harness) -> None:
    """Whoever may create bursts in the namespace, or the pod's account may; nobody else."""
    admin = harness.admin
    for name in ("maker", "runs"):
        await admin.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace="default")
    token = await harness.kubectl("create", "token", "maker", "-n=default")
    opened = connect_to(harness.api.url, token=token.strip(), ca_file=harness.api.ca_file)
    maker = await harness.clients.enter_async_context(opened)

    async def answer(key: str, account: str) -> str:
        pod = a_pod("burst", notes={key: "1"}, serviceAccountName=account)
        try:
            await maker.create(PODS, pod, namespace="default", dry_run=True)
        except Forbidden as error:
            return str(error)
        return ""

    await let_create(harness, "maker", "", "pods")
    for key in (names.MEMORY_LIMIT, names.FRACTION_LIMIT):

        async def refused(key: str = key) -> bool:  # the API server sees the role a moment later
            return "may create bursts of fracgpu.io" in await answer(key, "runs")

        await until(refused, what="the refusal of a pod with a limit")
    await let_create(harness, "runs", "fracgpu.io", "bursts")

    async def allowed() -> bool:
        return not await answer(names.MEMORY_LIMIT, "runs")

    await until(allowed, what="the role of the pod's account")
    assert "may create bursts" in await answer(names.MEMORY_LIMIT, "maker")
    await let_create(harness, "maker", "fracgpu.io", "bursts")

    async def any_account() -> bool:
        return not await answer(names.FRACTION_LIMIT, "maker")

    await until(any_account, what="the role of the pod's creator")


async def an_order(harness: Harness) -> dict[str, Any]:
    """Return a Binding with an assignment, of the term in the scheduler's Lease."""
    lease = {
        "metadata": {"name": SchedulerSettings().lease, "namespace": SYSTEM},
        "spec": {"holderIdentity": "a", "leaseTransitions": 3},
    }
    stored = await harness.admin.create(LEASES, lease)
    term = f"{stored['metadata']['uid']}/3"
    order = {
        "metadata": {
            "annotations": {names.ASSIGNMENT: FORGED, names.TERM: term},
            "labels": {names.ASSIGNED_LABEL: "true"},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    account = await harness.as_account("fracgpu-scheduler")

    async def known() -> bool:  # the API server sees the Lease a moment later
        said = await refusal(account.bind(order, namespace="default", name="no-such-pod"))
        return "not found" in said

    await until(known, what="the policy knows the Lease", limit_s=30)
    return order


async def check_the_binding_is_the_only_way_in(harness: Harness) -> None:
    kubectl, admin = harness.kubectl, harness.admin
    for name in ("bound", "other"):
        await admin.create(PODS, a_pod(name), namespace="default")
    order = await an_order(harness)
    said = await refusal(admin.bind(order, namespace="default", name="bound"))
    assert "comes only from the FracGPU scheduler's service account." in said
    scheduler = await harness.as_account("fracgpu-scheduler")
    await scheduler.bind(order, namespace="default", name="bound")
    await admin.bind({"target": order["target"]}, namespace="default", name="other")
    bound = await admin.get_object(PODS, "bound", namespace="default")
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == (
        "n1",
        order["metadata"]["annotations"],
    )

    only_binding = "comes only with the pod's Binding"
    for words in (
        ["annotate", "pod", "bound", "--overwrite", f"{names.ASSIGNMENT}=x"],
        ["annotate", "pod", "bound", f"{names.ASSIGNMENT}-"],
        ["annotate", "pod", "other", f"{names.ASSIGNMENT}=x"],
        ["patch", "pod", "other", "--subresource=status", "--type=merge",
         "-p", json.dumps(annotated(names.ASSIGNMENT, "x"))],
    ):  # fmt: skip
        assert only_binding in await kubectl.refused(*words), words
    said = await kubectl.refused("annotate", "pod", "bound", f"{names.GRANTED}=x")
    assert "written only by the FracGPU webhook" in said
    await kubectl("annotate", "pod", "bound", "app=x")
    await kubectl(
        *("patch", "pod", "bound", "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": {"phase": "Running"}})),
    )


async def check_that_the_api_server_finds_nothing_to_warn_of(harness: Harness) -> None:
    """The type check of every expression by kube-controller-manager finds nothing."""
    await harness.api.start_controller_manager()
    listed = [decode_object(raw) for raw in (await harness.admin.list(VALIDATING_POLICIES)).items]
    for name in [listed_object["metadata"]["name"] for listed_object in listed]:

        async def checked(name: str = name) -> bool:
            policy = await harness.admin.get_object(VALIDATING_POLICIES, name)
            return "typeChecking" in policy.get("status", {})

        await until(checked, what=f"the type check of {name}", limit_s=60)
        policy = await harness.admin.get_object(VALIDATING_POLICIES, name)
        assert policy["status"]["typeChecking"] == {}, name


async def test_a_nodes_cards_come_only_from_the_agent_of_that_node(harness: Harness) -> None:
    cards = annotated(names.NODE_CARDS, '{"cards":[]}')
    heat = annotated(names.NODE_HEAT, '{"GPU-1":0.1}')
    foreign = annotated(names.NODE_FOREIGN, "{}")
    labels = {"metadata": {"labels": {names.CARD_MODEL_LABEL: "A30", names.DRIVER_LABEL: "570"}}}
    amounts = {names.GPU_MEM: "96000", names.GPU_COUNT: "4"}
    capacity = {"status": {"capacity": amounts}}
    own, other = await harness.agent_of("n1"), await harness.agent_of("n2")
    unbound = await harness.as_account("fracgpu-deviceplugin")

    only_own = "may change only the node it runs on"
    for stranger in (other, unbound):
        for patch in (cards, heat, foreign, labels, {"metadata": {"labels": {"zone": "b"}}}):
            assert only_own in await refusal(stranger.patch(NODES, "n1", patch))
        said = await refusal(stranger.patch(NODES, "n1", capacity, subresource="status"))
        assert only_own in said
    for patch, sentence in (
        (cards, "annotations of a node are written only by the FracGPU agent"),
        (heat, "annotations of a node are written only by the FracGPU agent"),
        (foreign, "annotations of a node are written only by the FracGPU agent"),
        (labels, "fracgpu.io/driver of a node are written only by the FracGPU agent"),
    ):
        assert sentence in await refusal(harness.admin.patch(NODES, "n1", patch))
    for key in (names.NODE_OUT_OF_SERVICE, names.NODE_DRAIN):  # as fracgpu drain does
        for value in ("GPU-n1-0", None):
            await harness.admin.patch(NODES, "n1", annotated(key, value))
    only_agent = "of a node is written only by the FracGPU agent of that node"
    said = await refusal(harness.admin.patch(NODES, "n1", capacity, subresource="status"))
    assert only_agent in said

    for patch in (cards, heat, foreign):
        await own.patch(NODES, "n1", patch)
    await own.patch(NODES, "n1", labels)
    await own.patch(NODES, "n1", capacity, subresource="status")
    await check_kubelet_goes_on(harness, amounts)


async def check_kubelet_goes_on(harness: Harness, amounts: dict[str, str]) -> None:
    """Patch as a real kubelet does: conditions, and capacity copied to allocatable."""
    kubectl = harness.kubectl
    # kubectl also reads what it patches, which system:node does not allow of a status.
    await kubectl(
        *("create", "clusterrole", "nodes", "--verb=get,create,patch"),
        "--resource=nodes,nodes/status",
    )
    await kubectl(
        *("create", "clusterrolebinding", "nodes", "--clusterrole=nodes", "--group=system:nodes")
    )
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    patch = {"status": {"allocatable": amounts, "conditions": ready}}
    for who in (KUBELET, ()):  # the second is a kubelet that is an administrator
        words = ("patch", "node", "n1", "--subresource=status", "--type=strategic", "-p")
        await kubectl(*who, *words, json.dumps(patch))
        more = {"status": {"capacity": {names.GPU_MEM: "97000"}}}
        said = await kubectl.refused(*who, *words, json.dumps(more))
        assert "is written only by the FracGPU agent of that node" in said
        more = {"status": {"allocatable": {names.GPU_MEM: "97000"}}}
        assert "are its capacity or zero." in await kubectl.refused(*who, *words, json.dumps(more))
    await kubectl("label", "node", "n1", "fracgpu.io/share=false", "--overwrite")
    nothing = {names.GPU_MEM: "0", names.GPU_COUNT: "0"}
    recreated = {"status": {"capacity": nothing, "allocatable": nothing}}
    words = ("patch", "node", "n1", "--subresource=status", "--type=strategic", "-p")
    await kubectl(*KUBELET, *words, json.dumps(recreated))
    labels = {names.SHARE_LABEL: "true"}
    new = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n4", "labels": labels}}
    labels[names.CARD_MODEL_LABEL] = "H100"  # as kubelet's --node-labels may set
    said = await kubectl.refused(*KUBELET, "create", "-f-", stdin=new)
    assert "fracgpu.io/driver of a node are written only by the FracGPU agent" in said
    del labels[names.CARD_MODEL_LABEL]
    labels |= dict.fromkeys(names.ISOLATION_LABELS, "true")  # as fracgpu pools prints them
    await kubectl(*KUBELET, "create", "-f-", stdin=new)
    said = await kubectl.refused(*KUBELET, "create", "-f-", stdin=a_sharing_node("n3"))
    assert "annotations of a node are written only by the FracGPU agent" in said


async def test_pods_that_ask_for_nothing_get_nothing(harness: Harness) -> None:
    kubectl, admin = harness.kubectl, harness.admin
    await admin.create(
        NAMESPACES, {"metadata": {"name": "closed", "labels": {"fracgpu.io/devices": "deny"}}}
    )
    await until(
        lambda: is_refused(admin.create(PODS, a_grabber(), namespace="closed", dry_run=True)),
        what="the label of the namespace in force",
        limit_s=60,
    )
    for pod in (
        a_grabber(valueFrom={"configMapKeyRef": {"name": "m", "key": "k"}}),
        *(with_path(path) for path in PATHS_TO_CARDS),
        a_pod("x", notes={"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
        a_pod("x", notes={"io.kubernetes.cri-o.Devices": "/dev/nvidia0"}),
    ):
        assert DENIED in await refusal(admin.create(PODS, pod, namespace="closed"))
    await admin.create(PODS, with_path("/home/proc"), namespace="closed")
    for path in ("/mnt/../dev", "/proc/.."):  # by the API server itself, where we only warn
        said = await refusal(admin.create(PODS, with_path(path), namespace="default"))
        assert "must not contain '..'" in said
    await admin.create(RUNTIME_CLASSES, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    nothing = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "0"}}}
    pod = a_pod("x", containers=[nothing], runtimeClassName="nvidia")
    assert "runtime class of NVIDIA" in await refusal(admin.create(PODS, pod, namespace="closed"))
    # kubelet takes no notice of resources that its node lacks.
    asking = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/any": "1"}}}
    pod = a_pod("x", node="n1", containers=[asking], runtimeClassName="nvidia")
    assert "names its node" in await refusal(admin.create(PODS, pod, namespace="closed"))
    for kind, data in ((CONFIGMAPS, "all"), (SECRETS, "YWxs")):
        body = {"metadata": {"name": "m"}, "data": {names.ENV_VISIBLE_DEVICES: data}}
        said = await refusal(admin.create(kind, body, namespace="closed"))
        assert "(envFrom)" in said
    for kind, data in ((CONFIGMAPS, "void"), (SECRETS, "dm9pZA==")):
        body = {"metadata": {"name": "m"}, "data": {names.ENV_VISIBLE_DEVICES: data}}
        await admin.create(kind, body, namespace="closed")
    await admin.create(PODS, a_grabber(value="void"), namespace="closed")
    await check_what_changes_a_pod_later(harness)

    # Elsewhere the cluster's default counts, and kubectl shows it.
    answer = await kubectl.ask("create", "-f-", stdin=a_grabber(value="all"))
    assert answer.ok
    assert "Warning: " in answer.error
    assert "leave it out or set" in answer.error
    for name in ("fracgpu-devices", "fracgpu-device-environment"):
        deny = '{"spec": {"validationActions": ["Deny"]}}'
        bindings = "validatingadmissionpolicybinding"
        await kubectl("patch", bindings, name, "--type=merge", f"--patch={deny}")
    other = {**a_grabber(), "metadata": {"name": "other"}}
    await until(
        lambda: is_refused(admin.create(PODS, other, namespace="default", dry_run=True)),
        what="the default of the cluster in force",
        limit_s=60,
    )
    await admin.create(PODS, other, namespace="kube-system", dry_run=True)


async def check_what_changes_a_pod_later(harness: Harness) -> None:
    """An ephemeral container, and annotations through each door that has them."""
    admin = harness.admin
    debug = {"name": "d", "image": "x", "env": [{"name": names.ENV_VISIBLE_DEVICES, "value": "0"}]}
    grab = {"spec": {"ephemeralContainers": [debug]}}
    said = await refusal(
        admin.patch(PODS, "grab", grab, namespace="closed", subresource="ephemeralcontainers")
    )
    assert "A container sets NVIDIA_VISIBLE_DEVICES" in said
    del debug["env"]
    await admin.patch(PODS, "grab", grab, namespace="closed", subresource="ephemeralcontainers")
    order = annotated("cdi.k8s.io/x", "nvidia.com/gpu=all")
    for subresource in (None, "status"):
        said = await refusal(
            admin.patch(PODS, "grab", order, namespace="closed", subresource=subresource)
        )
        assert "An annotation such as cdi.k8s.io/" in said
    binding = {**order, "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}}
    said = await refusal(admin.bind(binding, namespace="closed", name="grab"))
    assert "An annotation such as cdi.k8s.io/" in said
    await admin.bind({"target": binding["target"]}, namespace="closed", name="grab")
    for subresource in (None, "status"):
        note = annotated("app", str(subresource))
        await admin.patch(PODS, "grab", note, namespace="closed", subresource=subresource)


@pytest.mark.parametrize(
    "labels", [{}, {"fracgpu.io/devices": "deny", "fracgpu.io/dialects": "all"}], ids=["", "all"]
)
async def test_no_pod_is_refused_for_the_number_of_its_annotations(
    harness: Harness, labels: dict[str, str]
) -> None:
    """As found: 5,000 annotations were refused, because CEL limits what an expression may cost."""
    await harness.admin.create(NAMESPACES, {"metadata": {"name": "many", "labels": labels}})
    ordinary = {f"example.com/an-ordinary-annotation-{n:05}": "value" for n in range(5_000)}
    one_order = {**ordinary, "volcano.sh/queue": "a"}
    longest = {f"{'a' * 52}.example/{n:05}": "" for n in range(3_850)}  # 256 KiB of keys alone
    shortest = {f"{n:x}": "" for n in range(20_000)}

    for number, notes in enumerate((ordinary, one_order, longest, shortest)):
        await harness.admin.create(PODS, a_pod(f"p{number}", notes=notes), namespace="many")
        await harness.admin.patch(
            PODS, f"p{number}", annotated("a", "b"), namespace="many", subresource="status"
        )


def with_path(path: str) -> dict[str, Any]:
    """Return a pod that mounts *path* of its node."""
    return a_pod("path", volumes=[{"name": "v", "hostPath": {"path": path}}])


def a_grabber(**variable: Any) -> dict[str, Any]:
    """Return a pod that takes cards past the ledger through *variable*; by default all."""
    env = [{"name": names.ENV_VISIBLE_DEVICES, **(variable or {"value": "all"})}]
    return a_pod("grab", containers=[{"name": "c", "image": "x", "env": env}])


async def test_the_rebalancer_writes_cordons_evictions_and_its_own_records_and_nothing_else(
    harness: Harness,
) -> None:
    rebalancer, admin = await harness.as_account("fracgpu-rebalancer"), harness.admin
    said = await refusal(rebalancer.patch(NODES, "n1", {"spec": {"unschedulable": True}}))
    assert "may change only the annotation fracgpu.io/cordons of a node" in said
    status = {"status": {"capacity": {"cpu": "1"}}}
    await is_forbidden_by_rbac(rebalancer.patch(NODES, "n1", status, subresource="status"))
    await rebalancer.patch(NODES, "n1", annotated(names.NODE_CORDONS, "{}"))
    await rebalancer.patch(NODES, "n1", annotated(names.NODE_CORDONS, None))

    for name in ("kept", "moved"):
        await admin.create(PODS, a_pod(name), namespace="default")
    said = await refusal(rebalancer.patch(PODS, "kept", annotated("a", "b"), namespace="default"))
    assert "may change only the hash label of a pod" in said
    # A key of ours would be shown to the webhook, which is not there.
    cost = annotated("controller.kubernetes.io/pod-deletion-cost", "-1")
    await rebalancer.patch(PODS, "kept", cost, namespace="default")
    await is_forbidden_by_rbac(rebalancer.delete(PODS, "kept", namespace="default"))
    await is_forbidden_by_rbac(rebalancer.create(PODS, a_pod("x"), namespace="default"))
    moved = await admin.get_object(PODS, "moved", namespace="default")
    await rebalancer.evict(namespace="default", name="moved", uid=moved["metadata"]["uid"])

    config = {"data": {"rebalancer": "mode: active"}}
    await is_forbidden_by_rbac(
        rebalancer.patch(CONFIGMAPS, names.CONFIG_MAP, config, namespace=SYSTEM)
    )
    found = await admin.get_object(CONFIGMAPS, names.CONFIG_MAP, namespace=SYSTEM)
    await is_forbidden_by_rbac(rebalancer.replace(CONFIGMAPS, {**found, **config}))
    await admin.delete(CONFIGMAPS, names.CONFIG_MAP, namespace=SYSTEM)
    another = {"metadata": {"name": "x", "namespace": SYSTEM}}
    await is_forbidden_by_rbac(rebalancer.create(CONFIGMAPS, another))
    assert "may create only its own Lease" in await refusal(rebalancer.create(LEASES, another))
    store = MoveStore(rebalancer)
    await install_definitions(admin)
    await store.load()
    stored = await store.put(a_record())
    await store.forget(await store.put(stored.to(MovePhase.RESERVED, now=NOON)))
    lease = {"metadata": {"name": "fracgpu-rebalancer", "namespace": SYSTEM}}
    await rebalancer.create(LEASES, lease)


async def is_forbidden_by_rbac(request: Any) -> None:
    with pytest.raises(Forbidden) as caught:
        await request
    assert DENIED not in str(caught.value)
    assert "cannot" in str(caught.value)
