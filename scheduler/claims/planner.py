"""Which cards a claim lists: those that a pod would get on its best few nodes."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.device_claims.claims import (
    NO_BORROW,
    Borrow,
    Shortlists,
    borrow_in,
    refuse_too_large,
    shortlists,
)
from fracgpu.device_claims.taints import DeviceTaint, kept_for, reserved_by
from fracgpu.errors import RequestError
from fracgpu.k8s.node import Taint
from fracgpu.k8s.node_affinity import NodeRules
from fracgpu.k8s.scheduling.node_filters import CORDONED
from fracgpu.k8s.scheduling.objects import SchedulingNode
from fracgpu.placement.fit import least_borrow
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import CardsOnNode
from fracgpu.request.language import required_isolation
from fracgpu.state.allocation import Assignment, cards_in
from fracgpu.state.pod_info import PodInfo
from scheduler.claims.cache import UnboundPod
from scheduler.core import SchedulerCore
from scheduler.extender.api import ExtenderArgs

# With more nodes kube-scheduler, which knows nothing of waste, has too much choice; with one, a pod
# waits for us whenever the node has become full meanwhile.
NODES_LISTED: Final = 4

_NO_NODE: Final = "no node that the pod selects and tolerates shares cards"
_NO_HOST: Final = "no node with a fitting card has the CPU and memory that the pod requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a pod's claim is to list.

    Attributes:
        nodes: the best first; none where no card fits now, and *why* then says why not.
        choice: the cards on the first of them.
        cards: the shortlist of each container; None to leave the claim open.
        borrow: how much more than they are guaranteed containers may use on each of its cards.
        tolerated: the taints of the cards that Moves hold for the pod.
        move: the Move whose reservation it consumes; empty if it consumes none.
    """

    nodes: tuple[str, ...] = ()
    choice: Assignment
    cards: Shortlists | None
    borrow: Borrow = field(default_factory=lambda: NO_BORROW)
    why: str = ""
    tolerated: tuple[DeviceTaint, ...] = ()
    move: str = ""


def why_no_claim(pod: PodInfo) -> str:
    """Return why no claim is made for a pod, whatever is free; empty if one is."""
    if pod.need_problem or pod.need is None:
        return pod.need_problem or "the pod has a claim of FracGPU's, and no grant"
    try:
        refuse_too_large(pod.need)
    except RequestError as error:
        return str(error)
    return ""


class ClaimPlanner:
    """Plans with the core's ledger and policies.

    Args:
        core: as the extender answers by it.
        nodes: what kube-scheduler reads of each node; live.
    """

    def __init__(self, core: SchedulerCore, nodes: Mapping[str, SchedulingNode]) -> None:
        self._core = core
        self._nodes = nodes

    def refreshing(self) -> Iterator[None]:
        """Take over what changed of nodes, in steps; what changes later, each plan takes over."""
        return self._core.extender.refreshing()

    def plan(
        self,
        pod: UnboundPod,
        *,
        without: Collection[str] = (),
        kept: Collection[CardUuid] = frozenset(),
    ) -> Plan:
        """Return the best cards for a pod.

        Args:
            pod: the pod.
            without: nodes of which none is listed.
            kept: cards that are kept for others. What they leave of them the pod may get as its
                first choice, which is counted for it, and not as another.
        """
        info = pod.info
        candidates = self.candidates(pod, without=without)
        held = self._core.held_for(info, candidates)
        if held is not None and self._has_host(info, held.placement.node):
            return _of_held(info, held)
        args = ExtenderArgs(pod=info, node_names=candidates)
        ranked = self._core.extender.ranked(args)
        choices: dict[str, Assignment] = {}
        for name in ranked:
            placement = self._core.cards_on(info, name) if self._has_host(info, name) else None
            if isinstance(placement, Placement):
                if placement.avoided and choices:  # then come only nodes with nothing but such
                    break
                if choices and not _may_join(placement.assignment, choices, kept):
                    continue
                choices[name] = placement.assignment
                if len(choices) == NODES_LISTED:
                    break
        if choices:
            return _listed(choices)
        why = _NO_HOST if ranked else self._core.extender.filter(args).reason or _NO_NODE
        return Plan(choice={}, cards=None, why=why)

    def borrow_if_open(self, pod: UnboundPod) -> Borrow:
        """Return how much more than they are guaranteed an open claim lets containers use.

        Nothing, where no node that the pod may run on has cards that can be limited.
        """
        need = pod.info.need
        if need is None or not any(one.may_borrow for one in need.containers):
            return NO_BORROW
        return least_borrow(self._core.cards_of(self.candidates(pod)), need)

    def candidates(self, pod: UnboundPod, *, without: Collection[str] = ()) -> tuple[str, ...]:
        """Return the nodes that a pod may run on, whatever is free there."""
        labels, tolerates = _wanted_labels(pod.info), cache(pod.rules.tolerates)
        return tuple(
            name
            for name, node in self._nodes.items()
            if name not in without and _takes(node, pod.rules, labels, tolerates)
        )

    def may_run(self, pod: UnboundPod, node: str) -> bool:
        """Report whether a pod may run on a node, whatever is free there."""
        known = self._nodes.get(node)
        labels = _wanted_labels(pod.info)
        return known is not None and _takes(known, pod.rules, labels, pod.rules.tolerates)

    def fits(self, pod: UnboundPod, node: str) -> bool:
        """Report whether a node that a pod may run on has cards for it now."""
        found = self._core.cards_on(pod.info, node) if self.may_run(pod, node) else None
        return isinstance(found, Placement)

    def held(self, pod: UnboundPod, *, without: Collection[str]) -> Plan | None:
        """Return what a claim has to list because Moves hold cards for the pod; None if none do."""
        plan = self.plan(pod, without=without) if self._core.may_be_held_for(pod.info) else None
        return plan if plan is not None and plan.tolerated else None

    def without_host(self, pod: UnboundPod) -> frozenset[CardUuid]:
        """Return the cards of nodes whose CPU or memory Moves keep for others than the pod."""
        return self._core.without_host(pod.info)

    def _has_host(self, pod: PodInfo, node: str) -> bool:
        left = self._core.host_left(node, pod.record.uid)
        return left is None or not left.lacks(pod.host)


