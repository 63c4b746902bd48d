"""Nodes and pods for the filters of kube-scheduler, as the API server shows them."""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fracgpu.k8s.node import decode_node
from fracgpu.k8s.pod import decode_pod
from fracgpu.k8s.scheduling.cluster import Flags, SchedulingCluster
from fracgpu.k8s.scheduling.constraints import scheduling_constraints_of
from fracgpu.k8s.scheduling.objects import (
    ScheduledPod,
    SchedulingNode,
    scheduled_pod_of,
    scheduling_node_of,
)

Json = dict[str, Any]

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE: Final = "topology.kubernetes.io/zone"
HOST: Final = "kubernetes.io/hostname"


def node_json(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Json] = (),
    unschedulable: bool = False,
    more: Mapping[str, str] | None = None,
    **allocatable: str,
) -> Json:
    """Return a node with room for ten pods, 8 CPUs and 32 GiB unless something else is given."""
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "10", **allocatable, **(more or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOST: name, **(labels or {})}},
        "spec": {"taints": list(taints), "unschedulable": unschedulable},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod_json(
    name: str,
    *,
    node: str = "",
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    requests: Mapping[str, str] | None = None,
    ports: Sequence[Json] = (),
    **spec: Any,
) -> Json:
    """Return a pod of one container."""
    container: Json = {"name": "main", "image": "registry.example/main:1", "ports": list(ports)}
    if requests:
        container["resources"] = {"requests": dict(requests), "limits": dict(requests)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "labels": dict(labels or {}),
        },
        "spec": {"containers": [container], **({"nodeName": node} if node else {}), **spec},
    }


def read_node(node: Json) -> SchedulingNode:
    return scheduling_node_of(decode_node(json.dumps(node).encode()))


def read_pod(pod: Json) -> ScheduledPod:
    """Return a pod; one without a node is read as if it were somewhere."""
    placed = {**pod, "spec": {"nodeName": "nowhere", **pod["spec"]}}
    decoded = decode_pod(json.dumps(placed).encode())
    found = scheduled_pod_of(decoded, scheduling_constraints_of(decoded))
    assert found is not None, "it has a node"
    return found


def a_scheduling_cluster(
    nodes: Iterable[Json], pods: Iterable[Json] = (), **more: Any
) -> SchedulingCluster:
    return SchedulingCluster(map(read_node, nodes), map(read_pod, pods), **more)


def names_of(cluster: SchedulingCluster, allowed: Flags) -> set[str]:
    """Return the allowed nodes by name."""
    return {node.name for node, yes in zip(cluster.nodes, allowed, strict=True) if yes}


def selector(**labels: str) -> Json:
    return {"matchLabels": labels}


def pod_term(key: str = HOST, **more: Any) -> Json:
    """Return one term of affinity or anti-affinity, by default to pods labelled app=web."""
    return {"topologyKey": key, "labelSelector": selector(app="web"), **more}


def spread(key: str = ZONE, *, skew: int = 1, **more: Any) -> Json:
    """Return one topology spread constraint, by default of pods labelled app=web."""
    return {
        "topologyKey": key,
        "maxSkew": skew,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector(app="web"),
        **more,
    }


NAMESPACES: Final[Mapping[str, Mapping[str, str]]] = {
    name: {"kubernetes.io/metadata.name": name, "team": team}
    for name, team in (("red", "a"), ("blue", "a"), ("green", "b"))
}
"""The namespaces of random pods, with their labels."""

_APPS: Final = ("web", "db", "cache")
_SELDOM: Final = 0.15  # of the pods have any one constraint
_OFTEN: Final = 0.6


