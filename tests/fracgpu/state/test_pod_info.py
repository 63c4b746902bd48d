"""Decoding pods and nodes of the API server."""

import contextlib
import json
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fracgpu import names
from fracgpu.errors import RequestError, WireError
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.k8s.pod import Container, PodSpec, containers_of
from fracgpu.k8s.resources import HostResources
from fracgpu.request.grant import Grant, need_from_limits
from fracgpu.request.grant_note import Seal, describe_grant
from fracgpu.request.language import parse_request
from fracgpu.request.need import PodNeed, Rebalance, Strategy
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from tests.support.core import a_need, on
from tests.support.gpu import Json, a_gpu_pod, a_sharing_node, some_cards
from tests.support.work import counted_lines


def read(pod: Json) -> PodInfo:
    return decode_pod_info(json.dumps(pod).encode())


def test_a_containers_limits_and_requests_are_kept_apart() -> None:
    amounts = {"limits": {"cpu": "4"}, "requests": {"cpu": 2}}
    body = {
        "metadata": {"name": "p", "creationTimestamp": "2026-01-05T11:00:00Z"},
        "spec": {
            "initContainers": [{"name": "init", "resources": amounts}],
            "containers": [{"name": "train", "resources": amounts}, {"name": "log"}],
        },
    }

    found = read(body)

    assert [(one.name, one.limits, one.requests) for one in found.record.containers] == [
        ("init", {"cpu": "4"}, {"cpu": "2"}),
        ("train", {"cpu": "4"}, {"cpu": "2"}),
        ("log", {}, {}),
    ]
    assert found.created_at == datetime(2026, 1, 5, 11, tzinfo=UTC)


def test_an_admitted_pod_says_what_it_needs() -> None:
    pod = a_gpu_pod(
        "p",
        mib=4096,
        cards=2,
        annotations={names.CORES: "30", names.MODEL: "*A30*", names.PLACEMENT: "spread"},
    )

    need = read(pod).need

    assert need is not None
    assert need.containers == (a_need(4096, name="train", cards=2, cores=30),)
    assert (need.models, need.strategy) == (("*A30*",), Strategy.SPREAD)


def test_a_pod_with_our_claim_needs_what_its_grant_says() -> None:
    init = a_need(500, name="warm-up", kind=ContainerKind.INIT)
    app = a_need(4096, name="train", cards=2, cores=30)
    granted = PodNeed(containers=(init, app), models=("*A30*",), strategy=Strategy.SPREAD)
    pod = a_gpu_pod("p", mib=1)
    del pod["spec"]["containers"][0]["resources"]
    pod["spec"]["initContainers"] = [{"name": "warm-up"}]
    pod["spec"]["resourceClaims"] = [
        {"name": "other", "resourceClaimName": "fracgpu-other"},
        {"name": "fracgpu", "resourceClaimName": "fracgpu-0123456789"},
    ]
    note = Seal(key=b"secret").write(describe_grant(Grant(need=granted, card_class=None)))
    pod["metadata"]["annotations"] = {
        names.CORES: "train=90",  # which its author has changed since
        names.CARDS: "train=2",
        names.MODEL: "*A30*",
        names.PLACEMENT: "spread",
        names.GRANTED: note,
    }

    found = read(pod)

    assert found.device_claim == "fracgpu-0123456789"
    at_once = structs.replace(init, kind=ContainerKind.APP)
    as_granted = structs.replace(granted, containers=(at_once, app), by_claim=True)
    assert found.need == as_granted, found.need_problem
    assert [one.kind for one in found.record.containers] == [ContainerKind.INIT, ContainerKind.APP]


def test_a_pod_whose_grant_is_lost_has_a_problem_with_a_claim_too() -> None:
    pod = a_gpu_pod("p", mib=1)
    del pod["spec"]["containers"][0]["resources"]
    pod["metadata"]["annotations"] = {names.FRACTION: "0.5"}
    pod["spec"]["resourceClaims"] = [{"name": "fracgpu", "resourceClaimName": "fracgpu-0123456789"}]

    found = read(pod)

    assert found.need is None
    assert "limits of container 'train'" in found.need_problem


