"""What would make a waiting pod fit: changes that were tried with the real placement."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import Final

import numpy as np
from msgspec import structs

from fracgpu import names
from fracgpu.cards.card import CordonEffect, Health
from fracgpu.cards.card_class import model_allowed, model_key
from fracgpu.explain.answers import Explanation, FittingCards, Holder, Suggestion, SuggestionKind
from fracgpu.explain.explanation import (
    by_strategy,
    find_fitting_cards,
    fitting_cards_of,
    holders_of,
    try_cards,
)
from fracgpu.placement.fit import USABLE, CardRequest, Cards, cards_of, suits, unfit_reasons
from fracgpu.placement.outcome import Placement
from fracgpu.request.language import main_container
from fracgpu.request.need import ContainerNeed, PodNeed, describe_need
from fracgpu.state.allocation import CardAllocation, cards_in
from fracgpu.state.cluster_state import ClusterState, ExplainedPod
from fracgpu.state.snapshot import CardInfo, NodeInfo
from fracgpu.units import Mib, format_mib, share_of

_MILLI: Final = 1000


def suggest(
    pod: ExplainedPod, state: ClusterState, explanation: Explanation
) -> tuple[Suggestion, ...]:
    """Return the changes that would make the pod fit, those that cost its owner least first."""
    need = pod.info.need
    if need is None or explanation.verdict.good or pod.info.record.node:
        return ()
    need = by_strategy(need, state)
    closed = {node.node for node in explanation.nodes if node.objections}
    everywhere = tuple(state.snapshot.nodes.values())
    opened = tuple(node_info for node_info in everywhere if node_info.node.node not in closed)
    if any(node.fits for node in explanation.nodes):
        return ()  # nothing but the blockers keeps the pod from being placed
    found = [
        *lapsing_cordons(need, opened),
        *leaving_pods(need, opened, state),
        *opened_nodes(explanation),
        *_smaller(pod, need, opened),
        *_fewer_cards(pod, need, opened),
        *_less_compute(pod, need, opened),
        *_without_limits(need, opened),
        *_other_models(need, opened),
    ]
    if not found and not _fits_an_empty(need, everywhere):
        text = f"no node could hold {describe_need(need)}, even if nothing else ran there"
        found.append(Suggestion(kind=SuggestionKind.LARGER_NODE, text=text))
    return tuple(found)


def _smaller(pod: ExplainedPod, need: PodNeed, nodes: Sequence[NodeInfo]) -> Iterator[Suggestion]:
    """Yield the largest smaller share that fits now, on a card that the pod accepts."""
    best: tuple[int, PodNeed, FittingCards] | None = None
    for size in _class_sizes(need, nodes):
        steps = _steps(need)

        def shrunk(step: int, size: Mib = size, steps: int = steps) -> PodNeed | None:
            return _shrunk(need, step=step, steps=steps, size=size)

        found = _largest(shrunk, steps - 1, nodes)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    if best is None:
        return
    _, smaller, cards = best
    key, value = _asked_with(pod, smaller)
    comes_to = f" ({_each_mib(smaller)})" if key == names.FRACTION else ""
    yield Suggestion(
        kind=SuggestionKind.SMALLER,
        text=f'at most {key}: "{value}" fits now{comes_to}: {cards.text}',
        annotations={key: value},
        home=cards,
    )


def _fewer_cards(
    pod: ExplainedPod, need: PodNeed, nodes: Sequence[NodeInfo]
) -> Iterator[Suggestion]:
    most = max(part.cards for part in need.containers)

    def fewer(count: int) -> PodNeed:
        some = (structs.replace(part, cards=min(part.cards, count)) for part in need.containers)
        return structs.replace(need, containers=tuple(some))

    found = _largest(fewer, most - 1, nodes)
    if found is not None:
        count, changed, cards = found
        value = _items({part.name: str(part.cards) for part in changed.containers}, pod)
        yield Suggestion(
            kind=SuggestionKind.FEWER_CARDS,
            text=f'on {count} instead of {most} cards ({names.CARDS}: "{value}") it fits now: '
            f"{cards.text}",
            annotations={names.CARDS: value},
            home=cards,
        )


def _less_compute(
    pod: ExplainedPod, need: PodNeed, nodes: Sequence[NodeInfo]
) -> Iterator[Suggestion]:
    most = max(part.cores for part in need.containers)

    def less(cores: int) -> PodNeed:
        # Step 1 stands for no reservation, which the language does not write as a number.
        limit = 0 if cores == 1 else cores
        some = (structs.replace(part, cores=min(part.cores, limit)) for part in need.containers)
        return structs.replace(need, containers=tuple(some))

    found = _largest(less, most - 1, nodes)
    if found is None:
        return
    cores, changed, cards = found
    if cores == 1:
        text, annotations = f"without {names.CORES}", dict[str, str]()
    else:
        value = _items(
            {part.name: str(part.cores) for part in changed.containers if part.cores}, pod
        )
        text, annotations = f'{names.CORES}: "{value}"', {names.CORES: value}
    yield Suggestion(
        kind=SuggestionKind.LESS_COMPUTE,
        text=f"{text} it fits now: {cards.text}",
        annotations=annotations,
        home=cards,
    )


def _without_limits(need: PodNeed, nodes: Sequence[NodeInfo]) -> Iterator[Suggestion]:
    used = {
        names.FRACTION_LIMIT: any(part.limit_share is not None for part in need.containers),
        names.MEMORY_LIMIT: any(part.limit_mib is not None for part in need.containers),
    }
    keys = " and ".join(key for key, present in used.items() if present)
    bare = tuple(
        structs.replace(part, limit_share=None, limit_mib=None) for part in need.containers
    )
    cards = find_fitting_cards(structs.replace(need, containers=bare), nodes) if keys else None
    if cards is not None:
        yield Suggestion(
            kind=SuggestionKind.NO_LIMIT,
            text=f"without {keys} it fits now: {cards.text}",
            home=cards,
        )


def _other_models(need: PodNeed, nodes: Sequence[NodeInfo]) -> Iterator[Suggestion]:
    shared = any(part.share is not None for part in need.containers)
    every = [info.card for node_info in nodes for info in node_info.cards.values()]
    sizes = {(model_key(card.model), card.capacity_mib if shared else None) for card in every}
    for model, size in sorted(sizes, key=lambda pair: (pair[0], pair[1] or 0)):
        changed = structs.replace(need, models=(model,))
        if size is not None:
            some = tuple(_of_class(part, size) for part in need.containers)
            changed = structs.replace(changed, containers=some)
        allowed = model_allowed(model, globs=need.models)
        cards = (
            None
            if allowed and changed.containers == need.containers
            else find_fitting_cards(changed, nodes)
        )
        if cards is not None:
            yield Suggestion(
                kind=SuggestionKind.OTHER_MODEL,
                text=f'with {names.MODEL}: "{model}" it fits now ({_each_mib(changed)}): '
                f"{cards.text}",
                annotations={names.MODEL: model},
                home=cards,
            )


def _largest(
    changed: Callable[[int], PodNeed | None], most: int, nodes: Sequence[NodeInfo]
) -> tuple[int, PodNeed, FittingCards] | None:
    """Return the largest step from 1 to *most* that fits; what is smaller than that fits too."""
    found: tuple[int, PodNeed, FittingCards] | None = None
    low, high = 1, most
    while low <= high:
        middle = (low + high) // 2
        need = changed(middle)
        cards = find_fitting_cards(need, nodes) if need is not None else None
        if need is not None and cards is not None:
            found = (middle, need, cards)
            low = middle + 1
        else:
            high = middle - 1
    return found


def _fits_an_empty(need: PodNeed, nodes: Sequence[NodeInfo]) -> bool:
    for node_info in nodes:
        empty = {
            uuid: CardInfo(card=replace(info.card, health=Health.HEALTHY))
            for uuid, info in node_info.cards.items()
        }
        if isinstance(try_cards(replace(node_info, cards=empty), need), Placement):
            return True
    return False


def _class_sizes(need: PodNeed, nodes: Sequence[NodeInfo]) -> Sequence[Mib]:
    """Return the card sizes that the pod's shares may be of; an arbitrary one without shares."""
    shares = [part for part in need.containers if part.share is not None]
    sizes = {info.card.capacity_mib for node_info in nodes for info in node_info.cards.values()}
    if not shares:
        return sorted(sizes)[:1]
    return sorted(
        size
        for size in sizes
        if all(
            share_of(part.share or Fraction(1), capacity_mib=size) == part.mib for part in shares
        )
    )


