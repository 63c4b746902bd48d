"""What is replayed: a fleet of empty nodes, the pods of a workload, and orders of their arrival.

There are two sources: a trace as two CSV files in the columns of the openb trace
(alibaba/clusterdata, cluster-trace-gpu-v2023), and the nodes and pods of a live cluster.
"""

import csv
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from msgspec import structs

from fracgpu.cards.card import Card, CardUuid, NodeCards
from fracgpu.cards.card_class import model_allowed, model_key
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.placement.node_matrix import WHOLE_CARD_MILLI
from fracgpu.placement.policies.least_waste.mix import Demand
from fracgpu.request.language import MAX_CARDS
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib

# A trace counts in thousandths of a card; each stands for this many MiB, to avoid rounding.
_MIB_PER_MILLI: Final = 80
_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_MOST: Final = 10**15  # of milli-CPUs or MiB; far more than any machine or trace has
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


class WorkloadError(ValueError):
    """A file is not a workload; the message says where, and what was wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPod:
    """One pod: its need of cards (None: no cards), CPU and host memory.

    Attributes:
        demand: the same in the terms of ``least-waste``.
    """

    name: str
    need: PodNeed | None
    host: HostResources
    demand: Demand

    @property
    def mib(self) -> int:
        """MiB over all its cards."""
        return sum(container.total_mib for container in self.need.containers) if self.need else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayWorkload:
    """An empty fleet and the pods that arrive."""

    nodes: tuple[NodeCards, ...]
    pods: tuple[ReplayPod, ...]

    @property
    def cards(self) -> int:
        return sum(len(node.cards) for node in self.nodes)

    @property
    def capacity_mib(self) -> int:
        return sum(card.capacity_mib for node in self.nodes for card in node.cards)


def read_trace(*, nodes: Iterable[str], pods: Iterable[str]) -> ReplayWorkload:
    """Parse a trace from the lines of its two CSV files.

    Raises:
        WorkloadError: a column is missing, a number is invalid, or there is nothing to replay.
    """
    node_rows = [_node(row) for row in _rows(nodes, _NODE_COLUMNS, "the node list")]
    (name, lines), *_ = Counter(one.node for one in node_rows).most_common(1) or [("", 0)]
    if lines > 1:
        raise WorkloadError(f"the node list has {name!r} in {lines} lines; want one for each node")
    pod_rows = [_pod(row) for row in _rows(pods, _POD_COLUMNS, "the pod list")]
    return _checked(ReplayWorkload(nodes=tuple(node_rows), pods=tuple(pod_rows)))


def of_cluster(nodes: Iterable[NodeCards], pods: Iterable[PodInfo]) -> ReplayWorkload:
    """Return the sharing nodes of a live cluster, emptied, and the pods that request cards.

    The CPU and host memory that other pods on these nodes request stays taken.

    Raises:
        WorkloadError: there are no cards, or no pod requests any.
    """
    fleet = {
        node.node: replace(node, cordons=(), schedulable=True, foreign={}, heat={})
        for node in nodes
        if node.shared and node.cards
    }
    cards = [card for node in fleet.values() for card in node.cards]
    found = []
    for pod in pods:
        if not pod.record.live:
            continue
        host = pod.host
        if pod.need is not None:
            found.append(_of_pod(pod, pod.need, host, cards))
        elif pod.record.node in fleet and fleet[pod.record.node].host != NO_HOST_RESOURCES:
            node = fleet[pod.record.node]
            fleet[pod.record.node] = replace(node, host=_less(node.host, host))
    return _checked(ReplayWorkload(nodes=tuple(fleet.values()), pods=tuple(found)))


def arrivals(workload: ReplayWorkload, *, load_ratio: float, seed: int) -> Sequence[ReplayPod]:
    """Return the pods in random order, until they request *load_ratio* of all cards.

    A workload that requests less is extended with pods drawn again, one that requests more is
    thinned out. The same seed always gives the same order.
    """
    rng = random.Random(seed)  # noqa: S311 - a simulation, no secret
    order = list(workload.pods)
    rng.shuffle(order)
    total, goal = sum(pod.mib for pod in order), load_ratio * workload.capacity_mib
    while total > goal:
        total -= order.pop(rng.randrange(len(order))).mib
    while True:
        pod = rng.choice(workload.pods)
        if total + pod.mib > goal:
            return order
        total += pod.mib
        order.append(pod)


def node_order(workload: ReplayWorkload, *, seed: int) -> Sequence[NodeCards]:
    """Return the nodes in random order: the first wins among equals."""
    order = list(workload.nodes)
    random.Random(f"nodes-{seed}").shuffle(order)  # noqa: S311
    return order


def _checked(workload: ReplayWorkload) -> ReplayWorkload:
    if not workload.capacity_mib:
        raise WorkloadError("there are no cards, so nothing can be placed")
    if not any(pod.mib for pod in workload.pods):
        raise WorkloadError("no pod requests a card, so there is nothing to place")
    return workload


def _rows(
    lines: Iterable[str], columns: Sequence[str], what: str
) -> Iterable[tuple[str, Mapping[str, str]]]:
    reader = csv.DictReader(lines)
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise WorkloadError(f"{what} has no column {', '.join(missing)}; want {', '.join(columns)}")
    for row in reader:
        yield f"{what}, line {reader.line_num}", row


def _figure(
    where: str, row: Mapping[str, str], column: str, *, low: int = 0, high: int = _MOST
) -> int:
    text = row[column] or ""
    # A number of thousands of digits is not converted: that takes time, or is an error of int().
    number = int(text) if text.isdecimal() and len(text) <= len(str(_MOST)) else None
    if number is None or not low <= number <= high:
        raise WorkloadError(f"{where}: {column} is {text!r}; want a whole number, {low} to {high}")
    return number


def _node(entry: tuple[str, Mapping[str, str]]) -> NodeCards:
    where, row = entry
    name = row["sn"]
    cards = tuple(
        Card(
            uuid=CardUuid(f"{name}/{index}"),
            index=index,
            model=row["model"],
            total_mib=Mib(WHOLE_CARD_MILLI * _MIB_PER_MILLI),
        )
        for index in range(_figure(where, row, "gpu", high=MAX_CARDS))
    )
    host = HostResources(
        cpu_milli=_figure(where, row, "cpu_milli"), memory_mib=_figure(where, row, "memory_mib")
    )
    return NodeCards(node=name, cards=cards, host=host)


def _pod(entry: tuple[str, Mapping[str, str]]) -> ReplayPod:
    where, row = entry
    cards = _figure(where, row, "num_gpu", high=MAX_CARDS)
    milli = _figure(where, row, "gpu_milli", low=1, high=WHOLE_CARD_MILLI) if cards else 0
    host = HostResources(
        cpu_milli=_figure(where, row, "cpu_milli"), memory_mib=_figure(where, row, "memory_mib")
    )
    models = (
        tuple(model for model in (row.get("gpu_spec") or "").split("|") if model) if cards else ()
    )
    need = None
    if cards:
        container = ContainerNeed(name="main", cards=cards, mib=Mib(milli * _MIB_PER_MILLI))
        need = PodNeed(containers=(container,), models=models)
    demand = Demand(
        cpu_milli=host.cpu_milli,
        cards=cards,
        share_milli=milli,
        models=frozenset(model_key(model) for model in models) or None,
    )
    return ReplayPod(name=row["name"], need=need, host=host, demand=demand)


def _of_pod(pod: PodInfo, need: PodNeed, host: HostResources, cards: Sequence[Card]) -> ReplayPod:
    # The strategy under test decides, not the one that the pod requests.
    need = structs.replace(need, strategy=None)
    most = max(need.containers, key=lambda container: container.total_mib)
    largest = max((card.capacity_mib for card in cards), default=most.mib)
    share = most.share if most.share is not None else Fraction(most.mib, largest)
    models = {
        model_key(card.model) for card in cards if model_allowed(card.model, globs=need.models)
    }
    demand = Demand(
        cpu_milli=host.cpu_milli,
        cards=most.cards,
        share_milli=min(max(math.ceil(share * WHOLE_CARD_MILLI), 1), WHOLE_CARD_MILLI),
        models=frozenset(models) if need.models else None,
    )
    return ReplayPod(name=pod.record.key, need=need, host=host, demand=demand)


def _less(have: HostResources, taken: HostResources) -> HostResources:
    return replace(
        have,
        cpu_milli=max(1, have.cpu_milli - taken.cpu_milli),
        memory_mib=max(1, have.memory_mib - taken.memory_mib),
    )
