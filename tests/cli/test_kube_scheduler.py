"""What kube-scheduler's filters have against a waiting pod, and what of it could not be read."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from cli.cluster import ObservedCluster, cluster_state_of
from cli.kube_scheduler import Guards, read_guards, with_refusals
from fracgpu import names
from fracgpu.explain.explanation import explain
from fracgpu.explain.subject import read_subject
from fracgpu.k8s.scheduling.volumes import Storage, Volume, VolumeClaim
from fracgpu.request.need import Strategy
from fracgpu.state.cluster_state import ClusterState, ExplainedPod
from fracgpu.state.node_info import observe_node
from kube.client import KubeClient
from kube.errors import Forbidden
from kube.kinds import (
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    Kind,
)
from kube.objects import ObjectList
from tests.support.explaining import NOON
from tests.support.gpu import a_gpu_pod, a_sharing_node

WITH_CLAIM: dict[str, Any] = {
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
}
CLAIM = ("default", "data")


def subject(name: str = "p", **spec: Any) -> ExplainedPod:
    body = a_gpu_pod(name, **spec)
    body["metadata"]["uid"] = f"uid-{name}"
    return read_subject(json.dumps(body).encode())


def judged(pod: ExplainedPod, *others: ExplainedPod, guards: Guards | None = None) -> ClusterState:
    """Return the state of a cluster of two nodes with what kube-scheduler refuses."""
    nodes = tuple(observe_node(json.dumps(a_sharing_node(name)).encode()) for name in "nm")
    observed = ObservedCluster(pods=(pod, *others), nodes=nodes)
    state = cluster_state_of(
        observed, pod, schedulers=[names.SCHEDULER_NAME], strategy=Strategy.PACK, now=NOON
    )
    return with_refusals(state, pod, observed, guards or Guards(storage=Storage()))


def refusals(state: ClusterState) -> dict[str, tuple[str, ...]]:
    return {name: found.refused_by for name, found in state.node_constraints.items()}


def with_port(name: str, node: str = "") -> ExplainedPod:
    spec: dict[str, Any] = {"nodeName": node} if node else {}
    body = a_gpu_pod(name, **spec)
    body["metadata"]["uid"] = f"uid-{name}"
    body["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    return read_subject(json.dumps(body).encode())


def test_a_port_that_a_pod_of_the_node_has_keeps_the_pod_off_it() -> None:
    state = judged(with_port("p"), with_port("other", "n"))

    assert refusals(state) == {"n": ("host ports",), "m": ()}
    assert state.notes == ()


def test_a_volume_that_one_node_reaches_keeps_the_pod_off_the_others() -> None:
    storage = Storage(
        claims={CLAIM: VolumeClaim(volume="v", modes=frozenset({"ReadWriteOnce"}))},
        volumes={"v": Volume()},
    )
    user = subject("user", nodeName="n", **WITH_CLAIM)

    state = judged(subject(**WITH_CLAIM), user, guards=Guards(storage=storage))

    assert refusals(state) == {"n": (), "m": ("a volume that only one node can attach",)}


@pytest.mark.parametrize(
    ("storage_class", "delayed"),
    [("at-once", {"at-once": False, "later": True}), ("", {"later": True}), ("gone", {})],
)
def test_a_claim_that_is_bound_before_a_node_is_chosen_keeps_its_pod_waiting(
    storage_class: str, delayed: dict[str, bool]
) -> None:
    storage = Storage(claims={CLAIM: VolumeClaim(storage_class=storage_class)})
    pod = subject(**WITH_CLAIM)

    state = judged(pod, guards=Guards(storage=storage, delayed=delayed))

    assert state.unbound == ("data",)
    assert state.notes == ()
    assert explain(pod, state).blockers[-1] == (
        "its claim data is not bound to a volume: its storage class binds at once, and "
        "kube-scheduler waits for that; see kubectl describe pvc data"
    )


@pytest.mark.parametrize("delayed", [{"later": True}, None], ids=["delayed", "unknown"])
def test_a_claim_whose_volume_is_made_for_the_chosen_node_refuses_none(
    delayed: dict[str, bool] | None,
) -> None:
    storage = Storage(claims={CLAIM: VolumeClaim(storage_class="later")})

    state = judged(subject(**WITH_CLAIM), guards=Guards(storage=storage, delayed=delayed))

    assert refusals(state) == {"n": (), "m": ()}
    assert state.notes == ("its claim data has no volume yet, so volumes are not evaluated here",)


def test_a_claim_that_does_not_exist_keeps_the_pod_off_every_node() -> None:
    state = judged(subject(**WITH_CLAIM))

    assert refusals(state) == {"n": ("volumes",), "m": ("volumes",)}


class Limited(KubeClient):
    """A client whose account may not list some kinds."""

    forbidden: Sequence[Kind] = ()

    async def list(self, kind: Kind, **options: Any) -> ObjectList:
        if kind in self.forbidden:
            raise Forbidden(verb="GET", path="/", status=403, reason="Forbidden", message="no")
        return await super().list(kind, **options)


async def test_what_may_not_be_listed_is_said_and_refuses_nothing(kube: KubeClient) -> None:
    client = Limited(kube.transport)
    client.forbidden = (NAMESPACES, PERSISTENT_VOLUMES)
    pod = subject(**WITH_CLAIM)

    guards = await read_guards(client, pod)

    assert guards.storage is None
    assert [note.partition(",")[0] for note in guards.notes] == [
        "may not list namespaces",
        "may not list volumes and their claims",
    ]
    assert refusals(judged(pod, guards=guards)) == {"n": (), "m": ()}


@pytest.mark.parametrize("spec", [{}, WITH_CLAIM])
async def test_claims_are_listed_only_for_a_pod_that_has_some(
    kube: KubeClient, spec: dict[str, Any]
) -> None:
    client = Limited(kube.transport)
    client.forbidden = (PERSISTENT_VOLUME_CLAIMS,)
    for name, mode in (("at-once", "Immediate"), ("later", "WaitForFirstConsumer")):
        storage_class = {"metadata": {"name": name}, "volumeBindingMode": mode, "provisioner": "x"}
        await kube.create(STORAGE_CLASSES, storage_class)

    guards = await read_guards(client, subject(**spec))

    assert (guards.storage is None) is bool(spec)
    assert guards.delayed == ({"at-once": False, "later": True} if spec else None)
    assert "default" in guards.namespaces
