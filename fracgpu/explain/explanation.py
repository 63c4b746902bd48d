"""Why a pod waits, or where it runs: node by node and card by card.

The answer comes from :func:`fracgpu.placement.placement.place`, which also places real pods.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from msgspec import structs

from fracgpu import names
from fracgpu.cards.card import FULL_CORES, CardUuid, Cordon, CordonEffect, NodeCards
from fracgpu.explain.answers import (
    NO_FITTING_CARDS,
    CardAnswer,
    Explanation,
    FittingCards,
    HeldCard,
    Holder,
    NodeAnswer,
    Objection,
    PodVerdict,
)
from fracgpu.explain.gangs import why_gang_waits
from fracgpu.explain.moves import words_of_hold, words_of_moves
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.k8s.scheduling.node_filters import CORDONED
from fracgpu.placement.fit import FitReason
from fracgpu.placement.outcome import NoPlacement, Placement
from fracgpu.placement.placement import place
from fracgpu.request.grant_note import words_of
from fracgpu.request.language import required_isolation, wanted_isolation
from fracgpu.request.need import DEFAULT_STRATEGY, PodNeed, describe_need
from fracgpu.state.allocation import PodRecord, allocations_by_card, cards_in
from fracgpu.state.cluster_state import ClusterState, ExplainedPod, NodeConstraints
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import CardInfo, NodeInfo, Snapshot

# Larger than any real value of the labels that the webhook compares with.
_ANY_NUMBER: Final = "999999999"
_LIMITING: Final = dict.fromkeys(names.ISOLATION_LABELS, "true")
_NOT_ADMITTED: Final = (
    f"the webhook has not admitted it (no {names.GRANTED}); create it again while the webhook is up"
)
_NO_SUCH_SIZE: Final = Objection(text="its labels say that it has no cards of the granted size")


def explain(pod: ExplainedPod, state: ClusterState) -> Explanation:
    """Return the explanation of one pod, which depends only on the arguments."""
    pod_info = pod.info
    record = pod_info.record
    asks = words_of(pod_info.annotations.get(names.GRANTED, "")) or _asks(pod_info.need)
    found = Explanation(pod=record.key, verdict=PodVerdict.STUCK, asks=asks)
    if pod_info.need is None and not pod_info.need_problem and record.assignment is None:
        return replace(found, verdict=PodVerdict.ASKS_NOTHING)
    if not record.live:
        return replace(found, verdict=PodVerdict.ENDED, on_node=record.node)
    if record.node:
        return _placed(found, pod_info, state)
    blockers = _blockers(pod, state)
    found = replace(found, blockers=blockers, notes=(*_notes(pod, state), *state.notes))
    if pod_info.need is None:
        return found
    need = by_strategy(pod_info.need, state)
    nodes = tuple(
        judge_node(node_info, need, pod, state) for node_info in state.snapshot.nodes.values()
    )
    blockers = (*blockers, *why_gang_waits(pod_info, nodes, state))
    found = replace(found, blockers=blockers)
    fits = not blockers and any(node.fits for node in nodes)
    verdict = PodVerdict.FITS if fits else PodVerdict.STUCK
    if state.cards_only and not blockers:
        open_nodes = [node for node in nodes if node.cards_fit and not node.objections]
        verdict = PodVerdict.CARDS_FIT if open_nodes else PodVerdict.STUCK
    return replace(
        found,
        verdict=verdict,
        nodes=nodes,
        choice=_choice(nodes, state.preferred_node) if fits else NO_FITTING_CARDS,
    )


def by_strategy(need: PodNeed, state: ClusterState) -> PodNeed:
    """Return a need with the strategy that applies to it: its own, else the cluster's."""
    return structs.replace(need, strategy=need.strategy or state.strategy)


def _choice(nodes: Iterable[NodeAnswer], preferred: str) -> FittingCards:
    """Return the chosen cards of the preferred node; without one, of the first node that fits."""
    fitting = sorted((node for node in nodes if node.fits), key=lambda node: node.node != preferred)
    cards = tuple(card.index for card in fitting[0].cards if card.chosen)
    return FittingCards(node=fitting[0].node, cards=cards)