class RandomScheduling:
    """Random nodes and pods that meet each other's constraints now and then.

    Args:
        seed: the same seed gives the same nodes and pods.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - test data, not secrecy

    def nodes(self, count: int) -> list[Json]:
        return [self._node(f"node-{number}") for number in range(count)]

    def pods(self, count: int, *, prefix: str = "pod") -> list[Json]:
        return [self._pod(f"{prefix}-{number}") for number in range(count)]

    def _node(self, name: str) -> Json:
        labels = {
            "disk": self._random.choice(("ssd", "hdd")),
            "rank": str(self._random.randint(0, 9)),
        }
        if self._often():
            labels[ZONE] = self._random.choice("abc")
        if self._often():
            labels["rack"] = self._random.choice(("r1", "r2"))
        taints = [
            {"key": "team", "value": self._random.choice("ab"), "effect": effect}
            for effect in ("NoSchedule", "NoExecute", "PreferNoSchedule")
            if self._random.random() < 0.15
        ]
        return node_json(
            name,
            labels=labels,
            taints=taints,
            unschedulable=self._random.random() < 0.1,
            cpu=self._random.choice(("3", "3500m", "8")),
            pods=str(self._random.choice((4, 6, 20))),
            more={"example.com/widget": "2"},
        )

    def _pod(self, name: str) -> Json:
        labels = {
            "app": self._random.choice(_APPS),
            "version": self._random.choice("12"),
            "tier": self._random.choice("xy"),
        }
        spec: Json = {}
        makers = {
            "nodeAffinity": self._node_affinity,
            "podAffinity": self._pod_affinity,
            "podAntiAffinity": self._pod_affinity,
        }
        affinity = {kind: make() for kind, make in makers.items() if self._seldom()}
        if affinity:
            spec["affinity"] = affinity
        if self._seldom():
            spec["topologySpreadConstraints"] = self._spreads()
        if self._seldom():
            spec["nodeSelector"] = {"disk": "ssd"}
        if self._often():
            spec["tolerations"] = [self._toleration() for _ in range(self._random.randint(1, 2))]
        requests = {"cpu": self._random.choice(("100m", "0.5", "1500m"))}
        if self._seldom():
            requests["example.com/widget"] = "1"
        address = self._random.choice(({}, {"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.2"}))
        ports = [{"containerPort": 80, "hostPort": 80, **address}] if self._seldom() else []
        return pod_json(
            name,
            namespace=self._random.choice(sorted(NAMESPACES)),
            labels=labels,
            requests=requests,
            ports=ports,
            **spec,
        )

    def _often(self) -> bool:
        return self._random.random() < _OFTEN

    def _seldom(self) -> bool:
        return self._random.random() < _SELDOM

    def _node_affinity(self) -> Json:
        wanted = [
            {"key": "rank", "operator": "Gt", "values": [str(self._random.randint(0, 8))]},
            {"key": ZONE, "operator": "NotIn", "values": ["a"]},
            {"key": "rack", "operator": "Exists"},
            {"key": "rack", "operator": "DoesNotExist"},
            {"key": ZONE, "operator": "In", "values": ["a", "b"]},
        ]
        by_name = {
            "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}]
        }
        terms: list[Json] = [{"matchExpressions": self._random.sample(wanted, 2)}]
        if self._often():
            terms.append({"matchExpressions": [self._random.choice(wanted)], **by_name})
        preferred = [{"weight": 100, "preference": {"matchExpressions": [wanted[0]]}}]
        return {REQUIRED: {"nodeSelectorTerms": terms}, PREFERRED: preferred}

    def _pod_affinity(self) -> Json:
        terms = [self._pod_term() for _ in range(self._random.randint(0, 2))]
        preferred = [{"weight": 100, "podAffinityTerm": self._pod_term()}]
        return {REQUIRED: terms, PREFERRED: preferred}

    def _pod_term(self) -> Json:
        term: Json = {
            "topologyKey": self._random.choice((HOST, ZONE, "rack")),
            "labelSelector": self._selector(),
        }
        namespaces: tuple[Json, ...] = (
            {},
            {"namespaces": ["red", "green"]},
            {"namespaceSelector": {}},
            {"namespaceSelector": selector(team="a")},
            {"namespaces": ["green"], "namespaceSelector": selector(team="a")},
        )
        term |= self._random.choice(namespaces)
        if self._seldom():
            term["matchLabelKeys"] = ["tier"]
        return term

    def _selector(self) -> Json:
        app = self._random.choice(_APPS)
        return self._random.choice(
            (
                selector(app=app),
                {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [app]}]},
                {"matchExpressions": [{"key": "version", "operator": "Exists"}]},
            )
        )

    def _spreads(self) -> list[Json]:
        keys = self._random.sample((HOST, ZONE, "rack"), self._random.randint(1, 2))
        return [self._spread(key) for key in keys]

    def _spread(self, key: str) -> Json:
        found = spread(key, skew=self._random.randint(1, 2))
        found["labelSelector"] = self._selector()
        if self._seldom():
            found["whenUnsatisfiable"] = "ScheduleAnyway"
        elif self._seldom():
            found["minDomains"] = self._random.randint(1, 4)
        if self._seldom():
            found["matchLabelKeys"] = ["tier"]
        if self._seldom():
            found["nodeAffinityPolicy"] = self._random.choice(("Honor", "Ignore"))
        if self._seldom():
            found["nodeTaintsPolicy"] = self._random.choice(("Honor", "Ignore"))
        return found

    def _toleration(self) -> Json:
        return self._random.choice(
            (
                {"key": "team", "operator": "Exists"},
                {"key": "team", "operator": "Equal", "value": "a"},
                {"key": "team", "operator": "Exists", "effect": "NoExecute"},
                {"operator": "Exists", "effect": "NoSchedule"},
            )
        )