def test_a_pod_that_asks_for_nothing_needs_nothing() -> None:
    view = read({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}})

    assert (view.need, view.need_problem, view.rebalance) == (None, "", None)


def test_an_assignment_is_read_and_a_forged_one_is_a_problem() -> None:
    good = a_gpu_pod("p", annotations={names.ASSIGNMENT: '{"train":[{"card":"x","mib":5}]}'})
    bad = a_gpu_pod("p", annotations={names.ASSIGNMENT: "mine"})

    assert read(good).record.assignment == on("x", 5, container="train")
    record = read(bad).record
    assert record.assignment is None
    assert names.ASSIGNMENT in record.problem


def test_a_terminating_pod_is_live_still() -> None:
    pod = a_gpu_pod("p")
    pod["metadata"]["deletionTimestamp"] = "2026-01-05T12:00:00Z"

    record = read(pod).record

    assert (record.live, record.terminating) == (True, True)


def test_what_the_rebalancer_looks_at_is_read() -> None:
    pod = a_gpu_pod(
        "p",
        annotations={names.REBALANCE: "never"},
        priority=7,
        nodeSelector={"disk": "ssd"},
        affinity={"podAntiAffinity": {}},
        topologySpreadConstraints=[{}],
    )
    pod["metadata"]["labels"] = {"app": "x"}
    pod["metadata"]["ownerReferences"] = [
        {"kind": "Other", "name": "o", "uid": "u0"},
        {"kind": "ReplicaSet", "name": "r", "uid": "u1", "controller": True},
    ]
    pod["status"] = {
        "startTime": "2026-01-05T12:00:00Z",
        "conditions": [{"type": "Ready", "status": "True"}],
    }

    view = read(pod)

    assert view.rebalance is Rebalance.NEVER
    assert view.owner == ("ReplicaSet", "r", "u1")
    assert (view.priority, view.ready, view.labels) == (7, True, {"app": "x"})
    assert view.started_at == datetime(2026, 1, 5, 12, tzinfo=UTC)
    assert view.node_selector == {"disk": "ssd"}


@pytest.mark.parametrize(
    ("status", "reason", "since"),
    [
        ("False", "Unschedulable", datetime(2026, 1, 5, 12, tzinfo=UTC)),
        ("False", "SchedulingGated", None),
        ("True", "", None),
    ],
)
def test_a_pod_waits_since_kube_scheduler_found_no_node_for_it(
    status: str, reason: str, since: datetime | None
) -> None:
    pod = a_gpu_pod("p")
    condition = {
        "type": "PodScheduled",
        "status": status,
        "reason": reason,
        "lastTransitionTime": "2026-01-05T12:00:00Z",
    }
    pod["status"] = {"conditions": [condition], "nominatedNodeName": "n1"}

    view = read(pod)

    assert (view.unschedulable_since, view.nominated_node) == (since, "n1")


def test_an_init_container_that_always_restarts_is_a_sidecar() -> None:
    inits = [Container(name="proxy", restart_policy="Always"), Container(name="load")]

    specs = containers_of(PodSpec(init_containers=inits, containers=[Container(name="serve")]))

    assert specs == (
        ContainerSpec(name="proxy", kind=ContainerKind.SIDECAR),
        ContainerSpec(name="load", kind=ContainerKind.INIT),
        ContainerSpec(name="serve"),
    )


def test_a_node_is_read_with_its_cards_and_cordons() -> None:
    node = a_sharing_node("n")
    node["metadata"]["annotations"][names.NODE_CORDONS] = (
        '{"GPU-n-1":{"until":"2026-01-05T12:00:00Z","reason":"hot"}}'
    )
    node["status"]["allocatable"] |= {"cpu": "96", "memory": "512Mi"}

    found = read_node(json.dumps(node).encode())

    assert (found.node, found.shared, found.schedulable, found.problem) == ("n", True, True, "")
    assert found.cards == some_cards("n")
    assert found.host == HostResources(cpu_milli=96_000, memory_mib=512, pods=110)
    assert found.cordoned(now=datetime(2026, 1, 5, 11, tzinfo=UTC)) == {"GPU-n-1"}


