"""What is counted for the filters: by labels, by topology, by resource."""

import numpy as np

from fracgpu.k8s.node_affinity import NodeExpression, NodeRules, Taint, Toleration
from fracgpu.k8s.scheduling.cluster import NO_VALUE, Change, per_value
from fracgpu.k8s.scheduling.terms import PodQuery
from fracgpu.k8s.selectors import label_selector
from tests.support.scheduling import ZONE, a_scheduling_cluster, node_json, pod_json, read_pod

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


def test_selectors_and_taints_are_compared_once_for_each_value() -> None:
    nodes = [
        node_json("n1", labels={"disk": "ssd"}, taints=[{"key": "t", "effect": "NoSchedule"}]),
        node_json("n2", labels={"disk": "hdd"}),
        node_json("n3"),
    ]
    cluster = a_scheduling_cluster(nodes)
    rules = NodeRules(
        selector=(NodeExpression(key="disk", operator="NotIn", values=("hdd",)),),
        terms=(
            (NodeExpression(key="metadata.name", operator="In", values=("n1",), by_field=True),),
            (NodeExpression(key="disk", operator="DoesNotExist"),),
            (),
        ),
    )

    assert cluster.selected(rules).tolist() == [True, False, True]
    assert cluster.tolerated(NodeRules()).tolist() == [False, True, True]
    tolerant = NodeRules(tolerations=(Toleration(key="t", operator="Exists"),))
    assert cluster.tolerated(tolerant).all()
    assert tolerant.tolerates((Taint(key="t"),))


def test_a_cluster_without_nodes_answers() -> None:
    cluster = a_scheduling_cluster([], [pod_json("a", node="n1")])

    assert cluster.selected(NodeRules()).tolist() == []
    assert cluster.free("cpu").tolist() == []
