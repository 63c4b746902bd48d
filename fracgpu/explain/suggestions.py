"""What would make a waiting pod fit: each change is tried on the real placement, then told."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from fracgpu import names
from fracgpu.cards.card import FULL_CORES, Health
from fracgpu.cards.card_class import model_allowed, model_key
from fracgpu.explain.answers import Explanation, FittingCards, Holder, Suggestion, SuggestionKind
from fracgpu.explain.explanation import (
    by_strategy,
    describe_need,
    find_fitting_cards,
    fitting_cards_of,
    holders_of,
    try_cards,
)
from fracgpu.k8s.container import ContainerKind
from fracgpu.placement.outcome import Placement
from fracgpu.request.need import ContainerNeed, PodNeed
from fracgpu.state.cluster_state import ClusterState, ExplainedPod
from fracgpu.state.snapshot import CardInfo, NodeInfo
from fracgpu.units import Mib, format_mib, share_of

_MILLI: Final = 1000


def suggest(
    subject: ExplainedPod, state: ClusterState, explanation: Explanation
) -> tuple[Suggestion, ...]:
    """Give what would make the pod fit, what costs its owner least first."""
    need = subject.info.need
    if need is None or explanation.verdict.good or subject.info.record.node:
        return ()
    need = by_strategy(need, state)
    closed = {it.node for it in explanation.nodes if it.objections}
    everywhere = tuple(state.snapshot.nodes.values())
    opened = tuple(it for it in everywhere if it.node.node not in closed)
    if any(it.fits for it in explanation.nodes):
        return ()  # only the blockers stand in its way
    found = [
        *lapsing_cordons(need, opened),
        *leaving_pods(need, opened, state),
        *opened_nodes(explanation),
        *_smaller(subject, need, opened),
        *_fewer_cards(subject, need, opened),
        *_less_compute(subject, need, opened),
        *_other_models(need, opened),
    ]
    if not found and not _fits_an_empty(need, everywhere):
        text = f"no node could hold {describe_need(need)}, even if nothing else ran there"
        found.append(Suggestion(kind=SuggestionKind.LARGER_NODE, text=text))
    return tuple(found)


def _smaller(pod: ExplainedPod, need: PodNeed, sites: Sequence[NodeInfo]) -> Iterator[Suggestion]:
    """Find the largest smaller share that fits now, on a card that qualifies."""
    best: tuple[int, PodNeed, FittingCards] | None = None
    for size in _class_sizes(need, sites):
        steps = _steps(need)

        def shrunk(step: int, size: Mib = size, steps: int = steps) -> PodNeed | None:
            return _shrunk(need, step=step, steps=steps, size=size)

        found = _largest(shrunk, steps - 1, sites)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    if best is None:
        return
    _, smaller, home = best
    key, value = _asked_with(pod, smaller)
    yield Suggestion(
        kind=SuggestionKind.SMALLER,
        text=f'at most {key}: "{value}" fits now ({_each_mib(smaller)}): {home.text}',
        annotations={key: value},
        home=home,
    )


def _fewer_cards(
    pod: ExplainedPod, need: PodNeed, sites: Sequence[NodeInfo]
) -> Iterator[Suggestion]:
    most = max(it.cards for it in need.containers)

    def fewer(count: int) -> PodNeed:
        some = (replace(it, cards=min(it.cards, count)) for it in need.containers)
        return replace(need, containers=tuple(some))

    found = _largest(fewer, most - 1, sites)
    if found is not None:
        count, changed, home = found
        value = _items({it.name: str(it.cards) for it in changed.containers}, pod)
        yield Suggestion(
            kind=SuggestionKind.FEWER_CARDS,
            text=f'on {count} instead of {most} cards ({names.CARDS}: "{value}") it fits now: '
            f"{home.text}",
            annotations={names.CARDS: value},
            home=home,
        )


def _less_compute(
    pod: ExplainedPod, need: PodNeed, sites: Sequence[NodeInfo]
) -> Iterator[Suggestion]:
    most = max(it.cores for it in need.containers)

    def less(cores: int) -> PodNeed:
        # 1 stands for no reservation at all; the language has no zero.
        limit = 0 if cores == 1 else cores
        some = (replace(it, cores=min(it.cores, limit)) for it in need.containers)
        return replace(need, containers=tuple(some))

    found = _largest(less, most - 1, sites)
    if found is None:
        return
    cores, changed, home = found
    if cores == 1:
        text, annotations = f"without {names.CORES}", dict[str, str]()
    else:
        value = _items({it.name: str(it.cores) for it in changed.containers if it.cores}, pod)
        text, annotations = f'{names.CORES}: "{value}"', {names.CORES: value}
    yield Suggestion(
        kind=SuggestionKind.LESS_COMPUTE,
        text=f"{text} it fits now: {home.text}",
        annotations=annotations,
        home=home,
    )


def _other_models(need: PodNeed, sites: Sequence[NodeInfo]) -> Iterator[Suggestion]:
    shared = any(it.share is not None for it in need.containers)
    cards = [card_info.card for node_info in sites for card_info in node_info.cards.values()]
    sizes = {(model_key(card.model), card.capacity_mib if shared else None) for card in cards}
    for model, size in sorted(sizes, key=lambda it: (it[0], it[1] or 0)):
        changed = replace(need, models=(model,))
        if size is not None:
            some = tuple(_of_class(it, size) for it in need.containers)
            changed = replace(changed, containers=some)
        allowed = model_allowed(model, globs=need.models)
        home = (
            None
            if allowed and changed.containers == need.containers
            else find_fitting_cards(changed, sites)
        )
        if home is not None:
            yield Suggestion(
                kind=SuggestionKind.OTHER_MODEL,
                text=f'with {names.MODEL}: "{model}" it fits now ({_each_mib(changed)}): '
                f"{home.text}",
                annotations={names.MODEL: model},
                home=home,
            )


def _largest(
    changed: Callable[[int], PodNeed | None], most: int, sites: Sequence[NodeInfo]
) -> tuple[int, PodNeed, FittingCards] | None:
    """Find the largest step from 1 to *most* that fits; what fits still fits when it is smaller."""
    found: tuple[int, PodNeed, FittingCards] | None = None
    low, high = 1, most
    while low <= high:
        middle = (low + high) // 2
        need = changed(middle)
        home = find_fitting_cards(need, sites) if need is not None else None
        if need is not None and home is not None:
            found = (middle, need, home)
            low = middle + 1
        else:
            high = middle - 1
    return found


def _fits_an_empty(need: PodNeed, sites: Sequence[NodeInfo]) -> bool:
    for node_info in sites:
        empty = {
            uuid: CardInfo(card=replace(card_info.card, health=Health.HEALTHY))
            for uuid, card_info in node_info.cards.items()
        }
        if isinstance(try_cards(replace(node_info, cards=empty), need), Placement):
            return True
    return False


# -- amounts ---------------------------------------------------------------------------------------


def _class_sizes(need: PodNeed, sites: Sequence[NodeInfo]) -> Sequence[Mib]:
    """Give the card sizes that the pod's shares may be shares of; any one where it has none."""
    shares = [it for it in need.containers if it.share is not None]
    sizes = {
        card_info.card.capacity_mib for node_info in sites for card_info in node_info.cards.values()
    }
    if not shares:
        return sorted(sizes)[:1]
    return sorted(
        size
        for size in sizes
        if all(share_of(it.share or Fraction(1), capacity_mib=size) == it.mib for it in shares)
    )


