"""What would free cards for a waiting pod without changing it: tried on the real placement."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from fracgpu.cards.card import Health, model_allowed
from fracgpu.explain.answers import Explanation, Holder, Home, Remedy, RemedyKind, World
from fracgpu.explain.explanation import holders_of, home_of, try_cards
from fracgpu.placement.placement import Placement
from fracgpu.request.language import FULL_CORES, ContainerNeed, PodNeed
from fracgpu.state.snapshot import CardLoad, NodeLoads
from fracgpu.units import Mib, format_mib, share_of

_MOST_NODES_TOLD: Final = 3


def lapsing_cordons(need: PodNeed, sites: Sequence[NodeLoads]) -> Iterator[Remedy]:
    """Tell when the first cordon lapses that alone keeps the pod out."""
    for loads in sites:
        free = {uuid: replace(load, cordoned=False) for uuid, load in loads.cards.items()}
        answer = try_cards(replace(loads, cards=MappingProxyType(free)), need)
        if not isinstance(answer, Placement):
            continue
        taken = {part.card for parts in answer.assignment.values() for part in parts}
        until = [it.until for it in loads.node.cordons if it.card in taken]
        if until:
            home = home_of(answer, loads)
            yield Remedy(
                kind=RemedyKind.CORDON_ENDS,
                text=f"it fits on {home.text} when the cordon lapses at {max(until):%H:%M:%S} UTC",
                home=home,
                at=max(until),
            )
            return


def leaving_pods(need: PodNeed, sites: Sequence[NodeLoads], world: World) -> Iterator[Remedy]:
    """Find the fewest pods of one node whose end would let the pod in."""
    best: tuple[tuple[int, int, str], Home, tuple[Holder, ...]] | None = None
    for loads in sites:
        uids = _in_the_way(loads, need, world)
        rest = _without(loads, uids, world)
        answer = try_cards(rest, need)
        if not uids or not isinstance(answer, Placement):
            continue
        victims = _victims(loads, uids, world)
        cost = (len(victims), sum(it.mib for it in victims), loads.node.node)
        if best is None or cost < best[0]:
            home = home_of(answer, rest)
            best = (cost, home, victims)
    if best is None:
        return
    _, home, victims = best
    whose = ", ".join(f"{it.pod} ({format_mib(it.mib)})" for it in victims)
    going = all(it.terminating for it in victims)
    text = f"it fits on {home.text} once {whose} {'are' if len(victims) > 1 else 'is'} gone"
    yield Remedy(
        kind=RemedyKind.PODS_GO,
        text=text + (", which is under way" if going else ""),
        home=home,
        pods=tuple(it.pod for it in victims),
    )


def _without(loads: NodeLoads, uids: frozenset[str], world: World) -> NodeLoads:
    cards = dict(loads.cards)
    for uid in uids:
        for uuid, hold in world.snapshot.pods[uid].holds.items():
            if uuid in cards:
                cards[uuid] = cards[uuid].minus(hold, pod_uid=uid)
    return replace(loads, cards=MappingProxyType(cards))


def _in_the_way(loads: NodeLoads, need: PodNeed, world: World) -> frozenset[str]:
    """Choose pods whose end would make room: on each card the largest first, the cheapest cards."""
    most = max(need.containers, key=lambda it: (it.mib, it.cards))
    cores = max(it.cores for it in need.containers)
    costs = []
    for load in loads.cards.values():
        if load.card.health is not Health.HEALTHY or load.cordoned:
            continue
        if not model_allowed(load.card.model, globs=need.models) or not _right_size(load, most):
            continue
        uids = _cheapest(load, world, mib=most.mib, cores=cores)
        costs.append((len(uids), load.held_mib, load.card.index, uids))
    costs.sort(key=lambda it: it[:3])
    return frozenset(uid for *_, uids in costs[: most.cards] for uid in uids)


def _cheapest(load: CardLoad, world: World, *, mib: int, cores: int) -> tuple[str, ...]:
    holds = {uid: world.snapshot.pods[uid].holds[load.card.uuid] for uid in sorted(load.pods)}
    short_mib = mib - load.free_mib
    short_cores = cores - (FULL_CORES - load.held_cores)
    short_slots = 1 - load.free_slots
    going: list[str] = []
    while holds and (short_mib > 0 or short_cores > 0 or short_slots > 0):
        need_mib, need_cores = max(short_mib, 0), max(short_cores, 0)
        enough = [uid for uid, it in holds.items() if it.mib >= need_mib and it.cores >= need_cores]
        # The smallest that is enough by itself, else the largest: few pods, no more than needed.
        if enough:
            uid = min(enough, key=lambda it: holds[it].mib)
        else:
            uid = max(holds, key=lambda it: (min(holds[it].cores, need_cores), holds[it].mib))
        hold = holds.pop(uid)
        going.append(uid)
        short_mib -= hold.mib
        short_cores -= hold.cores
        short_slots -= hold.slots
    return tuple(going)


def _victims(loads: NodeLoads, uids: frozenset[str], world: World) -> tuple[Holder, ...]:
    found: dict[str, Holder] = {}
    for load in loads.cards.values():
        only = replace(load, pods=load.pods & uids)
        for it in holders_of(only, world.snapshot, world.pods):
            before = found.get(it.pod)
            found[it.pod] = replace(it, mib=Mib(it.mib + (before.mib if before else 0)))
    return tuple(sorted(found.values(), key=lambda it: it.pod))


def opened_nodes(explanation: Explanation) -> Iterator[Remedy]:
    """Name nodes that have the cards and are closed to the pod."""
    would = [it for it in explanation.nodes if it.cards_fit and it.objections]
    for node in would[:_MOST_NODES_TOLD]:
        why = "; ".join(it.text for it in node.objections)
        how = "; ".join(it.remedy for it in node.objections if it.remedy)
        text = f"{node.node} has the cards, but {why}"
        yield Remedy(
            kind=RemedyKind.NODE_OPENS,
            text=f"{text}; to open it: {how}" if how else text,
            home=Home(
                node=node.node, cards=tuple(card.index for card in node.cards if card.chosen)
            ),
        )


def _right_size(load: CardLoad, need: ContainerNeed) -> bool:
    return (
        need.share is None or share_of(need.share, capacity_mib=load.card.capacity_mib) == need.mib
    )
