"""The whole role with an API server, embedded and real, registered as in deploy/."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fracgpu import names
from fracgpu.request.grant_note import Seal, read_grant_note, words_of
from fracgpu.state.pod_info import decode_pod_info
from kube.errors import Invalid, KubeError
from kube.kinds import (
    CONFIGMAPS,
    DEPLOYMENTS,
    NAMESPACES,
    PODS,
)
from process.clock import SystemClock
from tests.support.gpu import a_sharing_node, register
from tests.support.waiting import until
from tests.webhook.builders import Json, a_container, a_pod
from tests.webhook.cluster import Harness, a_harness, an_api_server, running, says


@pytest.fixture(params=["simulator", pytest.param("real", marks=pytest.mark.e2e)])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    async with (
        an_api_server(request.param, tmp_path) as kubeconfig,
        a_harness(kubeconfig) as harness,
    ):
        yield harness


async def test_the_webhook_is_ready_only_with_an_inventory_and_a_certificate(
    cluster: Harness,
) -> None:
    async with running(cluster):
        await says(
            cluster, "503", "inventory: ok", "certificate: there is no Secret fracgpu-system/"
        )

        await cluster.give_certificate()

        await says(cluster, "200", "certificate: ok")


@asynccontextmanager
async def serving(cluster: Harness, *ready: str) -> AsyncIterator[None]:
    """Run the webhook with a certificate, registered, in a cluster with one sharing node."""
    await register(cluster.client, a_sharing_node("gpu-1"))
    async with running(cluster):
        await cluster.give_certificate()
        await says(cluster, "200", *ready)
        await cluster.register()
        yield


async def test_pods_are_granted_refused_and_guarded_through_the_api_server(
    cluster: Harness,
) -> None:
    async with serving(cluster):
        granted = await cluster.create(a_pod(fraction="0.5"))
        asserts_granted(granted)
        await asserts_refused(cluster)
        await asserts_guarded(cluster)
        await asserts_workloads_judged(cluster)
        await asserts_dialects_understood(cluster)
    # The webhook is down: the API server refuses pods with requests, and accepts all others.
    await cluster.create(a_pod(), name="without-us")
    with pytest.raises(KubeError, match="failed calling webhook"):
        await cluster.create(a_pod(fraction="0.5"), name="asks")


async def test_where_kube_scheduler_allocates_the_cards_each_pod_names_a_claim_of_its_own(
    cluster: Harness,
) -> None:
    meta = {"name": names.CONFIG_MAP, "namespace": cluster.settings.namespace}
    await cluster.client.create(CONFIGMAPS, {"metadata": meta, "data": {"wiring": "claims"}})
    async with serving(cluster):
        limits = {"limits": {names.GPU_MEM: "8000"}}
        stored = [
            await cluster.create(a_pod(fraction="0.5"), name="one"),
            await cluster.create(a_pod(a_container(resources=limits)), name="two"),
        ]
        with pytest.raises(KubeError, match="want no resize: with `wiring: claims`"):
            await cluster.create(a_pod(memory="8Gi", resize="9Gi"), name="three")
    infos = [decode_pod_info(json.dumps(pod).encode()) for pod in stored]
    assert len({info.device_claim for info in infos}) == 2
    for pod, info, mib in zip(stored, infos, (12_000, 8_000), strict=True):
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        assert "affinity" not in pod["spec"]
        resources = pod["spec"]["containers"][0]["resources"]
        assert resources["claims"] == [{"name": "fracgpu", "request": "train"}]
        assert names.GPU_MEM not in {**resources.get("limits", {}), **resources.get("requests", {})}
        assert info.device_claim.startswith(names.CLAIM_PREFIX)
        assert info.need is not None
        assert [each.mib for each in info.need.containers] == [mib]


async def test_where_a_cluster_has_both_wirings_the_namespaces_label_says_which(
    cluster: Harness,
) -> None:
    meta = {"name": names.CONFIG_MAP, "namespace": cluster.settings.namespace}
    data = {"wiring": "devicePlugin+claims"}
    await cluster.client.create(CONFIGMAPS, {"metadata": meta, "data": data})
    async with serving(cluster):

        async def admitted(wiring: str | None) -> Json:
            labels = {"metadata": {"labels": {names.WIRING_LABEL: wiring}}}
            await cluster.client.patch(NAMESPACES, "default", labels)
            pod: Json = {}

            async def followed() -> bool:
                nonlocal pod
                pod = await cluster.create(a_pod(fraction="0.5"), name=f"p-{next(numbers)}")
                return bool(pod["spec"].get("resourceClaims")) is (wiring == "claims")

            await until(followed, what=f"a pod of a namespace labelled {wiring}")
            return pod

        numbers = itertools.count()
        slots, claims = await admitted(None), await admitted("claims")
        assert slots["spec"]["schedulerName"] == names.SCHEDULER_NAME
        assert slots["spec"]["containers"][0]["resources"]["limits"][names.GPU_MEM] == "12k"
        assert claims["spec"]["schedulerName"] == "default-scheduler"
        again = await admitted("devicePlugin")
        assert again["spec"]["schedulerName"] == names.SCHEDULER_NAME
        thief = a_pod(fraction="0.5")
        entry = {"name": "c", "resourceClaimName": f"{names.CLAIM_PREFIX}0123456789"}
        thief["spec"]["resourceClaims"] = [entry]
        with pytest.raises(KubeError, match="want a claim of your own"):
            await cluster.create(thief, name="thief")

        async def refused() -> bool:
            try:
                await cluster.create(a_pod(fraction="0.5"), name=f"p-{next(numbers)}")
            except KubeError as error:
                return "want devicePlugin or claims, as the key wiring" in str(error)
            return False

        await cluster.client.patch(
            NAMESPACES, "default", {"metadata": {"labels": {names.WIRING_LABEL: "both"}}}
        )
        await until(refused, what="a label that names no wiring refuses pods")


async def test_a_grant_in_flight_keeps_what_it_says_when_the_certificate_is_renewed(
    cluster: Harness,
) -> None:
    """A later webhook causes a reinvocation in the same request, by then with another key."""
    async with serving(cluster):
        granted = await cluster.create(a_pod(fraction="0.5"))
        written = granted["metadata"]["annotations"][names.GRANTED]
        said = read_grant_note(written)
        assert said is not None
        assert said.data.schedulers[1:] == ("fracgpu-scheduler",)

        await cluster.renew_certificate()

        again = {"metadata": {"annotations": granted["metadata"]["annotations"]}}
        looked_at = await cluster.create({**again, "spec": granted["spec"]}, name="again")
        assert looked_at["metadata"]["annotations"][names.GRANTED] == written
        # A seal with an unknown key is ignored.
        forged = dict(granted["metadata"]["annotations"])
        forged[names.GRANTED] = Seal(key=b"guess", scope="default", now=SystemClock().now()).write(
            said
        )
        taken = await cluster.create(
            {"metadata": {"annotations": forged}, "spec": granted["spec"]}, name="forged"
        )
        assert taken["metadata"]["annotations"][names.GRANTED] != forged[names.GRANTED]


def asserts_granted(pod: Json) -> None:
    view = decode_pod_info(json.dumps(pod).encode())
    assert view.need_problem == ""
    assert view.need is not None
    assert [
        (container.name, container.cards, container.mib) for container in view.need.containers
    ] == [("train", 1, 12_000)]
    assert view.scheduler_name == "fracgpu-scheduler"
    words = "train: 12000 MiB on 1 card (0.5 of a card that shares 24000 MiB)"
    assert words_of(view.annotations[names.GRANTED]) == words
    # What the API server made of "12000", and why the core reads such amounts.
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources == {
        "limits": {"fracgpu.io/gpu-mem": "12k", "fracgpu.io/gpu-slot": "1"},
        "requests": {"fracgpu.io/gpu-mem": "12k", "fracgpu.io/gpu-slot": "1"},
    }


FORGED = (
    "train: 40960 MiB on 1 card (0.5 of a card that shares 81920 MiB)\n"
    '{"containers":{"train":{"cards":1,"mib":40960}},"classMib":81920}'
)


async def asserts_refused(cluster: Harness) -> None:
    limits = {"limits": {"fracgpu.io/gpu-mem": "9000"}}
    for pod, words in (
        (a_pod(fractoin="0.5"), "did you mean fracgpu.io/fraction?"),
        (a_pod(memory="100Gi"), "'24000Mi' would fit"),
        (a_pod(a_container(resources=limits), fraction="0.5"), "want 12000, as its annotations"),
        (a_pod(fraction="0.5", assignment="{}"), "only FracGPU writes it"),
        (a_pod(fraction="0.5", granted=FORGED), "only the webhook writes it"),
    ):
        with pytest.raises(Invalid) as refused:
            await cluster.create(pod, name="refused")
        assert words in str(refused.value)
    plain = await cluster.create(a_pod(), name="plain")
    assert plain["spec"]["schedulerName"] == "default-scheduler"
    assert "annotations" not in plain["metadata"]


async def asserts_guarded(cluster: Harness) -> None:
    """Assert that the stored pod p keeps what only FracGPU may write, and is otherwise mutable."""

    async def annotate(key: str, value: str) -> None:
        patch = {"metadata": {"annotations": {key: value}}}
        await cluster.client.patch(PODS, "p", patch, namespace="default")

    for key in (names.ASSIGNMENT, names.WIRED, names.GRANTED, names.FRACTION):
        with pytest.raises(Invalid, match="want no change"):
            await annotate(key, "0.1")
    await annotate("team", "vision")
    await annotate(names.REBALANCE, "never")
    stored = await cluster.client.get_object(PODS, "p", namespace="default")
    assert stored["metadata"]["annotations"]["team"] == "vision"
    # A copy of a granted pod, created again, gets the same grant.
    copied = {"metadata": {"annotations": dict(stored["metadata"]["annotations"])}}
    spec = {key: value for key, value in stored["spec"].items() if key != "nodeName"}
    again = await cluster.create({**copied, "spec": spec}, name="copy")
    assert again["spec"]["affinity"] == stored["spec"]["affinity"]
    assert again["metadata"]["annotations"] == stored["metadata"]["annotations"]


async def asserts_workloads_judged(cluster: Harness) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.deploy(a_pod(memory="100Gi"))
    assert "in spec.template: fracgpu.io/memory of container 'train' is '102400Mi'" in str(
        refused.value
    )
    created = await cluster.deploy(a_pod(fraction="0.5"), replicas=0)
    annotations = created["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {names.FRACTION: "0.5"}
    scale = {"spec": {"replicas": 1}}
    await cluster.client.patch(DEPLOYMENTS, "w", scale, namespace="default")
    bad = {"spec": {"template": {"metadata": {"annotations": {names.FRACTION: "7"}}}}}
    with pytest.raises(Invalid, match=r"in spec\.template: fracgpu\.io/fraction is '7'"):
        await cluster.client.patch(DEPLOYMENTS, "w", bad, namespace="default")


async def asserts_dialects_understood(cluster: Harness) -> None:
    """Assert that a namespace's label enables a dialect; elsewhere its pods are unchanged."""
    limits = {"aliyun.com/gpu-mem": "4"}
    spoken = a_container(resources={"limits": limits, "requests": limits})
    elsewhere = await cluster.create(a_pod(spoken), name="elsewhere")
    assert elsewhere["spec"]["containers"][0]["resources"]["limits"] == limits

    labels = {names.DIALECTS_LABEL: "gpushare"}
    await cluster.client.patch(NAMESPACES, "default", {"metadata": {"labels": labels}})

    async def taken_over() -> bool:
        pod = a_pod(spoken)
        pod["metadata"] |= {"name": "spoken", "namespace": "default"}
        observed = await cluster.client.create(PODS, pod, dry_run=True)
        return "aliyun.com/gpu-mem" not in observed["spec"]["containers"][0]["resources"]["limits"]

    await until(taken_over, what="the label turns the dialect on")
    pod = await cluster.create(a_pod(spoken), name="spoken")
    ours = {"fracgpu.io/gpu-mem": "4096", "fracgpu.io/gpu-slot": "1"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": ours, "requests": ours}
    annotations = pod["metadata"]["annotations"]
    assert {**annotations, names.GRANTED: words_of(annotations[names.GRANTED])} == {
        names.MEMORY: "4096Mi",
        names.GRANTED: "train: 4096 MiB on 1 card; in other words: "
        "train from gpushare: aliyun.com/gpu-mem=4",
    }


async def test_an_edit_of_the_administrator_counts_at_once(cluster: Harness) -> None:
    async with serving(cluster, "configuration: ok", "namespaces: ok"):
        too_large = a_pod(memory="100Gi")
        with pytest.raises(Invalid):
            await cluster.create(too_large, name="large")

        await cluster.client.create(
            CONFIGMAPS,
            {
                "metadata": {"name": names.CONFIG_MAP, "namespace": cluster.settings.namespace},
                "data": {"admission": "whenNoCapacity: wait"},
            },
        )

        async def admitted() -> bool:
            try:
                await cluster.create(too_large, name="large")
            except Invalid:
                return False
            return True

        await until(admitted, what="the pod may wait")
