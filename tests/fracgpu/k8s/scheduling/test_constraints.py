"""What of a pod's spec decides on which nodes it may run."""

import json
from typing import Any

import numpy as np
import pytest

from fracgpu.errors import WireError
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.k8s.node import Taint, decode_node
from fracgpu.k8s.node_affinity import NodeRules
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.resources import node_amounts, pod_requests
from fracgpu.k8s.scheduling.cluster import NO_VALUE, Change, per_value
from fracgpu.k8s.scheduling.constraints import (
    ANYWHERE,
    HostPort,
    SchedulingConstraints,
    scheduling_constraints_of,
)
from fracgpu.k8s.scheduling.objects import scheduled_pod_of, scheduling_node_of
from fracgpu.k8s.scheduling.terms import PodQuery, read_pod_terms, read_spread
from fracgpu.k8s.selectors import LabelSelector, label_selector
from tests.support.scheduling import (
    HOST,
    PREFERRED,
    REQUIRED,
    ZONE,
    Json,
    a_scheduling_cluster,
    node_json,
    pod_json,
    pod_term,
    read_pod,
    selector,
    spread,
)


def constraints_of(**facts: Any) -> SchedulingConstraints:
    return scheduling_constraints_of(decode_pod(json.dumps(pod_json("p", **facts)).encode()))


def test_a_pod_without_wishes_has_no_constraint() -> None:
    found = constraints_of()

    assert found.allows({}, ())
    assert (found.affinity, found.anti_affinity, found.spread, found.ports) == ((), (), (), ())
    assert found.unjudged == ()
    assert not found.keeps_local_data


@pytest.mark.parametrize(
    ("volume", "named"),
    [
        ({"ephemeral": {}}, "ephemeral volume"),
        ({"hostPath": {"path": "/x"}}, "hostPath"),
        ({"gcePersistentDisk": {"pdName": "x"}}, "gcePersistentDisk"),
        ({"awsElasticBlockStore": {"volumeID": "x"}}, "awsElasticBlockStore"),
        ({"iscsi": {"iqn": "x"}}, "iscsi"),
        ({"rbd": {"image": "x"}}, "rbd"),
    ],
)
def test_a_volume_that_is_not_simulated_is_named(volume: dict[str, Any], named: str) -> None:
    assert constraints_of(volumes=[volume]).unjudged == (named,)


def test_claims_of_dynamic_resources_are_named() -> None:
    assert constraints_of(resourceClaims=[{"name": "x"}]).unjudged == ("resourceClaims",)


def test_claims_of_volumes_are_known_by_name() -> None:
    data = {"name": "data", "persistentVolumeClaim": {"claimName": "big"}}

    assert constraints_of(volumes=[data]).claims == ("big",)


@pytest.mark.parametrize(
    ("volume", "kept"),
    [
        ({"emptyDir": {}}, True),
        ({"ephemeral": {}}, True),
        ({"emptyDir": {"medium": "Memory"}}, False),
        ({"configMap": {"name": "x"}}, False),
    ],
)
def test_only_volumes_on_the_disk_of_the_node_hold_local_data(
    volume: dict[str, Any], kept: bool
) -> None:
    assert constraints_of(volumes=[volume]).keeps_local_data is kept


def test_ports_of_the_node_are_those_of_containers_and_sidecars() -> None:
    port = {"containerPort": 80, "hostPort": 80}
    inits = [
        {"name": "side", "restartPolicy": "Always", "ports": [{"hostPort": 81, "protocol": "UDP"}]},
        {"name": "init", "ports": [{"hostPort": 82}]},
    ]

    found = constraints_of(ports=[port, {"containerPort": 90}], initContainers=inits)

    assert found.ports == (HostPort(protocol="UDP", port=81), HostPort(port=80))


@pytest.mark.parametrize(
    ("other", "conflicts"),
    [
        (HostPort(port=80), True),
        (HostPort(port=81), False),
        (HostPort(port=80, protocol="UDP"), False),
        (HostPort(port=80, ip="10.0.0.1"), True),
    ],
)
def test_a_port_on_every_address_conflicts_with_one_on_any(
    other: HostPort, conflicts: bool
) -> None:
    assert HostPort(port=80).conflicts(other) is conflicts
    assert other.conflicts(HostPort(port=80)) is conflicts