def test_a_nodes_load_is_what_its_agent_wrote_and_when() -> None:
    node = a_sharing_node("n")
    node["metadata"]["annotations"] |= {
        names.NODE_HEAT: '{"GPU-n-0":0.5}',
        names.NODE_FOREIGN: '{"GPU-n-1":300}',
        names.NODE_LOAD_TIME: "2026-01-05T11:00:00Z",
    }

    found = read_node(json.dumps(node).encode())

    assert (found.heat, found.foreign) == ({"GPU-n-0": 0.5}, {"GPU-n-1": 300})
    assert found.load_time == datetime(2026, 1, 5, 11, tzinfo=UTC)


@pytest.mark.parametrize("spoilt", [names.NODE_CARDS, names.NODE_CORDONS])
def test_a_spoilt_annotation_is_a_problem_and_not_an_error(spoilt: str) -> None:
    node = a_sharing_node("n")
    node["metadata"]["annotations"][spoilt] = "{"

    found = read_node(json.dumps(node).encode())

    assert spoilt in found.problem
    assert found.unreadable.keys() == {spoilt}


def sharing(status: str, reason: str) -> Json:
    return {"type": names.SHARING_CONDITION, "status": status, "reason": reason}


@pytest.mark.parametrize(
    ("change", "schedulable"),
    [
        ({}, True),
        ({"spec": {"unschedulable": True}}, False),
        ({"status": {"conditions": [sharing("False", "AgentNotRegistered")]}}, False),
        ({"status": {"conditions": [sharing("True", "CardsShared")]}}, True),
        # Which of its cards take nothing says the inventory.
        ({"status": {"conditions": [sharing("False", "CardsUnavailable")]}}, True),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, False),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, False),
        ({"status": {}}, True),
    ],
)
def test_a_closed_or_unready_node_takes_nothing_new(change: Json, schedulable: bool) -> None:
    found = read_node(json.dumps({**a_sharing_node("n"), **change}).encode())

    assert found.schedulable is schedulable


def test_a_node_is_shared_only_when_its_label_says_exactly_true() -> None:
    node = a_sharing_node("n")
    node["metadata"]["labels"][names.SHARE_LABEL] = "True"

    assert not read_node(json.dumps(node).encode()).shared


keys = st.sampled_from(
    ["metadata", "spec", "status", "name", "annotations", "labels", "containers", "resources",
     "limits", "requests", "conditions", "type", "phase", "nodeName", "affinity", "startTime",
     "initContainers", "restartPolicy", names.GPU_MEM, names.GPU_SLOT, names.FRACTION,
     names.CARDS, names.ASSIGNMENT, names.NODE_CARDS, names.NODE_CORDONS]
)  # fmt: skip
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)
annotated: st.SearchStrategy[Any] = st.builds(
    lambda annotations, limits: {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    },
    st.dictionaries(keys, st.text(max_size=12)),
    st.dictionaries(keys, st.text(max_size=12) | st.integers()),
)


@given(st.binary() | (values | annotated).map(lambda pod: json.dumps(pod).encode()))
def test_any_bytes_are_read_or_refused_and_never_anything_else(body: bytes) -> None:
    for reader in (decode_pod_info, read_node):
        with contextlib.suppress(WireError):
            reader(body)


def test_the_work_of_reading_a_pod_grows_with_its_containers_and_not_faster() -> None:
    """The API server stores 3,000 containers with a resource of their own each, in 1.4 MB."""
    work = []
    for size in (100, 400):
        limits = [{f"example.com/{at}": "1"} for at in range(size)]
        containers = [{"name": f"c{at}", "resources": {"limits": limits[at]}} for at in range(size)]
        body = json.dumps({"spec": {"containers": containers}}).encode()
        with counted_lines() as lines:
            decode_pod_info(body)
        work.append(lines.count)

    assert work[1] < 5 * work[0]