def _steps(need: PodNeed) -> int:
    """Say in how many steps the whole request is divided: finer is no use to anybody."""
    if len(need.containers) > 1:
        return _MILLI
    (only,) = need.containers
    return (
        only.mib
        if only.share is None
        else -(-only.share.numerator * _MILLI // only.share.denominator)
    )


def _shrunk(need: PodNeed, *, step: int, steps: int, size: Mib) -> PodNeed | None:
    containers = []
    for it in need.containers:
        if it.share is None:
            mib = it.mib * step // steps
            containers.append(replace(it, mib=Mib(mib)))
            if mib < 1:
                return None
        else:
            share = Fraction(int(it.share * step * _MILLI / steps), _MILLI)
            if share == 0:
                return None
            containers.append(_of_class(replace(it, share=share), size))
    return replace(need, containers=tuple(containers))


def _of_class(need: ContainerNeed, size: Mib) -> ContainerNeed:
    return (
        need if need.share is None else replace(need, mib=share_of(need.share, capacity_mib=size))
    )


def _asked_with(subject: ExplainedPod, need: PodNeed) -> tuple[str, str]:
    """Give the key and value with which the owner of the pod would ask for *need*."""
    shares = {it.name: f"{float(it.share):.3f}".rstrip("0") for it in need.containers if it.share}
    if len(shares) == len(need.containers):
        return names.FRACTION, _items(shares, subject)
    annotations = subject.info.annotations
    if len(need.containers) == 1 and not {names.MEMORY, names.FRACTION} & annotations.keys():
        return f"limits {names.GPU_MEM}", str(need.containers[0].total_mib)
    return names.MEMORY, _items({it.name: f"{it.mib}Mi" for it in need.containers}, subject)


def _items(values: Mapping[str, str], pod: ExplainedPod) -> str:
    containers = pod.info.record.containers
    first_app = next((it.name for it in containers if it.kind is ContainerKind.APP), "")
    if list(values) == [first_app]:  # whom an item without a name is for
        return values[first_app]
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _each_mib(need: PodNeed) -> str:
    return ", ".join(format_mib(it.mib) for it in need.containers)


_MOST_NODES_TOLD: Final = 3


def lapsing_cordons(need: PodNeed, sites: Sequence[NodeInfo]) -> Iterator[Suggestion]:
    """Tell when the first cordon lapses that alone keeps the pod out."""
    for node_info in sites:
        free = {
            uuid: replace(card_info, cordoned=False) for uuid, card_info in node_info.cards.items()
        }
        answer = try_cards(replace(node_info, cards=MappingProxyType(free)), need)
        if not isinstance(answer, Placement):
            continue
        taken = {part.card for parts in answer.assignment.values() for part in parts}
        until = [it.until for it in node_info.node.cordons if it.card in taken]
        if until:
            home = fitting_cards_of(answer, node_info)
            yield Suggestion(
                kind=SuggestionKind.CORDON_ENDS,
                text=f"it fits on {home.text} when the cordon lapses at {max(until):%H:%M:%S} UTC",
                home=home,
                at=max(until),
            )
            return


def leaving_pods(
    need: PodNeed, sites: Sequence[NodeInfo], state: ClusterState
) -> Iterator[Suggestion]:
    """Find the fewest pods of one node whose end would let the pod in."""
    best: tuple[tuple[int, int, str], FittingCards, tuple[Holder, ...]] | None = None
    for node_info in sites:
        uids = _in_the_way(node_info, need, state)
        rest = _without(node_info, uids, state)
        answer = try_cards(rest, need)
        if not uids or not isinstance(answer, Placement):
            continue
        victims = _victims(node_info, uids, state)
        cost = (len(victims), sum(it.mib for it in victims), node_info.node.node)
        if best is None or cost < best[0]:
            home = fitting_cards_of(answer, rest)
            best = (cost, home, victims)
    if best is None:
        return
    _, home, victims = best
    whose = ", ".join(f"{it.pod} ({format_mib(it.mib)})" for it in victims)
    going = all(it.terminating for it in victims)
    text = f"it fits on {home.text} once {whose} {'are' if len(victims) > 1 else 'is'} gone"
    yield Suggestion(
        kind=SuggestionKind.PODS_GO,
        text=text + (", which is under way" if going else ""),
        home=home,
        pods=tuple(it.pod for it in victims),
    )


def _without(node_info: NodeInfo, uids: frozenset[str], state: ClusterState) -> NodeInfo:
    cards = dict(node_info.cards)
    for uid in uids:
        for uuid, allocation in state.snapshot.pods[uid].by_card.items():
            if uuid in cards:
                cards[uuid] = cards[uuid].minus(allocation, pod_uid=uid)
    return replace(node_info, cards=MappingProxyType(cards))


def _in_the_way(node_info: NodeInfo, need: PodNeed, state: ClusterState) -> frozenset[str]:
    """Choose pods whose end would make room: on each card the largest first, the cheapest cards."""
    most = max(need.containers, key=lambda it: (it.mib, it.cards))
    cores = max(it.cores for it in need.containers)
    costs = []
    for card_info in node_info.cards.values():
        if card_info.card.health is not Health.HEALTHY or card_info.cordoned:
            continue
        if not model_allowed(card_info.card.model, globs=need.models) or not _right_size(
            card_info, most
        ):
            continue
        uids = _cheapest(card_info, state, mib=most.mib, cores=cores)
        costs.append((len(uids), card_info.held_mib, card_info.card.index, uids))
    costs.sort(key=lambda it: it[:3])
    return frozenset(uid for *_, uids in costs[: most.cards] for uid in uids)


def _cheapest(card_info: CardInfo, state: ClusterState, *, mib: int, cores: int) -> tuple[str, ...]:
    holds = {
        uid: state.snapshot.pods[uid].by_card[card_info.card.uuid] for uid in sorted(card_info.pods)
    }
    short_mib = mib - card_info.free_mib
    short_cores = cores - (FULL_CORES - card_info.held_cores)
    short_slots = 1 - card_info.free_slots
    going: list[str] = []
    while holds and (short_mib > 0 or short_cores > 0 or short_slots > 0):
        need_mib, need_cores = max(short_mib, 0), max(short_cores, 0)
        enough = [uid for uid, it in holds.items() if it.mib >= need_mib and it.cores >= need_cores]
        # The smallest that is enough by itself, else the largest: few pods, no more than needed.
        if enough:
            uid = min(enough, key=lambda it: holds[it].mib)
        else:
            uid = max(holds, key=lambda it: (min(holds[it].cores, need_cores), holds[it].mib))
        allocation = holds.pop(uid)
        going.append(uid)
        short_mib -= allocation.mib
        short_cores -= allocation.cores
        short_slots -= allocation.slots
    return tuple(going)


def _victims(node_info: NodeInfo, uids: frozenset[str], state: ClusterState) -> tuple[Holder, ...]:
    found: dict[str, Holder] = {}
    for card_info in node_info.cards.values():
        only = replace(card_info, pods=card_info.pods & uids)
        for it in holders_of(only, state.snapshot, state.pods):
            before = found.get(it.pod)
            found[it.pod] = replace(it, mib=Mib(it.mib + (before.mib if before else 0)))
    return tuple(sorted(found.values(), key=lambda it: it.pod))


def opened_nodes(explanation: Explanation) -> Iterator[Suggestion]:
    """Name nodes that have the cards and are closed to the pod."""
    would = [it for it in explanation.nodes if it.cards_fit and it.objections]
    for node in would[:_MOST_NODES_TOLD]:
        why = "; ".join(it.text for it in node.objections)
        how = "; ".join(it.remedy for it in node.objections if it.remedy)
        text = f"{node.node} has the cards, but {why}"
        yield Suggestion(
            kind=SuggestionKind.NODE_OPENS,
            text=f"{text}; to open it: {how}" if how else text,
            home=FittingCards(
                node=node.node, cards=tuple(card.index for card in node.cards if card.chosen)
            ),
        )


def _right_size(card_info: CardInfo, need: ContainerNeed) -> bool:
    return (
        need.share is None
        or share_of(need.share, capacity_mib=card_info.card.capacity_mib) == need.mib
    )