def _steps(need: PodNeed) -> int:
    """Return the number of steps of the request: thousandths, or MiB of a single container."""
    if len(need.containers) > 1:
        return _MILLI
    (only,) = need.containers
    share = only.share
    return only.mib if share is None else -(-share.numerator * _MILLI // share.denominator)


def _shrunk(need: PodNeed, *, step: int, steps: int, size: Mib) -> PodNeed | None:
    containers = []
    for part in need.containers:
        if part.share is None:
            mib = part.mib * step // steps
            containers.append(structs.replace(part, mib=Mib(mib)))
            if mib < 1:
                return None
        else:
            share = Fraction(int(part.share * step * _MILLI / steps), _MILLI)
            if share == 0:
                return None
            containers.append(_of_class(structs.replace(part, share=share), size))
    return structs.replace(need, containers=tuple(containers))


def _of_class(need: ContainerNeed, size: Mib) -> ContainerNeed:
    return (
        need
        if need.share is None
        else structs.replace(need, mib=share_of(need.share, capacity_mib=size))
    )


def _asked_with(pod: ExplainedPod, need: PodNeed) -> tuple[str, str]:
    """Return the key and value with which the author of the pod would ask for *need*."""
    shares = {
        part.name: f"{float(part.share):.3f}".rstrip("0") for part in need.containers if part.share
    }
    if len(shares) == len(need.containers):
        return names.FRACTION, _items(shares, pod)
    annotations = pod.info.annotations
    if len(need.containers) == 1 and not {names.MEMORY, names.FRACTION} & annotations.keys():
        return f"limits {names.GPU_MEM}", str(need.containers[0].total_mib)
    return names.MEMORY, _items({part.name: f"{part.mib}Mi" for part in need.containers}, pod)


def _items(values: Mapping[str, str], pod: ExplainedPod) -> str:
    main = main_container(pod.info.annotations, pod.info.record.containers)
    if main is not None and list(values) == [main]:
        return values[main]
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _each_mib(need: PodNeed) -> str:
    return ", ".join(format_mib(part.mib) for part in need.containers)


_MOST_NODES: Final = 3


def lapsing_cordons(need: PodNeed, nodes: Sequence[NodeInfo]) -> Iterator[Suggestion]:
    """Yield the first node on which the pod fits once cordons have expired, and when."""
    for node_info in nodes:
        free = {uuid: structs.replace(one, cordoned=False) for uuid, one in node_info.cards.items()}
        answer = try_cards(replace(node_info, cards=MappingProxyType(free)), need)
        if not isinstance(answer, Placement):
            continue
        taken = cards_in(answer.assignment)
        until = [
            cordon.until
            for cordon in node_info.node.cordons
            if cordon.card in taken and cordon.effect is CordonEffect.NO_SCHEDULE
        ]
        if until:
            cards = fitting_cards_of(answer, node_info)
            yield Suggestion(
                kind=SuggestionKind.CORDON_ENDS,
                text=f"it fits on {cards.text} when the cordon lapses at {max(until):%H:%M:%S} UTC",
                home=cards,
                at=max(until),
            )
            return


def leaving_pods(
    need: PodNeed, nodes: Sequence[NodeInfo], state: ClusterState
) -> Iterator[Suggestion]:
    """Yield the smallest set of pods of one node that would make room for the pod by ending."""
    best: tuple[tuple[int, int, str], FittingCards, tuple[Holder, ...]] | None = None
    for node_info in nodes:
        uids = _in_the_way(node_info, need, state)
        rest = node_info.without_pods(state.snapshot.pods[uid] for uid in uids)
        answer = try_cards(rest, need)
        if not uids or not isinstance(answer, Placement):
            continue
        victims = _victims(node_info, uids, state)
        cost = (len(victims), sum(victim.mib for victim in victims), node_info.node.node)
        if best is None or cost < best[0]:
            best = (cost, fitting_cards_of(answer, rest), victims)
    if best is None:
        return
    _, cards, victims = best
    whose = ", ".join(f"{victim.pod} ({format_mib(victim.mib)})" for victim in victims)
    leaving = all(victim.terminating for victim in victims)
    text = f"it fits on {cards.text} once {whose} {'are' if len(victims) > 1 else 'is'} gone"
    yield Suggestion(
        kind=SuggestionKind.PODS_GO,
        text=text + (", which is under way" if leaving else ""),
        home=cards,
        pods=tuple(victim.pod for victim in victims),
    )


def _in_the_way(node_info: NodeInfo, need: PodNeed, state: ClusterState) -> frozenset[str]:
    """Return pods that would make room by ending, on the cards where that takes fewest pods."""
    most = max(need.containers, key=lambda part: (part.mib, part.cards))
    most = structs.replace(most, cores=max(part.cores for part in need.containers))
    infos = tuple(node_info.cards.values())
    # A card that is kept for a pod is looked at: the hold is one of the reasons, and lapses.
    cards = cards_of([structs.replace(info, kept_for="") for info in infos]).at(0)
    costs = []
    for number in np.flatnonzero(suits(cards, need, CardRequest.of(most))).tolist():
        info, card = infos[number], cards.at(np.array([number]))
        limits = (int(CardRequest.of(part).limits_on(card)[0]) for part in need.containers)
        asked = CardRequest.of(most)._replace(limit_mib=max(limits), limit_share=None)
        uids = _cheapest(card, info, need, asked, state)
        costs.append((len(uids), info.held_mib, info.card.index, uids))
    costs.sort(key=lambda cost: cost[:3])
    return frozenset(uid for *_, uids in costs[: most.cards] for uid in uids)


def _cheapest(
    card: Cards, info: CardInfo, need: PodNeed, asked: CardRequest, state: ClusterState
) -> tuple[str, ...]:
    """Return pods of one card that make room for a container by ending."""
    by_pod = {uid: state.snapshot.pods[uid].by_card[info.card.uuid] for uid in sorted(info.pods)}
    leaving, left = dict[str, CardAllocation](), card
    while by_pod and unfit_reasons(left, need, asked)[0] != USABLE:
        need_mib = max(int(asked.mib) - int(left.free_mib[0]), 0)
        need_cores = max(int(asked.cores) - int(left.free_cores[0]), 0)
        need_limit_mib = max(int(asked.limit_mib) - int(left.free_limit_mib[0]), 0)
        enough = [
            uid
            for uid, held in by_pod.items()
            if held.mib >= need_mib and held.cores >= need_cores
            if held.limit_mib >= need_limit_mib
        ]
        # The smallest pod that is enough by itself, else the largest: few pods, and small ones.
        if enough:
            uid = min(enough, key=lambda pod: by_pod[pod].mib)
        else:
            uid = max(
                by_pod,
                key=lambda pod: (
                    min(by_pod[pod].cores, need_cores),
                    min(by_pod[pod].limit_mib, need_limit_mib),
                    by_pod[pod].mib,
                ),
            )
        leaving[uid] = by_pod.pop(uid)
        left = card.without([tuple(leaving.values())])
    return tuple(leaving)


def _victims(node_info: NodeInfo, uids: frozenset[str], state: ClusterState) -> tuple[Holder, ...]:
    found: dict[str, Holder] = {}
    for card_info in node_info.cards.values():
        only = structs.replace(card_info, pods=tuple(uid for uid in card_info.pods if uid in uids))
        for holder in holders_of(only, state.snapshot, state.pods):
            before = found.get(holder.pod)
            found[holder.pod] = replace(holder, mib=Mib(holder.mib + (before.mib if before else 0)))
    return tuple(sorted(found.values(), key=lambda holder: holder.pod))


def opened_nodes(explanation: Explanation) -> Iterator[Suggestion]:
    """Yield nodes whose cards fit, but which do not take the pod."""
    would = [node for node in explanation.nodes if node.cards_fit and node.objections]
    for node in would[:_MOST_NODES]:
        why = "; ".join(objection.text for objection in node.objections)
        how = "; ".join(objection.remedy for objection in node.objections if objection.remedy)
        text = f"{node.node} has the cards, but {why}"
        yield Suggestion(
            kind=SuggestionKind.NODE_OPENS,
            text=f"{text}; to open it: {how}" if how else text,
            home=FittingCards(
                node=node.node, cards=tuple(card.index for card in node.cards if card.chosen)
            ),
        )