def _may_join(
    assignment: Assignment, choices: Mapping[str, Assignment], kept: Collection[CardUuid]
) -> bool:
    """Report whether a claim may list cards beside those of better nodes."""
    # It requests the same of each card.
    equivalent = borrow_in((assignment,)).keys() == borrow_in(choices.values()).keys()
    return equivalent and cards_in(assignment).isdisjoint(kept)


def plan_on(node: str, choice: Assignment, *, why: str = "") -> Plan:
    """Return the plan with the cards of one node, and no others."""
    return _listed({node: choice}, why=why)


def _listed(choices: Mapping[str, Assignment], *, why: str = "") -> Plan:
    in_order = tuple(choices.values())
    return Plan(
        nodes=tuple(choices),
        choice=in_order[0],
        cards=shortlists(in_order),
        borrow=borrow_in(in_order),
        why=why,
    )


def _of_held(pod: PodInfo, held: CardsOnNode) -> Plan:
    """Return the plan with the cards that a Move holds for the pod, and no others."""
    placement = held.placement
    taint = reserved_by(held.move) if held.move else kept_for(pod.record.uid)
    plan = plan_on(placement.node, placement.assignment)
    return replace(plan, tolerated=(taint,), move=held.move)


def _wanted_labels(pod: PodInfo) -> Sequence[tuple[str, str]]:
    """Return the labels that a node needs for what a card alone does not say."""
    mechanism = None if pod.need is None else required_isolation(pod.need.isolation)
    wanted = [(names.CARD_CLASS_LABEL, pod.card_class)] if pod.card_class else []
    if mechanism is not None:
        wanted.append((f"{names.ISOLATION_LABEL_PREFIX}{mechanism.value}", "true"))
    return wanted


def _takes(
    node: SchedulingNode,
    rules: NodeRules,
    labels: Sequence[tuple[str, str]],
    tolerates: Callable[[tuple[Taint, ...]], bool],
) -> bool:
    """Report whether kube-scheduler's filters would let a pod onto a node, as far as it matters.

    Args:
        node: the node.
        rules: of the pod.
        labels: further ones that the node needs.
        tolerates: those rules' own: most nodes have the same taints, and a pod many tolerations.
    """
    return (
        all(node.labels.get(key) == value for key, value in labels)
        and rules.selects(node.labels, node=node.name)
        and tolerates(node.taints)
        and (not node.unschedulable or tolerates((CORDONED,)))
    )
