"""The policies of deploy/ on a real kube-apiserver: in force, and nothing is forged past them.

Each of their rules, for whom it holds and what it says, is below tests/deploy.
"""

import json
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from fracgpu import names
from kube.access import connect_to
from kube.errors import Forbidden
from kube.kinds import (
    CONFIGMAPS,
    JOBS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    VALIDATING_POLICIES,
    VALIDATING_WEBHOOKS,
)
from kube.objects import decode_object
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
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

FORGED = json.dumps({"c": [{"card": "GPU-n1-0", "mib": 24_000}]})


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
    await check_who_may_resize(harness)
    await check_whose_pods_may_use_more_than_they_are_guaranteed(harness)
    await check_what_is_written_in_vain(harness)
    await check_that_the_api_server_finds_nothing_to_warn_of(harness)


async def check_what_is_written_in_vain(harness: Harness) -> None:
    """It is stored, and kubectl shows what to write instead."""
    metadata = {"name": "vain", "annotations": {names.FRACTION: "0.5"}}
    for kind, spec, words in (
        ("Namespace", {}, "fracgpu.io/fraction has no effect on a Namespace: write fracgpu.io/"),
        ("ResourceQuota", {"hard": {names.GPU_MEM: "1"}}, "fracgpu.io/gpu-mem limits nothing: "),
    ):
        body = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}
        said = await harness.kubectl.ask("create", "-n=default", "-f-", stdin=body)
        assert said.ok
        assert f"Warning: Validation failed for {DENIED} 'fracgpu-" in said.error
        assert words in said.error


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


async def check_that_the_api_server_finds_nothing_to_warn_of(harness: Harness) -> None:
    """The type check of every expression by kube-controller-manager finds nothing."""
    await harness.api.start_controller_manager()
    listed = [decode_object(raw) for raw in (await harness.admin.list(VALIDATING_POLICIES)).items]
    for name in [listed_object["metadata"]["name"] for listed_object in listed]:
        await harness.check_types(name)


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
        a_grabber(),
        a_pod("x", volumes=[{"name": "v", "hostPath": {"path": "/dev//nvidia0"}}]),
        a_pod("x", notes={"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
    ):
        assert DENIED in await refusal(admin.create(PODS, pod, namespace="closed"))
    body = {"metadata": {"name": "m"}, "data": {names.ENV_VISIBLE_DEVICES: "all"}}
    assert "(envFrom)" in await refusal(admin.create(CONFIGMAPS, body, namespace="closed"))
    await admin.create(PODS, a_grabber(value="void"), namespace="closed")
    await check_what_changes_a_pod_later(harness)

    # Elsewhere the cluster's default counts, and kubectl shows it.
    answer = await kubectl.ask("create", "-f-", stdin=a_grabber(value="all"))
    assert answer.ok
    assert "Warning: " in answer.error
    assert "leave it out or set" in answer.error


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


def a_grabber(**variable: Any) -> dict[str, Any]:
    """Return a pod that takes cards past the ledger through *variable*; by default all."""
    env = [{"name": names.ENV_VISIBLE_DEVICES, **(variable or {"value": "all"})}]
    return a_pod("grab", containers=[{"name": "c", "image": "x", "env": env}])
