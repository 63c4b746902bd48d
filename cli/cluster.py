"""The live cluster as the commands see it: pods and nodes, listed once and put together."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import msgspec

from cli.main import FAILED
from fracgpu.cards.card import NodeCards
from fracgpu.explain.explanation import shortages
from fracgpu.k8s.node_affinity import Taint, scheduling_constraints_of, taints_of
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources, pod_requests
from fracgpu.request.need import Strategy
from fracgpu.state.bound_pod import BoundPod, decode_bound_pod
from fracgpu.state.cluster_state import ClusterState, ExplainedPod, NodeConstraints
from fracgpu.state.ledger import Ledger
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.state.snapshot import Snapshot
from kube.access import connect
from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import NODES, PODS

LIVE_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"


class _Gate(msgspec.Struct):
    name: str = ""


class _GatedSpec(msgspec.Struct, rename="camel"):
    scheduling_gates: list[_Gate] | None = None


class _GatedPod(msgspec.Struct):
    spec: _GatedSpec = msgspec.field(default_factory=_GatedSpec)


class _NodeSpec(msgspec.Struct):
    unschedulable: bool = False


class _Node(msgspec.Struct):
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)


_gated_decoder: Final = msgspec.json.Decoder(_GatedPod)
_node_decoder: Final = msgspec.json.Decoder(_Node)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedNode:
    """A node: its cards, and what else keeps pods off it."""

    cards: NodeCards
    taints: tuple[Taint, ...]
    cordoned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCluster:
    """All pods and nodes, at about the same moment.

    Attributes:
        bound: the pods that have a node, as the extender's books have them.
    """

    pods: tuple[ExplainedPod, ...]
    nodes: tuple[ObservedNode, ...]
    bound: tuple[BoundPod, ...] = ()

    def find(self, key: str) -> ExplainedPod | None:
        """Give the pod ``namespace/name``."""
        return next((it for it in self.pods if it.info.record.key == key), None)


async def observe(client: KubeClient) -> ObservedCluster:
    """List pods and nodes.

    Raises:
        KubeError: the API server did not answer, or would not.
    """
    nodes = await client.list(NODES)
    pods = await client.list(PODS)
    return ObservedCluster(
        pods=tuple(read_subject(bytes(raw)) for raw in pods.items),
        nodes=tuple(read_seen_node(bytes(raw)) for raw in nodes.items),
        bound=tuple(it for raw in pods.items if (it := decode_bound_pod(bytes(raw))) is not None),
    )


def read_subject(body: bytes) -> ExplainedPod:
    """Read everything an explanation needs of a pod."""
    gates = _gated_decoder.decode(body).spec.scheduling_gates or ()
    return ExplainedPod(
        info=decode_pod_info(body),
        scheduling_constraints=scheduling_constraints_of(body),
        gates=tuple(it.name for it in gates),
    )


def read_seen_node(body: bytes) -> ObservedNode:
    """Read everything an explanation needs of a node."""
    return ObservedNode(
        cards=read_node(body),
        taints=taints_of(body),
        cordoned=_node_decoder.decode(body).spec.unschedulable,
    )


def snapshot_of(pods: Iterable[PodInfo], nodes: Iterable[NodeCards], *, now: datetime) -> Snapshot:
    """Fold pods and nodes into who holds what, exactly as the scheduler does."""
    ledger = Ledger()
    for node in nodes:
        ledger.set_node(node)
    for view in pods:
        ledger.set_pod(view.record)
    return ledger.snapshot(now=now)


def cluster_state_of(
    observed: ObservedCluster,
    subject: ExplainedPod,
    *,
    schedulers: Iterable[str],
    strategy: Strategy,
    now: datetime,
) -> ClusterState:
    """See the cluster from where one pod stands."""
    views = {it.info.record.uid: it.info for it in observed.pods}
    taken = _taken_by_node(views.values())
    asked = pod_requests(subject.info.record.containers)
    sites = {
        it.cards.node: NodeConstraints(
            taints=_own_taints(it),
            cordoned=it.cordoned,
            short=shortages(
                it.cards, asked=asked, taken=taken.get(it.cards.node, NO_HOST_RESOURCES)
            ),
        )
        for it in observed.nodes
    }
    return ClusterState(
        snapshot=snapshot_of(views.values(), (it.cards for it in observed.nodes), now=now),
        pods=views,
        node_constraints=sites,
        schedulers=frozenset(schedulers),
        strategy=strategy,
        now=now,
    )


def _own_taints(node: ObservedNode) -> tuple[Taint, ...]:
    """Leave out the taint that a cordoned node gets, which says the same."""
    same = "node.kubernetes.io/unschedulable"
    return tuple(it for it in node.taints if not (node.cordoned and it.key == same))


def _taken_by_node(views: Iterable[PodInfo]) -> Mapping[str, HostResources]:
    taken: dict[str, HostResources] = {}
    for view in views:
        if view.record.live and view.record.node:
            have = taken.get(view.record.node, NO_HOST_RESOURCES)
            more = pod_requests(view.record.containers)
            taken[view.record.node] = replace(
                have,
                cpu_milli=have.cpu_milli + more.cpu_milli,
                memory_mib=have.memory_mib + more.memory_mib,
                pods=have.pods + 1,
            )
    return taken


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command that asks a live cluster."""
    parser.add_argument(
        "--kubeconfig", help="default: the pod's own account, else $KUBECONFIG, else ~/.kube/config"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")


def with_cluster(
    command: str, kubeconfig: str | None, work: Callable[[KubeClient], Awaitable[int]]
) -> int:
    """Run *work* with a client; an API server that does not answer is exit code 1, in words."""

    async def run() -> int:
        async with connect(kubeconfig, user_agent="fracgpu-cli") as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except KubeError as error:
        print(f"fracgpu {command}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 0