def judge_node(
    node_info: NodeInfo, need: PodNeed, pod: ExplainedPod, state: ClusterState
) -> NodeAnswer:
    """Return whether one node would take the pod now, and all reasons if not."""
    answer = try_cards(node_info, need, among=state.chosen.get(node_info.node.node))
    objections = objections_of(node_info.node, pod, state)
    if isinstance(answer, NoPlacement):
        # The reasons of the cards are more exact than those of the labels that describe them.
        objections = tuple(objection for objection in objections if objection != _NO_SUCH_SIZE)
    node_refuses = isinstance(answer, NoPlacement) and answer.node_reason is not None
    return NodeAnswer(
        node=node_info.node.node,
        fits=not objections and isinstance(answer, Placement) and not state.cards_only,
        cards_fit=isinstance(answer, Placement),
        reason=answer.text if isinstance(answer, NoPlacement) else "",
        objections=objections,
        cards=tuple(
            _card(card_info, need, answer, state, node_info.node.cordons, node_refuses=node_refuses)
            for card_info in node_info.cards.values()
        ),
    )


def try_cards(
    node_info: NodeInfo, need: PodNeed, *, among: frozenset[CardUuid] | None = None
) -> Placement | NoPlacement:
    """Return the placement on the cards of a node, as if the node were schedulable.

    Args:
        node_info: the node.
        need: what is asked for, with the strategy that applies to it; see `by_strategy`.
        among: the cards to take if they fit; None for any.
    """
    opened = replace(node_info, node=replace(node_info.node, schedulable=True))
    others = node_info.cards.keys() - among if among is not None else frozenset()
    # Only a need that no pod has lacks a strategy: use the default of the product.
    answer = place(opened, need, strategy=DEFAULT_STRATEGY, exclude=frozenset(others))
    if isinstance(answer, NoPlacement) and others:
        return place(opened, need, strategy=DEFAULT_STRATEGY)
    return answer


def find_fitting_cards(need: PodNeed, nodes: Iterable[NodeInfo]) -> FittingCards | None:
    """Return the cards of the first of *nodes* that would take the pod now, or None."""
    for node_info in nodes:
        answer = try_cards(node_info, need)
        if isinstance(answer, Placement):
            return fitting_cards_of(answer, node_info)
    return None


def fitting_cards_of(answer: Placement, node_info: NodeInfo) -> FittingCards:
    """Return the cards of a placement by index, as users name them."""
    uuids = cards_in(answer.assignment)
    indexes = sorted(node_info.cards[uuid].card.index for uuid in uuids)
    return FittingCards(node=answer.node, cards=tuple(indexes))


def objections_of(node: NodeCards, pod: ExplainedPod, state: ClusterState) -> tuple[Objection, ...]:
    """Return the reasons why a node does not take the pod whatever its cards."""
    name = node.node
    constraints = state.node_constraints.get(name, NodeConstraints())
    found = []
    cordoned = constraints.cordoned or node.unschedulable
    if cordoned and not pod.scheduling_constraints.node.tolerates((CORDONED,)):
        found.append(Objection(text="the node is cordoned", remedy=f"kubectl uncordon {name}"))
    elif not cordoned and not node.schedulable:
        found.append(
            Objection(
                text="the node is not ready, or kubelet does not know its node agent",
                remedy=f"kubectl describe node {name}",
            )
        )
    if node.problem:
        found.append(Objection(text=f"one of its annotations cannot be parsed: {node.problem}"))
    allows = partial(pod.scheduling_constraints.allows, node=name)
    opened = open_labels(node, state, card_class=pod.info.card_class)
    found += [_selector_objection(node, pod)] if not allows(opened, ()) else []
    if (lacking := lacking_isolation(node, pod)) is not None:
        why = node.isolation.get(lacking) or "its agent has not said whether it can"
        found.append(
            Objection(
                text=f"the pod wants {names.ISOLATION}: {lacking}, and the node does not limit "
                f"containers so: {why}",
                remedy=f'let the pod have {names.ISOLATION}: "best", or see docs/enforcement.md',
            )
        )
    limiting = {**node.labels, **_LIMITING}
    if allows(opened, ()) and not allows(limiting, ()):
        found.append(_NO_SUCH_SIZE)
    bare = {**opened, **pod.info.node_selector}
    found += [
        Objection(
            text=f"taint {taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect} "
            "that the pod does not tolerate",
            remedy=f"give the pod a toleration for {taint.key}",
        )
        for taint in constraints.taints
        if allows(bare, ()) and not allows(bare, (taint,))
    ]
    found += [Objection(text=shortage) for shortage in constraints.short]
    found += [
        Objection(text=f"kube-scheduler refuses it: {refused}")
        for refused in constraints.refused_by
    ]
    return tuple(found)