def test_two_addresses_may_have_the_same_port() -> None:
    assert not HostPort(port=80, ip="10.0.0.1").conflicts(HostPort(port=80, ip="10.0.0.2"))


def test_pods_of_one_template_share_their_constraints() -> None:
    spec = {
        "affinity": {"podAntiAffinity": {REQUIRED: [pod_term()]}},
        "topologySpreadConstraints": [spread()],
        "requests": {"cpu": "1"},
    }
    own = [{"name": f"kube-api-access-{name}", "projected": {}} for name in "ab"]

    first, second = (constraints_of(volumes=[volume], **spec) for volume in own)

    assert first is second


def test_what_is_no_affinity_is_refused() -> None:
    pod = decode_pod(b'{"spec": {"affinity": []}}')

    with pytest.raises(WireError, match="pod"):
        scheduling_constraints_of(pod)


WEB = PodQuery(
    namespaces=frozenset({"default"}), selector=label_selector({"matchLabels": {"app": "web"}})
)


def test_a_node_without_the_label_has_no_value() -> None:
    cluster = a_scheduling_cluster(
        [node_json("a", labels={ZONE: "x"}), node_json("b"), node_json("c", labels={ZONE: "x"})]
    )

    assert cluster.values(ZONE).tolist() == [0, NO_VALUE, 0]
    assert per_value(cluster.values(ZONE), np.array([1, 5, 2])).tolist() == [3, 0, 3]


def test_pods_are_counted_by_node_with_changes_on_top() -> None:
    pods = [
        pod_json("a", node="n1", labels={"app": "web"}),
        pod_json("b", node="n1", labels={"app": "web"}),
        pod_json("c", node="n2", labels={"app": "web"}, namespace="other"),
        pod_json("d", node="gone", labels={"app": "web"}),
    ]
    cluster = a_scheduling_cluster([node_json("n1"), node_json("n2")], pods)
    gone, new = read_pod(pods[0]), read_pod(pod_json("e", node="n2", labels={"app": "web"}))

    assert cluster.counts((WEB,), terminating=True).tolist() == [2, 0]
    changes = (Change(gone, -1), Change(new, 1))
    assert cluster.counts((WEB,), changes=changes, terminating=True).tolist() == [1, 1]
    assert cluster.counts((WEB,), terminating=True).tolist() == [2, 0]


def test_pods_that_are_being_deleted_count_only_where_it_is_asked() -> None:
    leaving = pod_json("a", node="n1", labels={"app": "web"})
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster = a_scheduling_cluster([node_json("n1")], [leaving])

    assert cluster.counts((WEB,), terminating=True).tolist() == [1]
    assert cluster.counts((WEB,), terminating=False).tolist() == [0]


def test_what_is_free_is_what_pods_have_not_requested() -> None:
    pods = [pod_json("a", node="n1", requests={"cpu": "500m", "example.com/x": "1"})]
    cluster = a_scheduling_cluster([node_json("n1", cpu="2"), node_json("n2", cpu="2")], pods)

    assert cluster.free("cpu").tolist() == [1500, 2000]
    assert cluster.free("pods").tolist() == [9, 10]
    assert cluster.free("example.com/x").tolist() == [0, 0]


def test_a_cluster_without_nodes_answers() -> None:
    cluster = a_scheduling_cluster([], [pod_json("a", node="n1")])

    assert cluster.selected(NodeRules()).tolist() == []
    assert cluster.free("cpu").tolist() == []


def wants(kind: ContainerKind = ContainerKind.APP, **amounts: str) -> ContainerSpec:
    return ContainerSpec(name="c", kind=kind, requests=amounts)


def test_containers_add_up_and_a_limit_stands_for_a_request() -> None:
    limited = ContainerSpec(name="c", limits={"cpu": "1", "example.com/widget": "2"})

    found = pod_requests([wants(cpu="250m", memory="1Ki"), limited])

    assert found == (("cpu", 1250), ("example.com/widget", 2), ("memory", 1024))


def test_init_containers_run_one_by_one_beside_the_sidecars_before_them() -> None:
    inits = [wants(ContainerKind.SIDECAR, cpu="1"), wants(ContainerKind.INIT, cpu="4")]

    assert pod_requests([*inits, wants(cpu="2")]) == (("cpu", 5000),)


