"""What kube-scheduler's own filters say of a waiting pod, simulated on the listed cluster.

The filters that look at one node alone (its labels, taints, CPU) are explained in more detail by
`fracgpu.explain`; here are those that look at other pods and at volumes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cli.cluster import ObservedCluster
from fracgpu.k8s.scheduling.cluster import SchedulingCluster
from fracgpu.k8s.scheduling.node_filters import NodeFilter, refusals_by_node
from fracgpu.k8s.scheduling.objects import read_namespace_labels
from fracgpu.k8s.scheduling.volumes import (
    Storage,
    read_claim,
    read_volume,
    waits_for_first_consumer,
)
from fracgpu.state.cluster_state import (
    ClusterState,
    ExplainedPod,
    NodeConstraints,
    PlacedPod,
)
from kube.client import KubeClient
from kube.errors import Forbidden
from kube.kinds import (
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    Kind,
)
from kube.objects import ObjectKey, identity

_OF_PODS: Final = frozenset(
    {
        NodeFilter.PORTS,
        NodeFilter.AFFINITY,
        NodeFilter.ANTI_AFFINITY,
        NodeFilter.OTHERS_ANTI_AFFINITY,
        NodeFilter.SPREAD,
    }
)
_OF_VOLUMES: Final = frozenset({NodeFilter.VOLUMES, NodeFilter.ATTACHMENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """What the filters need besides pods and nodes.

    Attributes:
        namespaces: the labels of each namespace.
        storage: claims and volumes; None if they are not known.
        delayed: for each storage class, whether it binds a claim only once a node is chosen;
            None if the classes are not known.
        notes: what could not be read.
    """

    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    storage: Storage | None = None
    delayed: Mapping[str, bool] | None = None
    notes: tuple[str, ...] = ()


async def read_guards(client: KubeClient, subject: ExplainedPod) -> Guards:
    """List what the filters need for one pod; claims and volumes only if it has some.

    Raises:
        KubeError: the API server did not answer.
    """
    notes = []
    namespaces = await _listed(client, NAMESPACES, read_namespace_labels)
    if namespaces is None:
        notes.append(
            "may not list namespaces, so terms of pod affinity with a namespaceSelector are judged "
            "as if no namespace had labels"
        )
    storage: Storage | None = Storage()
    delayed: Mapping[str, bool] | None = None
    if subject.scheduling_constraints.claims:
        claims = await _listed(client, PERSISTENT_VOLUME_CLAIMS, read_claim)
        volumes = await _listed(client, PERSISTENT_VOLUMES, read_volume)
        if claims is None or volumes is None:
            storage = None
            notes.append("may not list volumes and their claims, so they are not evaluated here")
        else:
            storage = Storage(
                claims={(key.namespace, key.name): claim for key, claim in claims.items()},
                volumes={key.name: volume for key, volume in volumes.items()},
            )
        classes = await _listed(client, STORAGE_CLASSES, waits_for_first_consumer)
        if classes is not None:
            delayed = {key.name: waits for key, waits in classes.items()}
    return Guards(
        namespaces={key.name: labels for key, labels in (namespaces or {}).items()},
        storage=storage,
        delayed=delayed,
        notes=tuple(notes),
    )


def with_refusals(
    state: ClusterState, subject: ExplainedPod, observed: ObservedCluster, guards: Guards
) -> ClusterState:
    """Return *state* with what kube-scheduler's filters have against each node."""
    pod = _placed(subject).scheduled
    storage, notes = guards.storage, guards.notes
    unbound = {} if storage is None else _unbound(subject, storage)
    waiting = []
    for name, storage_class in unbound.items():
        # A class that does not exist delays nothing. Source: IsDelayBindingMode in
        # k8s.io/component-helpers/storage/volume.
        if guards.delayed is None or guards.delayed.get(storage_class, False):
            text = f"its claim {name} has no volume yet, so volumes are not evaluated here"
            notes = (*notes, text)
        else:
            waiting.append(name)
    cluster = SchedulingCluster(
        (node.scheduling for node in observed.nodes),
        (
            _placed(other).scheduled
            for other in observed.pods
            if other.info.record.node and other.info.record.live
        ),
        namespaces=guards.namespaces,
        storage=storage,
    )
    rules = _OF_PODS if storage is None or unbound else _OF_PODS | _OF_VOLUMES
    constraints = dict(state.node_constraints)
    for name, refusals in refusals_by_node(cluster, pod, rules=rules).items():
        texts = tuple(refusal.value for refusal in refusals)
        constraints[name] = replace(constraints.get(name, NodeConstraints()), refused_by=texts)
    return replace(
        state,
        node_constraints=constraints,
        notes=(*state.notes, *notes),
        unbound=tuple(waiting),
    )


def _placed(pod: ExplainedPod) -> PlacedPod:
    return PlacedPod(info=pod.info, scheduling_constraints=pod.scheduling_constraints)


def _unbound(pod: ExplainedPod, storage: Storage) -> dict[str, str]:
    """Return the claims of a pod that have no volume, each with its storage class."""
    namespace = pod.info.record.namespace
    names = pod.scheduling_constraints.claims
    found = {name: storage.claims.get((namespace, name)) for name in names}
    return {
        name: claim.storage_class
        for name, claim in found.items()
        if claim is not None and not claim.volume
    }


async def _listed(
    client: KubeClient, kind: Kind, read: Callable[[bytes], Any]
) -> dict[ObjectKey, Any] | None:
    """Return the objects of one kind; None if they may not be listed."""
    try:
        listing = await client.list(kind)
    except Forbidden:
        return None
    return {identity(raw).key: read(bytes(raw)) for raw in listing.items}
