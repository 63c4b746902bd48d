"""A small cluster for the extender: an API server of pods, an informer that may lag, a ledger."""

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from fracgpu import names
from fracgpu.cards.card import Card, CardUuid
from fracgpu.k8s.disruption_budget import PodDisruptionBudget
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.placement import CardChooser, CardSelector
from fracgpu.request.need import Strategy
from fracgpu.state.bound_pod_index import BoundPodIndex
from fracgpu.state.ledger import Ledger
from fracgpu.state.move_object import Move
from fracgpu.state.node_info import read_node
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.state.reservation import MoveClaims, claims_of
from kube.errors import Conflict, Forbidden, Invalid, NotFound, Unavailable
from kube.informer import Change, ChangeType
from kube.kinds import PODS, Kind
from kube.objects import ObjectKey
from scheduler.binding_record import BindingRecord
from scheduler.cache.assumptions import Assumptions, AssumptionTimeouts
from scheduler.cache.change_signal import ChangeSignal
from scheduler.cache.event_handlers import AnyPod, ClusterEventHandlers, decode_any_pod
from scheduler.cache.nominations import Nominations
from scheduler.cache.pod_marker import PodMarker
from scheduler.extender.api import BindingArgs, ExtenderArgs, pending_only
from scheduler.extender.bind import Binder
from scheduler.extender.bind_groups import BindGroups
from scheduler.extender.binding_cycles import BindingCycles
from scheduler.extender.filter import Extender
from scheduler.extender.gang_room import GangRoom
from scheduler.extender.gangs import Gangs
from scheduler.extender.preempt import Preemptor
from scheduler.fence import Fence
from scheduler.metrics import SchedulerMetrics
from scheduler.pod_activator import PodActivator
from scheduler.resizer import Resizer
from tests.fakes.clock import VirtualClock
from tests.fakes.events import RecordedEvents
from tests.support.gpu import Json, a_bound_gpu_pod, a_gpu_pod, a_sharing_node, some_cards

PATH = "/api/v1/namespaces/default/pods/p/binding"


def silence() -> Unavailable:
    """Return what the client raises when no answer came."""
    return Unavailable(verb="POST", path=PATH, status=None, reason="Timeout", message="no answer")


def refusal() -> Forbidden:
    return Forbidden(verb="POST", path=PATH, status=403, reason="Forbidden", message="not yours")


def conflict(message: str) -> Conflict:
    return Conflict(verb="POST", path=PATH, status=409, reason="Conflict", message=message)