def test_a_pods_containers_are_known_by_the_runtimes_ids_without_its_name() -> None:
    statuses = [
        {"name": "train", "containerID": f"containerd://{'c' * 64}"},
        {"name": "waits", "containerID": ""},
        {"name": "new"},
    ]
    body = {
        "metadata": {"name": "one", "namespace": "ml", "uid": "u"},
        "status": {
            "initContainerStatuses": [{"name": "prepare", "containerID": "cri-o://0123"}],
            "containerStatuses": statuses,
        },
    }

    assert decode_pod_info(json.dumps(body).encode()).container_ids == {
        "prepare": "0123",
        "train": "c" * 64,
    }


def test_the_taints_of_a_node_that_only_rank_it_are_known() -> None:
    def soft(*effects: str) -> list[str]:
        taints = [{"key": "example.com/kept", "effect": effect} for effect in effects]
        node = {"metadata": {"name": "n"}, "spec": {"taints": taints}}
        return [taint.effect for taint in read_node(json.dumps(node).encode()).soft_taints]

    assert soft("NoSchedule", "PreferNoSchedule") == ["PreferNoSchedule"]
    assert soft("NoSchedule", "NoExecute") == []
    assert soft() == []


OURS = st.dictionaries(
    st.sampled_from([names.MEMORY, names.CARDS, names.MODEL, names.PLACEMENT, names.ASSIGNMENT]),
    st.sampled_from(["1Gi", "2", "pack", "A100", "{}", "x" * 3_000]),
    max_size=3,
)
LIMITS = st.dictionaries(
    st.sampled_from([names.GPU_MEM, names.GPU_SLOT, "cpu"]), st.sampled_from(["1024", "1", "2"])
)


@given(st.lists(st.tuples(OURS, LIMITS, st.sampled_from(["a", "b"])), max_size=12))
def test_a_request_seen_before_is_read_as_if_it_were_the_first(
    pods: list[tuple[dict[str, str], dict[str, str], str]],
) -> None:
    for annotations, limits, name in pods:
        spec = ContainerSpec(name=name, limits=limits)
        body = {
            "metadata": {"name": "p", "annotations": annotations},
            "spec": {"containers": [{"name": name, "resources": {"limits": limits}}]},
        }
        info = read(body)
        need = problem = None
        try:
            request = parse_request(annotations, [spec])
            need = None if request is None else need_from_limits(request)
        except RequestError as error:
            problem = str(error)

        assert (info.need, info.need_problem) == (need, problem or "")


@pytest.mark.parametrize(
    ("taint", "leaving"),
    [
        ("ToBeDeletedByClusterAutoscaler", True),
        ("DeletionCandidateOfClusterAutoscaler", True),
        ("karpenter.sh/disrupted", True),
        ("karpenter.sh/unregistered", False),
        ("", False),
    ],
)
def test_a_node_says_that_an_autoscaler_removes_it(taint: str, leaving: bool) -> None:
    node = a_sharing_node("n")
    node["spec"] = {"taints": [{"key": taint, "effect": "NoSchedule"}] if taint else []}

    assert read_node(json.dumps(node).encode()).leaving is leaving


def test_the_share_of_a_class_of_the_catalogue_does_not_say_which_cards_will_do() -> None:
    note = '\n{"containers":{},"classMib":8000,"cardClass":"a30"}'
    pod = a_gpu_pod("p", mib=4000, annotations={names.FRACTION: "0.5", names.GRANTED: note})
    del pod["metadata"]["annotations"][names.MEMORY]
    by_name = read(pod).need
    pod["metadata"]["annotations"][names.GRANTED] = '\n{"containers":{},"classMib":8000}'
    by_size = read(pod).need

    assert by_name is not None
    assert by_size is not None
    assert [part.share for part in by_name.containers] == [None]
    assert [part.share for part in by_size.containers] == [Fraction(1, 2)]
