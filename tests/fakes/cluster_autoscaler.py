"""Decides as cluster-autoscaler does, from nodes and pods alone: one call for each of its loops.

It knows no card: a pod fits where kube-scheduler's filters say so, on nodes that are Ready, on
nodes that still start (as their group's template promises), and on more nodes like the template.

Left out are pods that are moved off nodes that are little used, priorities, limits of time and of a
group's size, and the choice by price. Sources: kubernetes/autoscaler, cluster-autoscaler/FAQ.md
("How does scale-up work?", "How does Cluster Autoscaler treat nodes with status/startup/ignore
taints?"), core/static_autoscaler.go, estimator/binpacking_estimator.go;
cloudprovider/aws/README.md (tags).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from simulator.scheduler.filters import constraints_of, misfits, usage_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from simulator.objects import Json

_TAG: Final = "k8s.io/cluster-autoscaler/node-template"
_STARTUP_TAINT: Final = "startup-taint.cluster-autoscaler.kubernetes.io/"


@dataclass(slots=True, kw_only=True)
class NodeGroup:
    """A group of equal nodes, as a cloud provider keeps it.

    Attributes:
        template: a node as the group makes it.
        target: how many nodes it is told to have.
    """

    name: str
    template: Json
    target: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one loop does: nodes that a group gets more, and nodes that go."""

    increase: tuple[str, int] | None = None
    remove: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class ClusterAutoscaler:
    """Node groups, and since when each node is idle.

    Attributes:
        groups: by name.
        unneeded_s: how long a node has to be idle before it goes (``--scale-down-unneeded-time``).
    """

    groups: Mapping[str, NodeGroup]
    unneeded_s: float = 600.0
    _idle_since: dict[str, float] = field(default_factory=dict)

    def loop(self, nodes: Sequence[Json], pods: Sequence[Json], *, now_s: float) -> Decision:
        """Return what to do now, and change the groups' targets by it."""
        ready = [node for node in nodes if is_ready(node)]
        left = self._without_room(ready, pods)
        increase = self._scale_up(left)
        if increase is not None:
            group, count = increase
            self.groups[group].target += count
        return Decision(increase=increase, remove=self._scale_down(ready, pods, left, now_s=now_s))

    def _without_room(self, ready: Sequence[Json], pods: Sequence[Json]) -> list[Json]:
        """Return the unschedulable pods for which neither nodes nor upcoming nodes have room."""
        here = [(node, _on(node, pods)) for node in ready]
        for group in self.groups.values():
            # Nodes that are not registered, not Ready, or that have a start-up taint.
            upcoming = group.target - sum(group_of(node) == group.name for node in ready)
            here += [(group.template, []) for _ in range(upcoming)]
        return [pod for pod in pods if is_unschedulable(pod) and not _place(pod, here)]

    def _scale_up(self, pods: Sequence[Json]) -> tuple[str, int] | None:
        """Return the group that serves most of these pods, with the nodes that it takes."""
        options = []
        for group in self.groups.values():
            new: list[tuple[Json, list[Json]]] = []
            served = 0
            for pod in pods:
                if _place(pod, new):
                    served += 1
                else:
                    fresh: list[tuple[Json, list[Json]]] = [(group.template, [])]
                    if _place(pod, fresh):
                        new += fresh
                        served += 1
            options.append((-served, len(new), group.name))
        best = min(options, default=(0, 0, ""))
        return (best[2], best[1]) if best[0] else None

    def _scale_down(
        self, ready: Sequence[Json], pods: Sequence[Json], left: Sequence[Json], *, now_s: float
    ) -> tuple[str, ...]:
        idle = {node["metadata"]["name"]: node for node in ready if not _on(node, pods)}
        # While pods wait that some node could still take, none goes.
        waiting = left or any(is_unschedulable(pod) for pod in pods)
        known = {name: at for name, at in self._idle_since.items() if name in idle}
        self._idle_since = {} if waiting else {name: known.get(name, now_s) for name in idle}
        gone = [
            name for name, since in self._idle_since.items() if now_s - since >= self.unneeded_s
        ]
        for name in gone:
            self.groups[group_of(idle[name])].target -= 1
            del self._idle_since[name]
        return tuple(gone)


def template_of(group: str, base: Json, tags: Mapping[str, str]) -> Json:
    """Return the node that an Auto Scaling group's tags promise, on an instance type like *base*.

    Start-up taints are no part of a template.
    """
    node = copy.deepcopy(base)
    node["metadata"] = {"name": f"template-{group}", "labels": dict(node["metadata"]["labels"])}
    node["spec"] = {"providerID": f"simulated://{group}/template", "taints": []}
    for tag, text in tags.items():
        kind, _, key = tag.removeprefix(f"{_TAG}/").partition("/")
        match kind:
            case "label":
                node["metadata"]["labels"][key] = text
            case "resources":
                node["status"]["capacity"][key] = node["status"]["allocatable"][key] = text
            case "taint":
                value, _, effect = text.rpartition(":")
                node["spec"]["taints"].append({"key": key, "value": value, "effect": effect})
            case _:
                raise ValueError(f"cluster-autoscaler knows no tag {tag}")
    return node


def group_of(node: Json) -> str:
    """Return the group that a node belongs to."""
    return str(node["spec"]["providerID"]).removeprefix("simulated://").partition("/")[0]


def is_ready(node: Json) -> bool:
    """Report whether a node counts: it is Ready, and has no start-up taint."""
    conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", ())}
    taints = node["spec"].get("taints") or ()
    return conditions.get("Ready") == "True" and not any(
        taint["key"].startswith(_STARTUP_TAINT) for taint in taints
    )


def is_unschedulable(pod: Json) -> bool:
    """Report whether kube-scheduler has found no node for a pod."""
    return not pod["spec"].get("nodeName") and any(
        (each["type"], each["status"], each["reason"]) == ("PodScheduled", "False", "Unschedulable")
        for each in pod.get("status", {}).get("conditions", ())
    )


def _on(node: Json, pods: Iterable[Json]) -> list[Json]:
    name = node["metadata"]["name"]
    return [
        pod
        for pod in pods
        if pod["spec"].get("nodeName") == name
        and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]


def _place(pod: Json, nodes: Sequence[tuple[Json, list[Json]]]) -> bool:
    """Put a pod on the first node that fits; return whether there is one."""
    constraints = constraints_of(pod)
    for node, there in nodes:
        if not misfits(constraints, usage_of(node, there)):
            there.append(pod)
            return True
    return False
