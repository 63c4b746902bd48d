"""Whether a node could take a pod at all."""

from typing import Any

import pytest

from simulator.scheduler.filters import NodeUsage, misfits, requests_of, sum_of
from tests.support.gpu import Json

AFFINITY = "node(s) didn't match Pod's node affinity/selector"


def a_container(**requests: str) -> Json:
    return {"name": "c", "resources": {"requests": requests}}


def a_pod(*containers: Json, **spec: Any) -> Json:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def a_room(
    *, labels: Json | None = None, spec: Json | None = None, taken: dict[str, int] | None = None
) -> NodeUsage:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "2", "fracgpu.io/gpu-mem": "96k"}
    node = {
        "metadata": {"name": "n", "labels": labels or {}},
        "spec": spec or {},
        "status": {"allocatable": allocatable},
    }
    return NodeUsage(node=node, taken=taken or {})


def requiring(*expressions: Json, fields: list[Json] | None = None) -> Json:
    term: Json = {"matchExpressions": list(expressions)}
    if fields is not None:
        term = {"matchFields": fields}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"nodeAffinity": required}


def test_an_empty_node_takes_a_pod_that_fits() -> None:
    assert misfits(a_pod(a_container(cpu="4", memory="8Gi")), a_room()) == ()


def test_each_resource_that_is_short_is_named() -> None:
    pod = a_pod(a_container(**{"cpu": "4001m", "fracgpu.io/gpu-mem": "96001", "x/y": "1"}))

    found = misfits(pod, a_room())

    assert found == ("Insufficient cpu", "Insufficient fracgpu.io/gpu-mem", "Insufficient x/y")


def test_what_others_took_is_gone() -> None:
    other = a_pod(a_container(cpu="3500m"))
    room = a_room(taken=sum_of([requests_of(other)]))

    assert misfits(a_pod(a_container(cpu="500m")), room) == ()
    assert misfits(a_pod(a_container(cpu="501m")), room) == ("Insufficient cpu",)


def test_a_node_takes_so_many_pods_and_no_more() -> None:
    room = a_room(taken=sum_of([requests_of(a_pod()), requests_of(a_pod())]))

    assert misfits(a_pod(), room) == ("Too many pods",)


def test_init_containers_count_at_their_peak_and_sidecars_stay() -> None:
    pod = a_pod(
        a_container(cpu="1"),
        a_container(cpu="1"),
        initContainers=[
            {**a_container(cpu="500m"), "restartPolicy": "Always"},
            a_container(cpu="3"),
        ],
    )

    assert requests_of(pod)["cpu"] == 3500


def test_limits_stand_in_for_requests_that_are_missing() -> None:
    limited = {"name": "c", "resources": {"limits": {"cpu": "2"}}}

    assert requests_of(a_pod(limited))["cpu"] == 2000


def test_a_closed_node_takes_only_who_tolerates_that() -> None:
    closed = a_room(spec={"unschedulable": True})
    key = "node.kubernetes.io/unschedulable"
    tolerant = a_pod(tolerations=[{"key": key, "operator": "Exists"}])

    assert misfits(a_pod(), closed) == ("node(s) were unschedulable",)
    assert misfits(tolerant, closed) == ()


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "k", "value": "other"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({}, False),
    ],
)
def test_a_taint_is_tolerated_by_key_value_and_effect(toleration: Json, fits: bool) -> None:
    room = a_room(spec={"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]})

    found = misfits(a_pod(tolerations=[toleration]), room)

    assert found == (() if fits else ("node(s) had untolerated taint {k: v}",))


def test_a_soft_taint_keeps_nobody_away() -> None:
    room = a_room(spec={"taints": [{"key": "k", "effect": "PreferNoSchedule"}]})

    assert misfits(a_pod(), room) == ()


def test_every_label_of_the_node_selector_must_be_there() -> None:
    pod = a_pod(nodeSelector={"zone": "a", "disk": "ssd"})

    assert misfits(pod, a_room(labels={"zone": "a", "disk": "ssd", "x": "y"})) == ()
    assert misfits(pod, a_room(labels={"zone": "a"})) == (AFFINITY,)


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({"key": "n", "operator": "In", "values": ["7", "8"]}, True),
        ({"key": "n", "operator": "In", "values": ["8"]}, False),
        ({"key": "n", "operator": "NotIn", "values": ["8"]}, True),
        ({"key": "none", "operator": "NotIn", "values": ["8"]}, True),
        ({"key": "n", "operator": "Exists"}, True),
        ({"key": "none", "operator": "Exists"}, False),
        ({"key": "none", "operator": "DoesNotExist"}, True),
        ({"key": "n", "operator": "Gt", "values": ["6"]}, True),
        ({"key": "n", "operator": "Gt", "values": ["7"]}, False),
        ({"key": "n", "operator": "Lt", "values": ["8"]}, True),
        ({"key": "none", "operator": "Lt", "values": ["8"]}, False),
    ],
)
def test_node_affinity_reads_every_operator(expression: Json, fits: bool) -> None:
    pod = a_pod(affinity=requiring(expression))

    assert misfits(pod, a_room(labels={"n": "7"})) == (() if fits else (AFFINITY,))


def test_all_expressions_of_a_term_must_hold() -> None:
    pod = a_pod(
        affinity=requiring({"key": "n", "operator": "Exists"}, {"key": "m", "operator": "Exists"})
    )

    assert misfits(pod, a_room(labels={"n": "7"})) == (AFFINITY,)


def test_a_term_may_name_the_node() -> None:
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n"]}]

    assert misfits(a_pod(affinity=requiring(fields=fields)), a_room()) == ()


def test_an_empty_term_matches_nothing() -> None:
    assert misfits(a_pod(affinity=requiring()), a_room()) == (AFFINITY,)