def shortages(node: NodeCards, *, asked: HostResources, taken: HostResources) -> tuple[str, ...]:
    """Return what the node lacks besides cards; nothing if its allocatable is unknown."""
    if node.host == NO_HOST_RESOURCES:
        return ()
    free, found = node.host - taken, []
    if asked.cpu_milli > free.cpu_milli:
        found.append(f"too little CPU: {max(0, free.cpu_milli)}m free, {asked.cpu_milli}m asked")
    if asked.memory_mib > free.memory_mib:
        text = f"{max(0, free.memory_mib)} MiB free, {asked.memory_mib} MiB asked"
        found.append(f"too little host memory: {text}")
    if node.host.pods and taken.pods >= node.host.pods:
        found.append(f"the node has its maximum of {node.host.pods} pods")
    return tuple(found)


def open_labels(node: NodeCards, state: ClusterState, *, card_class: str = "") -> Mapping[str, str]:
    """Return the node's labels as if it had cards of every size, and limited containers.

    And of the class of the pool catalogue by which the pod was granted a share, if any.

    The webhook writes the size that it granted into the pod's affinity. Here, cards are evaluated
    one by one, and a pod with another request gets another affinity.
    """
    sizes = {
        card_info.card.capacity_mib
        for node_info in state.snapshot.nodes.values()
        for card_info in node_info.cards.values()
    }
    return {
        **node.labels,
        **{f"{names.CARD_CLASS_LABEL_PREFIX}{size}": _ANY_NUMBER for size in sizes},
        names.CARD_MEMORY_LABEL: _ANY_NUMBER,
        **_LIMITING,
        names.CARD_COUNT_LABEL: _ANY_NUMBER,
        **({names.CARD_CLASS_LABEL: card_class} if card_class else {}),
    }


def lacking_isolation(node: NodeCards, pod: ExplainedPod) -> str | None:
    """Return by what a pod has to be limited as the node limits no container, or None."""
    wanted = required_isolation(wanted_isolation(pod.info.annotations))
    if wanted is None or node.labels.get(f"{names.ISOLATION_LABEL_PREFIX}{wanted.value}") == "true":
        return None
    return wanted.value


def _asks(need: PodNeed | None) -> str:
    return "" if need is None else describe_need(need)


def _placed(found: Explanation, pod_info: PodInfo, state: ClusterState) -> Explanation:
    record = pod_info.record
    found = replace(found, on_node=record.node, since=pod_info.started_at)
    if not record.assignment:
        why = record.problem or f"it has no {names.ASSIGNMENT}"
        blocker = (
            f"it was bound to {record.node} without cards ({why}), so the node agent does not "
            "let it start; only FracGPU's extender may bind it: delete it and create it again"
            if names.GRANTED in pod_info.annotations
            else _NOT_ADMITTED
        )
        return replace(found, blockers=(blocker,))
    return replace(found, verdict=PodVerdict.RUNS, held=_held(record, state))