@dataclass(slots=True)
class PodServer:
    """The parts of the API server that binding uses: a PodBinder with the real preconditions."""

    pods: dict[str, Json] = field(default_factory=dict)
    version: int = 100
    bindings: list[Json] = field(default_factory=list)
    after_get: Callable[[], None] = lambda: None
    before_bind: Callable[[], None] = lambda: None
    bind_raises: Exception | None = None
    answer_lost: bool = False
    get_raises: Exception | None = None
    held: asyncio.Event | None = None
    patches: list[str] = field(default_factory=list)
    patch_raises: Exception | None = None
    patch_answer_lost: bool = False
    before_patch: Callable[[], Awaitable[None]] | None = None
    gets: int = 0

    def put(self, pod: Json) -> Json:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        pod["metadata"].setdefault("uid", f"uid-{pod['metadata']['name']}-{self.version}")
        self.pods[pod["metadata"]["name"]] = pod
        return pod

    def touch(self, name: str) -> None:
        """Write a pod's status, as kube-scheduler does after a failed attempt."""
        self.put(self.pods[name])

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> bytes:
        assert (kind, namespace) == (PODS, "default")
        self.gets += 1
        if self.get_raises is not None:
            raise self.get_raises
        if name not in self.pods:
            raise NotFound(verb="GET", path=name, status=404, reason="NotFound", message=name)
        body = json.dumps(self.pods[name]).encode()
        self.after_get()
        return body

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Json:
        assert (kind, namespace, subresource) == (PODS, "default", "status")
        self.patches.append(name)
        if self.before_patch is not None:
            await self.before_patch()
        if self.patch_raises is not None:
            raise self.patch_raises
        pod = self.pods.get(name)
        if pod is None:
            raise NotFound(verb="PATCH", path=name, status=404, reason="NotFound", message=name)
        if patch["metadata"]["uid"] != pod["metadata"]["uid"]:
            why = "metadata.uid: Invalid value: field is immutable"
            raise Invalid(verb="PATCH", path=name, status=422, reason="Invalid", message=why)
        version = pod["metadata"]["resourceVersion"]
        if patch["metadata"].get("resourceVersion", version) != version:
            raise conflict("the object has been modified")
        pod["metadata"].setdefault("annotations", {}).update(patch["metadata"]["annotations"])
        stored = copy.deepcopy(self.put(pod))
        if self.patch_answer_lost:
            raise silence()
        return stored

    async def bind(self, binding: Mapping[str, Any], *, namespace: str, name: str) -> None:
        self.bindings.append(dict(binding))
        self.before_bind()
        if self.held is not None:
            await self.held.wait()
        if self.bind_raises is not None:
            raise self.bind_raises
        pod = self.pods.get(name)
        if pod is None:
            raise NotFound(verb="POST", path=PATH, status=404, reason="NotFound", message=name)
        if fault := _violated(pod, binding["metadata"]):
            raise conflict(fault)
        self.land(binding, name)
        if self.answer_lost:
            raise silence()

    def land(self, binding: Mapping[str, Any], name: str) -> None:
        """Apply a Binding to its pod."""
        pod = self.pods[name]
        pod["spec"]["nodeName"] = binding["target"]["name"]
        notes = binding["metadata"].get("annotations", {})
        pod["metadata"].setdefault("annotations", {}).update(notes)
        self.put(pod)


def _violated(pod: Json, wanted: Json) -> str:
    """Return which precondition of a Binding fails, similar to the API server's message."""
    meta = pod["metadata"]
    faults = {
        "the UID in the precondition does not match": wanted["uid"] != meta["uid"],
        "the resourceVersion in the precondition does not match": (
            wanted.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]
        ),
        "pod is being deleted, cannot be assigned to a host": "deletionTimestamp" in meta,
        "pod is already assigned to a node": bool(pod["spec"].get("nodeName")),
    }
    return next((text for text, violated in faults.items() if violated), "")


