"""Affinity and anti-affinity between pods."""

from typing import Any

from fracgpu.k8s.scheduling.cluster import Change, SchedulingCluster
from fracgpu.k8s.scheduling.pod_affinity import (
    by_others_anti_affinity,
    by_own_affinity,
    by_own_anti_affinity,
)
from tests.support.scheduling import (
    HOST,
    REQUIRED,
    ZONE,
    Json,
    a_scheduling_cluster,
    names_of,
    node_json,
    pod_json,
    pod_term,
    read_pod,
    selector,
)

NODES = (
    node_json("n1", labels={ZONE: "a"}),
    node_json("n2", labels={ZONE: "a"}),
    node_json("n3", labels={ZONE: "b"}),
    node_json("n4"),
)
EVERY = {"n1", "n2", "n3", "n4"}


def drawn(*terms: Json) -> Json:
    return {"podAffinity": {REQUIRED: list(terms)}}


def repelled(*terms: Json) -> Json:
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def web(name: str, **facts: Any) -> Json:
    return pod_json(name, **{"labels": {"app": "web"}, **facts})


def cluster_with(*pods: Json) -> SchedulingCluster:
    namespaces = {"default": {"team": "a"}, "other": {"team": "b"}}
    return a_scheduling_cluster(NODES, pods, namespaces=namespaces)


def test_a_pod_is_drawn_to_the_zone_of_a_pod_that_matches() -> None:
    cluster = cluster_with(web("a", node="n1"))
    pod = read_pod(pod_json("new", affinity=drawn(pod_term(ZONE))))

    assert names_of(cluster, by_own_affinity(cluster, pod, ())) == {"n1", "n2"}


def test_terms_must_be_met_by_the_same_pods() -> None:
    cluster = cluster_with(web("a", node="n1"), pod_json("b", node="n3", labels={"tier": "x"}))
    both = drawn(pod_term(), pod_term(labelSelector=selector(tier="x")))

    pod = read_pod(pod_json("new", affinity=both))

    assert not by_own_affinity(cluster, pod, ()).any()


def test_the_first_of_a_group_may_go_wherever_the_label_is() -> None:
    cluster = cluster_with(pod_json("a", node="n1"))
    first = read_pod(web("new", affinity=drawn(pod_term(ZONE))))
    stranger = read_pod(pod_json("new", affinity=drawn(pod_term(ZONE))))

    assert names_of(cluster, by_own_affinity(cluster, first, ())) == {"n1", "n2", "n3"}
    assert not by_own_affinity(cluster, stranger, ()).any()


def test_a_pod_stays_away_from_those_that_it_names() -> None:
    cluster = cluster_with(web("a", node="n1"))
    by_host = read_pod(pod_json("new", affinity=repelled(pod_term(HOST))))
    by_zone = read_pod(pod_json("new", affinity=repelled(pod_term(ZONE))))

    assert names_of(cluster, by_own_anti_affinity(cluster, by_host, ())) == EVERY - {"n1"}
    assert names_of(cluster, by_own_anti_affinity(cluster, by_zone, ())) == {"n3", "n4"}


def test_the_anti_affinity_of_pods_that_are_there_holds_for_a_pod_without_any() -> None:
    guard = pod_json("guard", node="n1", affinity=repelled(pod_term(ZONE)))
    cluster = cluster_with(guard)

    assert names_of(cluster, by_others_anti_affinity(cluster, read_pod(web("new")), ())) == {
        "n3",
        "n4",
    }
    other = read_pod(pod_json("new", labels={"app": "db"}))
    assert names_of(cluster, by_others_anti_affinity(cluster, other, ())) == EVERY


def test_namespaces_are_selected_by_their_labels() -> None:
    term = pod_term(namespaceSelector=selector(team="b"))
    cluster = cluster_with(
        web("far", node="n1", namespace="other"),
        web("near", node="n2"),
        pod_json("guard", node="n3", affinity=repelled(term)),
    )
    pod = read_pod(pod_json("new", affinity=repelled(term)))

    assert names_of(cluster, by_own_anti_affinity(cluster, pod, ())) == EVERY - {"n1"}
    assert by_others_anti_affinity(cluster, read_pod(web("mine")), ()).all()
    theirs = read_pod(web("theirs", namespace="other"))
    assert names_of(cluster, by_others_anti_affinity(cluster, theirs, ())) == EVERY - {"n3"}


def test_the_old_pod_keeps_its_replacement_away_only_while_it_is_there() -> None:
    body = web("old", node="n1", affinity=repelled(pod_term(HOST)))
    cluster = cluster_with(body)
    replacement = read_pod(body)
    gone = (Change(read_pod(body), -1),)

    assert not by_own_anti_affinity(cluster, replacement, ())[0]
    assert not by_others_anti_affinity(cluster, replacement, ())[0]
    assert by_own_anti_affinity(cluster, replacement, gone).all()
    assert by_others_anti_affinity(cluster, replacement, gone).all()


def test_a_pod_that_is_only_expected_repels_as_well() -> None:
    cluster = cluster_with()
    expected = read_pod(web("soon", node="n2", affinity=repelled(pod_term(HOST))))

    allowed = by_others_anti_affinity(cluster, read_pod(web("new")), (Change(expected, 1),))

    assert names_of(cluster, allowed) == EVERY - {"n2"}