def _held(record: PodRecord, state: ClusterState) -> tuple[HeldCard, ...]:
    node_info = state.snapshot.nodes.get(record.node)
    found = []
    for uuid, allocation in allocations_by_card(record.assignment or {}, record.counted).items():
        card_info = node_info.cards.get(uuid) if node_info else None
        found.append(
            HeldCard(
                uuid=uuid,
                index=card_info.card.index if card_info else -1,
                model=card_info.card.model if card_info else "",
                mib=allocation.mib,
                cores=allocation.cores,
            )
        )
    return tuple(sorted(found, key=lambda card: (card.index, card.uuid)))


def _blockers(pod: ExplainedPod, state: ClusterState) -> tuple[str, ...]:
    pod_info = pod.info
    found = []
    if pod_info.record.terminating:
        found.append("it is being deleted")
    if pod_info.need_problem:
        found.append(f"what it asks for cannot be granted: {pod_info.need_problem}")
    elif names.GRANTED not in pod_info.annotations:
        found.append(_NOT_ADMITTED)
    if pod_info.scheduler_name not in state.schedulers and not pod_info.device_claim:
        wanted = " or ".join(sorted(state.schedulers))
        found.append(
            f"its schedulerName is {pod_info.scheduler_name!r}; only {wanted} asks FracGPU for a "
            "card"
        )
    found += [
        f"its claim {name} is not bound to a volume: its storage class binds at once, and "
        f"kube-scheduler waits for that; see kubectl describe pvc {name}"
        for name in state.unbound
    ]
    if pod.gates:
        found.append(f"it is held back by scheduling gates: {', '.join(pod.gates)}")
    return tuple(found)


def _notes(pod: ExplainedPod, state: ClusterState) -> tuple[str, ...]:
    unjudged = [f"its {name} is not evaluated here" for name in pod.unjudged]
    if state.cards_only:
        unjudged.append("taints, CPU, host memory and volumes are not evaluated here")
        if pod.unschedulable_message:
            unjudged.append(f"kube-scheduler said last: {pod.unschedulable_message}")
    name = pod.info.card_class
    nodes = [info.node for info in state.snapshot.nodes.values()]
    if name and not any(node.labels.get(names.CARD_CLASS_LABEL) == name for node in nodes):
        unjudged.append(
            f"no node has {name} cards now: it waits until a pool with such cards gets one "
            "(fracgpu pools)"
        )
    return tuple(unjudged)


def _says_what_it_is(label: str) -> bool:
    """Report whether kubelet, a cloud or our agent writes a label of nodes, and nobody else."""
    domain = label.partition("/")[0]
    ours = label.startswith(names.PREFIX) and label != names.SHARE_LABEL
    return ours or f".{domain}".endswith((".kubernetes.io", ".k8s.io"))


def _labelling(node: NodeCards, labels: Mapping[str, str]) -> str:
    over = " --overwrite" if labels.keys() & node.labels.keys() else ""
    words = " ".join(f"{key}={value}" for key, value in labels.items())
    return f"kubectl label node {node.node} {words}{over}"


def _selector_objection(node: NodeCards, pod: ExplainedPod) -> Objection:
    selector = pod.info.node_selector
    wrong = {key: value for key, value in selector.items() if node.labels.get(key) != value}
    if wrong:
        listed_wrong = ", ".join(f"{key}={value}" for key, value in wrong.items())
        return Objection(
            text=f"the pod's nodeSelector wants {listed_wrong}",
            remedy="" if any(map(_says_what_it_is, wrong)) else _labelling(node, wrong),
        )
    if node.labels.get(names.SHARE_LABEL) != "true":
        return Objection(
            text="the node does not share its cards",
            remedy=_labelling(node, {names.SHARE_LABEL: "true"}),
        )
    return Objection(text="the pod's node affinity rules it out")