class Harness:
    """The extender's parts with a PodServer, on a virtual clock."""

    def __init__(
        self, *nodes: str, cards: int = 2, mib: int = 24_000, bind_pause_s: float = 0.0
    ) -> None:
        self.clock = VirtualClock()
        self.api = PodServer()
        self.ledger = Ledger()
        self.changes = ChangeSignal()
        self.bound_pods = BoundPodIndex()
        self.strategy = Strategy.PACK
        self.host_left: HostResources | None = None
        self.leads = True
        self.term = "lease/1"
        self.record = BindingRecord(lambda: self.assumptions.under_way())  # noqa: PLW0108
        self.recorded: list[frozenset[str]] = []  # at each write of the Lease
        self.record_raises: Exception | None = None
        self.registry = CollectorRegistry()
        self.metrics = SchedulerMetrics(self.registry)
        self.choosers: dict[Strategy, CardChooser] = {}
        self.cards = CardSelector(
            ledger=self.ledger,
            strategy=lambda: self.strategy,
            choosers=self.choosers,
            now=self.clock.now,
        )
        self.nominations = Nominations(self.cards, self.clock)
        self.matrix = NodeMatrix(self.ledger)
        self.extender = Extender(self.matrix, strategy=lambda: self.strategy, clock=self.clock)
        room = GangRoom(
            self.extender,
            self.matrix,
            cards=self.cards,
            host_left=lambda *_: self.host_left,
            clock=self.clock,
        )
        self.gangs = Gangs(
            self.extender,
            self.ledger,
            room,
            cards=self.cards,
            changes=self.changes,
            clock=self.clock,
        )
        self.handlers = ClusterEventHandlers(
            self.ledger,
            self.changes,
            self.bound_pods,
            nominations=self.nominations,
            on_gang_pod=self.gangs.pod_changed,
            in_gangs=self.gangs.pod_groups.of_pod,
            on_unreadable=self.metrics.unreadable,
        )
        self._nodes: dict[str, Json] = {}
        self._copy: dict[tuple[str, str], AnyPod] = {}
        find = pending_only(lambda namespace, name: self._copy.get((namespace, name)))
        self.cycles = BindingCycles(self.nominations, self.changes, self.clock, find=find)
        for node in nodes or ("n",):
            self.add_node(node, some_cards(node, count=cards, mib=mib))
        self.marker = PodMarker(
            self.api,
            term=lambda: self.term,
            clock=self.clock,
            limit_s=4.0,
            on_mark=self.metrics.marked,
        )
        self.assumptions = Assumptions(
            self.api,
            self.ledger,
            self.clock,
            marker=self.marker,
            times=AssumptionTimeouts(),
            on_lapse=self.metrics.lapsed,
            on_count=self.cycles.settle,
        )
        self.binder = Binder(
            self.api,
            cards=self.cards,
            assumptions=self.assumptions,
            find=find,
            host_left=lambda *_: self.host_left,
            leads=lambda: self.leads,
            term=lambda: self.term,
            record=self._write_record,
            clock=self.clock,
            metrics=self.metrics,
            limit_s=4.0,
            groups=BindGroups(self.clock, pause_s=bind_pause_s),
        )
        self.events = RecordedEvents()
        self.resizer = Resizer(
            self.api,
            ledger=self.ledger,
            marker=self.marker,
            leads=lambda: self.leads,
            record=self._write_record,
            recorder=self.events,
            clock=self.clock,
            limit_s=4.0,
        )
        self.budgets: list[PodDisruptionBudget] = []
        self.preemptor = Preemptor(
            self.ledger,
            self.bound_pods,
            self.matrix,
            budgets=lambda: self.budgets,
            strategy=lambda: self.strategy,
            clock=self.clock,
        )
        self.waker = PodActivator(
            self.ledger,
            self.matrix,
            pods=self.pods,
            find=find,
            marker=self.marker,
            strategy=lambda: self.strategy,
            leads=lambda: self.leads,
            clock=self.clock,
        )

    async def _write_record(self) -> None:
        if self.record_raises is not None:
            raise self.record_raises
        self.recorded.append(frozenset(self.assumptions.under_way()))

    def pods(self) -> list[AnyPod]:
        """Return the pods as the informer has them."""
        return list(self._copy.values())

    def add_node(self, name: str, cards: tuple[Card, ...]) -> None:
        self._nodes[name] = a_sharing_node(name, cards=cards)
        self._tell_node(name, ChangeType.ADDED)

    def annotate_node(self, notes: Mapping[str, str | None], *, node: str = "n") -> None:
        """Write ``fracgpu.io/`` annotations on a node, by name without prefix; None removes one."""
        there = self._nodes[node]["metadata"]["annotations"]
        for word, text in notes.items():
            if text is None:
                there.pop(f"{names.PREFIX}{word}", None)
            else:
                there[f"{names.PREFIX}{word}"] = text
        self._tell_node(node, ChangeType.MODIFIED)

    def taint_node(self, name: str, effect: str) -> None:
        """Give a node this taint and no other."""
        taint = {"key": "example.com/kept", "effect": effect}
        self._nodes[name].setdefault("spec", {})["taints"] = [taint]
        self._tell_node(name, ChangeType.MODIFIED)

    def _tell_node(self, name: str, what: ChangeType) -> None:
        node = read_node(json.dumps(self._nodes[name]).encode())
        key = ObjectKey("", name)
        self.handlers.node_changed(
            Change(type=what, key=key, uid=name, resource_version="1", object=node)
        )

    # -- pods ----------------------------------------------------------------------------------

    def create(self, name: str = "p", **wanted: Any) -> PodInfo:
        """Create a pod that our informer sees at once."""
        self.api.put(a_gpu_pod(name, **wanted))
        return self.see(name)

    def run(self, name: str, *, node: str = "n", **wanted: Any) -> PodInfo:
        """Create a pod that holds its part of a card of *node* already, and observe it."""
        self.api.put(a_bound_gpu_pod(name, node=node, **wanted))
        return self.see(name, ChangeType.ADDED)

    def fence(
        self, pods: Callable[[], Sequence[AnyPod]] | None = None, *, limit_s: float = 75.0
    ) -> Fence:
        """Return the fence of a replica that begins to lead, which has listed these pods."""
        return Fence(
            pods or self.pods,
            self.record,
            self.marker,
            self.clock,
            on_bound=self.assumptions.count_bound,
            limit_s=limit_s,
        )

    def see(self, name: str, what: ChangeType = ChangeType.MODIFIED) -> PodInfo:
        """Let the informer catch up with one pod."""
        body = json.dumps(self.api.pods[name]).encode()
        view = decode_pod_info(body)
        self._tell(view, decode_any_pod(body), what)
        return view

    def delete(self, name: str = "p", *, observed: bool = True) -> None:
        body = json.dumps(self.api.pods.pop(name)).encode()
        if observed:
            self._tell(decode_pod_info(body), decode_any_pod(body), ChangeType.DELETED)

    def _tell(self, view: PodInfo, pod: AnyPod, what: ChangeType) -> None:
        record = view.record
        if what is ChangeType.DELETED:
            self._copy.pop((record.namespace, record.name), None)
        else:
            self._copy[record.namespace, record.name] = pod
        change = Change(
            type=what,
            key=ObjectKey(record.namespace, record.name),
            uid=record.uid,
            resource_version=record.resource_version,
            object=pod,
        )
        self.handlers.pod_changed(change)
        self.resizer.pod_changed(change)

    def see_move(self, move: Move | None = None, *, gone: str = "") -> None:
        """Let the informer of Moves see one, or that the one named *gone* is gone."""
        claims = MoveClaims(move=gone) if move is None else claims_of(move)
        change = Change(
            type=ChangeType.DELETED if gone else ChangeType.MODIFIED,
            key=ObjectKey("", claims.move),
            uid=claims.move,
            resource_version="1",
            object=claims,
        )
        self.handlers.move_changed(change)

    def copy_of(self, name: str = "p") -> Json:
        """Return a copy of the pod in the API server, to be changed and written back."""
        pod: Json = copy.deepcopy(self.api.pods[name])
        return pod

    # -- requests ------------------------------------------------------------------------------

    def args(self, name: str = "p", *, node: str = "n") -> BindingArgs:
        return BindingArgs(
            namespace="default", name=name, uid=self.api.pods[name]["metadata"]["uid"], node=node
        )

    async def bind(self, name: str = "p", *, node: str = "n") -> str:
        return await self.binder.bind(self.args(name, node=node))

    def asking(self, name: str = "p", *nodes: str) -> ExtenderArgs:
        view = decode_pod_info(json.dumps(self.api.pods[name]).encode())
        return ExtenderArgs(pod=view, node_names=nodes or ("n",))

    def held(self, card: str = "GPU-n-0") -> int:
        load = self.ledger.snapshot(now=self.clock.now()).card(CardUuid(card))
        assert load is not None
        return load.held_mib

    def count(self, metric: str, **labels: str) -> float:
        return self.registry.get_sample_value(metric, labels) or 0.0