def test_a_request_of_the_whole_pod_replaces_the_sum_and_overhead_comes_on_top() -> None:
    found = pod_requests(
        [wants(cpu="1", memory="1"), wants(cpu="1")],
        overhead={"cpu": "100m"},
        pod_level={"cpu": "500m"},
    )

    assert found == (("cpu", 600), ("memory", 1))


def test_amounts_of_zero_are_no_request() -> None:
    assert pod_requests([wants(cpu="0"), ContainerSpec(name="c")]) == ()


def test_a_node_has_whole_units_and_millicores() -> None:
    assert node_amounts({"cpu": "1.5", "memory": "1Mi", "pods": "110"}) == {
        "cpu": 1500,
        "memory": 1024 * 1024,
        "pods": 110,
    }


def test_only_a_pod_with_a_node_that_has_not_ended_counts() -> None:
    ended = {**pod_json("p", node="n"), "status": {"phase": "Failed"}}

    for body in (pod_json("p"), ended):
        assert scheduled_pod_of(decode_pod(json.dumps(body).encode()), ANYWHERE) is None


def test_a_pod_keeps_what_decides() -> None:
    body = pod_json("p", node="n", labels={"app": "web"}, requests={"cpu": "1"})
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    found = read_pod(body)

    assert (found.uid, found.namespace, found.node) == ("uid-default-p", "default", "n")
    assert found.terminating
    assert found.constraints.requests == (("cpu", 1000),)


def test_replicas_share_their_labels() -> None:
    first, second = (read_pod(pod_json(name, labels={"app": "web"})) for name in "ab")

    assert first.labels is second.labels


def test_a_node_keeps_what_decides() -> None:
    body = node_json("n", taints=[{"key": "x", "effect": "NoExecute"}], unschedulable=True)

    found = scheduling_node_of(decode_node(json.dumps(body).encode()))

    assert found.labels == {HOST: "n"}
    assert found.taints == (Taint(key="x", effect="NoExecute"),)
    assert found.unschedulable
    assert found.allocatable["cpu"] == 8000


NAMESPACES = {"mine": {"team": "a"}, "near": {"team": "a"}, "far": {"team": "b"}}


def reached(term: Json) -> frozenset[str] | None:
    affinity = json.dumps({"podAffinity": {REQUIRED: [term]}}).encode()
    (found,), _ = read_pod_terms(affinity, "mine")
    return found.query(NAMESPACES).namespaces


@pytest.mark.parametrize(
    ("more", "namespaces"),
    [
        ({}, {"mine"}),
        ({"namespaces": ["far"]}, {"far"}),
        ({"namespaceSelector": selector(team="a")}, {"mine", "near"}),
        ({"namespaces": ["far"], "namespaceSelector": selector(team="a")}, {"mine", "near", "far"}),
    ],
)
def test_a_term_counts_the_pods_of_these_namespaces(more: Json, namespaces: set[str]) -> None:
    assert reached(pod_term(**more)) == frozenset(namespaces)


def test_an_empty_namespace_selector_reaches_every_namespace() -> None:
    assert reached(pod_term(namespaceSelector={})) is None


def test_a_term_without_a_selector_counts_no_pod() -> None:
    assert not PodQuery(namespaces=None, selector=None).matches("mine", {})
    assert PodQuery(namespaces=None, selector=LabelSelector()).matches("mine", {})


def test_preferences_between_pods_are_no_terms() -> None:
    wish = {PREFERRED: [{"weight": 1, "podAffinityTerm": pod_term()}]}
    affinity = json.dumps({"podAffinity": wish, "podAntiAffinity": wish}).encode()

    assert read_pod_terms(affinity, "mine") == ((), ())


def test_a_spread_that_may_be_missed_is_no_constraint() -> None:
    either = [spread(), spread(whenUnsatisfiable="ScheduleAnyway")]

    (found,) = read_spread(json.dumps(either).encode())

    assert (found.min_domains, found.honors_affinity, found.honors_taints) == (1, True, False)


def test_the_values_of_the_pod_itself_are_selected_as_well() -> None:
    (found,) = read_spread(json.dumps([spread(matchLabelKeys=["version", "absent"])]).encode())
    mine = found.selector_for({"app": "web", "version": "2"})

    assert mine is not None
    assert mine.matches({"app": "web", "version": "2"})
    assert not mine.matches({"app": "web", "version": "1"})