def _card(
    card_info: CardInfo,
    need: PodNeed,
    answer: Placement | NoPlacement,
    state: ClusterState,
    cordons: Sequence[Cordon],
    *,
    node_refuses: bool,
) -> CardAnswer:
    uuid = card_info.card.uuid
    there = next((cordon for cordon in cordons if cordon.card == uuid), None)
    cordon = there if there and there.effect is CordonEffect.NO_SCHEDULE else None
    reason, until, chosen = "", None, False
    if isinstance(answer, Placement):
        chosen = uuid in cards_in(answer.assignment)
    elif uuid in answer.refusals:
        why = answer.refusals[uuid]
        reason = words_of_hold(why, card_info, state) or (
            _words(why, card_info, need, cordon) + words_of_moves(why, card_info, state)
        )
        until = cordon.until if why is FitReason.CORDONED and cordon else None
    elif node_refuses:
        reason = "would fit by itself"
    return CardAnswer(
        uuid=uuid,
        index=card_info.card.index,
        model=card_info.card.model,
        capacity_mib=card_info.card.capacity_mib,
        free_mib=card_info.free_mib,
        free_cores=FULL_CORES - card_info.held_cores,
        reason=reason,
        chosen=chosen,
        until=until,
        avoided_until=there.until if there and card_info.avoided else None,
        holders=holders_of(card_info, state.snapshot, state.pods),
    )


def holders_of(
    card_info: CardInfo, snapshot: Snapshot, pods: Mapping[str, PodInfo]
) -> tuple[Holder, ...]:
    """Return the pods that hold parts of a card, the largest first."""
    found = []
    for uid in card_info.pods:
        allocation, pod_info = snapshot.pods[uid].by_card[card_info.card.uuid], pods.get(uid)
        found.append(
            Holder(
                pod=pod_info.record.key if pod_info else uid,
                mib=allocation.mib,
                cores=allocation.cores,
                limit_mib=allocation.limit_mib,
                terminating=bool(pod_info and pod_info.record.terminating),
            )
        )
    return tuple(sorted(found, key=lambda holder: (-holder.mib, holder.pod)))


def _words(why: FitReason, card_info: CardInfo, need: PodNeed, cordon: Cordon | None) -> str:
    largest_mib = max(container.mib for container in need.containers)
    match why:
        case FitReason.TOO_LITTLE_FREE:
            foreign = (
                f" ({card_info.foreign_mib} MiB used by other processes)"
                if card_info.foreign_mib
                else ""
            )
            return f"{why.value} for {largest_mib} MiB{foreign}{_unplaced(card_info)}"
        case FitReason.LIMITS_TOO_LARGE | FitReason.TOO_FEW_CORES | FitReason.NO_FREE_SLOT:
            return f"{why.value}: {_left(why, card_info, need)}"
        case FitReason.WRONG_MODEL:
            return f"{why.value} ({', '.join(need.models)})"
        case FitReason.WRONG_CLASS:
            return f"{why.value} ({card_info.card.capacity_mib} MiB shareable)"
        case FitReason.UNHEALTHY if card_info.card.health_reason:
            return f"{why.value}: {card_info.card.health_reason}"
        case FitReason.CORDONED if cordon is not None:
            return f"{why.value} until {cordon.until:%H:%M:%S} UTC ({cordon.reason})"
        case _:
            return str(why.value)


def _left(why: FitReason, card_info: CardInfo, need: PodNeed) -> str:
    if why is FitReason.LIMITS_TOO_LARGE:
        return f"{card_info.free_limit_mib} of {card_info.card.most_limits_mib} MiB left"
    if why is FitReason.NO_FREE_SLOT:
        return f"{card_info.held_slots} of {card_info.card.slots}"
    cores = max(container.cores for container in need.containers)
    return f"{FULL_CORES - card_info.held_cores}% free, {cores}% asked"


def _unplaced(card_info: CardInfo) -> str:
    if not card_info.unplaced_mib:
        return ""
    return f" ({card_info.unplaced_mib} MiB may be held by pods whose assignment cannot be parsed)"
