"""What to move off a hot card and where it could go, or why to hold still.

Victim and target are chosen together: of all pairs, the one that relieves most for what it costs.
Whether a pod fits is asked of the same :func:`fracgpu.placement.placement.place` that places real
pods.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.disruption_state import (
    HeldBack,
    Move,
    Occupant,
    PastMove,
    Picture,
    Plan,
    Reason,
    begun_within,
)
from fracgpu.disruption.evictability import pod_refusal
from fracgpu.disruption.heat import (
    CardHeat,
    CardUsage,
    Heat,
    PodUse,
    advance,
    blindness,
    unrelievable,
)
from fracgpu.disruption.policy import Mode, Policy
from fracgpu.placement.placement import Placement, place
from fracgpu.request.language import PodNeed
from fracgpu.state.allocation import Hold
from fracgpu.state.snapshot import PodHolds

# Costs of a move, in points (per cent of one card), and how a point of overshoot counts.
_BASE_COST: Final = 5.0
_NO_SURGE_COST: Final = 10.0  # the old pod ends before the new one is ready
_SINGLE_REPLICA_COST: Final = 10.0
_PRIORITY_COST: Final = 5.0
_COST_PER_10_GIB: Final = 1.0  # reloading takes as long as the memory is large
_OVERSHOOT: Final = 0.25
_FORECAST_WEIGHT: Final = 0.1


def plan_moves(picture: Picture, *, policy: Policy, now: datetime) -> Plan:
    """Decide what to move now; the same input always gives the same plan."""
    if policy.mode is Mode.OFF:
        return Plan(held=(HeldBack(subject="cluster", reason=Reason.OFF),))
    repel = cards_to_repel(picture, policy=policy, now=now)
    picture = _with_under_way(picture)
    hot = [uuid for uuid, it in picture.heat.items() if it.heat is Heat.HOT]
    moves: list[Move] = []
    held: list[HeldBack] = []
    for card in sorted(hot, key=lambda uuid: (-_level(picture, uuid), uuid)):
        whole = _cycle_refusal(picture, policy=policy, now=now)
        if whole is not None:
            held.append(whole)
            break
        found = _relief_of(picture, card, held, policy=policy, now=now)
        if found is not None:
            moves.append(found)
            picture = _with_planned(picture, found, now=now)
    return Plan(moves=tuple(moves), held=tuple(held), repel=repel)


def revalidate(picture: Picture, move: Move, *, policy: Policy, now: datetime) -> HeldBack | None:
    """Look again at a planned move, right before its first disturbing step.

    *picture* must not count the move itself among its past. None means: still right. The target
    may be another card by now; what must still be true is that there is one.
    """
    reading = picture.reading(move.source)
    if reading is None:
        return HeldBack(subject=move.source, reason=Reason.NOT_MEASURED)
    if reading.level_ratio < policy.clear_ratio:
        return HeldBack(subject=move.source, reason=Reason.NO_GAIN, detail="the card cooled down")
    picture = _with_under_way(picture)
    occupant = picture.pods.get(move.pod_uid)
    load = picture.snapshot.card(move.source)
    if occupant is None or load is None or move.pod_uid not in load.pods:
        return HeldBack(subject=move.pod, reason=Reason.NOT_KNOWN)
    found = _best_move(picture, move.source, occupant, policy=policy, now=now)
    return found if isinstance(found, HeldBack) else None


def first_heat(
    card: CardUuid, past: Sequence[PastMove], *, policy: Policy, now: datetime
) -> CardHeat:
    """Give the heat that a card begins with when its first trusted reading comes in.

    A restarted rebalancer knows from the record of moves which cards it was working on.
    """
    off = [it for it in past if it.move.source == card]
    if any(it.under_way for it in off):
        return CardHeat(heat=Heat.RELIEVING, since=now)
    ends = [it.ended_at or it.started_at for it in off]
    if ends and now - max(ends) < timedelta(seconds=policy.settle_s):
        return CardHeat(heat=Heat.SETTLING, since=max(ends))
    return CardHeat(heat=Heat.COOL, since=now)


def advance_all(
    before: Mapping[CardUuid, CardHeat],
    usage: Mapping[CardUuid, CardUsage],
    past: Sequence[PastMove],
    *,
    policy: Policy,
    now: datetime,
) -> dict[CardUuid, CardHeat]:
    """Give every card's heat one cycle later; a card never measured yet has none."""
    sources = {it.move.source for it in past if it.under_way}
    after = {}
    for uuid, it in usage.items():
        heat = before.get(uuid)
        if heat is None and it.reading is not None:
            heat = first_heat(uuid, past, policy=policy, now=now)
        if heat is not None:
            relieving = uuid in sources
            after[uuid] = advance(heat, it, relieving=relieving, policy=policy, now=now)
    return after


def cards_to_repel(picture: Picture, *, policy: Policy, now: datetime) -> frozenset[CardUuid]:
    """Give the cards that no new slice should go to for now.

    Hot ones, those a pod is being moved off, and those just relieved. A card that is not measured
    any more is left to its own lapsing cordon. Never more than the allowed share of all cards, or
    a cluster that is hot throughout would turn away every new pod; sources of moves come first.
    """
    sources = {it.move.source for it in picture.past if it.under_way}
    wanted = [
        uuid
        for uuid, it in picture.heat.items()
        if uuid in sources or (picture.reading(uuid) and _repels(it, policy=policy, now=now))
    ]
    ranked = sorted(
        {*wanted, *sources}, key=lambda uuid: (uuid not in sources, -_level(picture, uuid), uuid)
    )
    limit = max(1, len(sources), int(policy.max_cordoned_ratio * len(picture.cards())))
    return frozenset(ranked[:limit])


def _repels(heat: CardHeat, *, policy: Policy, now: datetime) -> bool:
    if heat.heat is Heat.SETTLING:
        return now - heat.since < timedelta(seconds=policy.settle_s)
    return heat.heat in (Heat.HOT, Heat.RELIEVING)


def _level(picture: Picture, card: CardUuid) -> float:
    reading = picture.reading(card)
    return reading.level_ratio if reading else 0.0


def _cycle_refusal(picture: Picture, *, policy: Policy, now: datetime) -> HeldBack | None:
    blind = blindness(picture.usage, picture.cards(), policy)
    if blind:
        return HeldBack(subject="cluster", reason=Reason.BLIND, detail=blind)
    if now - picture.leading_since < timedelta(seconds=policy.startup_grace_s):
        return HeldBack(subject="cluster", reason=Reason.STARTING)
    if sum(it.under_way for it in picture.past) >= policy.max_in_flight:
        return HeldBack(subject="cluster", reason=Reason.MOVE_IN_FLIGHT)
    if len(begun_within(picture.past, hours=1, now=now)) >= policy.max_per_hour:
        return HeldBack(subject="cluster", reason=Reason.HOURLY_BUDGET)
    return None


def _relief_of(
    picture: Picture, card: CardUuid, held: list[HeldBack], *, policy: Policy, now: datetime
) -> Move | None:
    """Find the best move off one hot card; every refusal on the way goes to *held*."""
    refusal = _card_refusal(picture, card, policy=policy, now=now)
    if refusal is not None:
        held.append(refusal)
        return None
    load = picture.snapshot.card(card)
    found: list[Move] = []
    for uid in sorted(load.pods if load else ()):
        occupant = picture.pods.get(uid)
        if occupant is None:
            held.append(HeldBack(subject=uid, reason=Reason.NOT_KNOWN))
            continue
        answer = _best_move(picture, card, occupant, policy=policy, now=now)
        if isinstance(answer, Move):
            found.append(answer)
        else:
            held.append(answer)
    return min(found, key=lambda it: (-it.gain_points, it.pod), default=None)


def _card_refusal(
    picture: Picture, card: CardUuid, *, policy: Policy, now: datetime
) -> HeldBack | None:
    reading = picture.reading(card)
    if reading is None:
        return HeldBack(subject=card, reason=Reason.NOT_MEASURED)
    why = unrelievable(reading, policy)
    if why is not None:
        return HeldBack(subject=card, reason=Reason[why.name])
    if _recently(picture.past, policy.card_cooldown_s, now=now, source=card):
        return HeldBack(subject=card, reason=Reason.CARD_COOLDOWN)
    node = picture.node_of(card)
    if any(it.under_way and it.move.source_node == node for it in picture.past):
        return HeldBack(subject=card, reason=Reason.NODE_BUSY)
    return None


def _recently(
    past: Sequence[PastMove],
    cooldown_s: float,
    *,
    now: datetime,
    source: CardUuid | None = None,
    target: CardUuid | None = None,
) -> bool:
    return any(
        now - it.started_at < timedelta(seconds=cooldown_s)
        and (
            (source is not None and it.move.source == source)
            or (target is not None and target in (it.move.target, it.landed))
        )
        for it in past
    )


def _best_move(
    picture: Picture, card: CardUuid, occupant: Occupant, *, policy: Policy, now: datetime
) -> Move | HeldBack:
    key = occupant.view.record.key
    refusal = pod_refusal(picture, occupant, policy=policy, now=now)
    if refusal is not None:
        return HeldBack(subject=key, reason=refusal)
    reading = picture.reading(card)
    use = reading.pods.get(occupant.uid) if reading else None
    if reading is None or use is None:
        return HeldBack(subject=key, reason=Reason.NOT_MEASURED_POD)
    if use.busy_ratio < policy.min_pod_busy_ratio:
        return HeldBack(subject=key, reason=Reason.TOO_SMALL)
    if use.busy_ratio > policy.ceiling_ratio:
        return HeldBack(subject=key, reason=Reason.TOO_LARGE)
    targets = list(_targets(picture, card, occupant, use, policy=policy, now=now))
    if not targets:
        return HeldBack(subject=key, reason=Reason.NO_TARGET)
    source_node = occupant.view.record.node
    cost = _cost(picture, card, occupant)
    moves = [_move(picture, card, occupant, use, it, cost=cost, policy=policy) for it in targets]
    best = min(
        moves,
        # On ties the node that already has the image.
        key=lambda it: (-it.gain_points, it.target_node != source_node, it.target_node, it.target),
    )
    if best.gain_points <= 0:
        return HeldBack(subject=key, reason=Reason.NO_GAIN, detail=f"{best.gain_points:.1f} points")
    return best


def _targets(
    picture: Picture,
    card: CardUuid,
    occupant: Occupant,
    use: PodUse,
    *,
    policy: Policy,
    now: datetime,
) -> Iterator[tuple[str, CardUuid]]:
    """Give for each node the card that a replacement would get there, if it may and fits."""
    need = occupant.view.need
    assert need is not None, "a pod without a need was refused before"
    unfit = _unfit(picture, card, occupant, use, policy=policy, now=now)
    for node, loads in sorted(picture.snapshot.nodes.items()):
        if loads.cards.keys() <= unfit:
            continue
        if not occupant.rules.allows(loads.node.labels, picture.taints.get(node, ())):
            continue
        answer = place(loads, need, strategy=picture.strategy, exclude=unfit)
        if isinstance(answer, Placement):
            cards = {part.card for slices in answer.assignment.values() for part in slices}
            if len(cards) == 1:
                yield node, cards.pop()


def _unfit(
    picture: Picture,
    source: CardUuid,
    occupant: Occupant,
    use: PodUse,
    *,
    policy: Policy,
    now: datetime,
) -> frozenset[CardUuid]:
    """Give every card that must not be the target, the source itself among them."""
    load = picture.snapshot.card(source)
    model = load.card.model if load else ""
    left = {
        it.move.source
        for it in picture.past
        if it.move.owner_uid == occupant.owner_uid
        and now - it.started_at < timedelta(seconds=policy.return_cooldown_s)
    }
    sources = {it.move.source for it in picture.past if it.under_way}
    unfit = {source, *left, *sources}
    for loads in picture.snapshot.nodes.values():
        for uuid, it in loads.cards.items():
            if (
                it.card.model != model
                or not _cool_enough(picture, uuid, occupant, use, policy=policy)
                or _recently(picture.past, policy.card_cooldown_s, now=now, target=uuid)
            ):
                unfit.add(uuid)
    return frozenset(unfit)


def _cool_enough(
    picture: Picture, card: CardUuid, occupant: Occupant, use: PodUse, *, policy: Policy
) -> bool:
    heat, reading = picture.heat.get(card), picture.reading(card)
    if heat is None or heat.heat is not Heat.COOL or reading is None:
        return False
    coming = sum(
        it.move.busy_ratio
        for it in picture.past
        if it.under_way and card in (it.move.target, it.landed)
    )
    need = occupant.view.need
    return (
        reading.forecast_ratio + coming + use.busy_ratio <= policy.ceiling_ratio
        and reading.level_ratio + coming + use.high_ratio <= policy.hot_ratio
        and (need is None or _most_mib(need) + policy.free_margin_mib <= reading.free_mib)
    )


def _most_mib(need: PodNeed) -> int:
    return sum(it.mib for it in need.containers)


def _move(  # noqa: PLR0913 - the facts about one pair of pod and card
    picture: Picture,
    card: CardUuid,
    occupant: Occupant,
    use: PodUse,
    target: tuple[str, CardUuid],
    *,
    cost: float,
    policy: Policy,
) -> Move:
    view = occupant.view
    reading, there = picture.reading(card), picture.reading(target[1])
    assert reading is not None, "a source was measured"
    assert there is not None, "so was a target"
    hold = picture.snapshot.pods[occupant.uid].holds[card]
    excess = 100 * (reading.level_ratio - policy.ceiling_ratio)
    points = 100 * use.busy_ratio
    gain = (
        min(points, excess)
        - _OVERSHOOT * max(0.0, points - excess)
        - cost
        - _FORECAST_WEIGHT * 100 * there.forecast_ratio
    )
    return Move(
        pod_uid=occupant.uid,
        namespace=view.record.namespace,
        name=view.record.name,
        owner_uid=occupant.owner_uid,
        source=card,
        source_node=view.record.node,
        target=target[1],
        target_node=target[0],
        mib=hold.mib,
        cores=hold.cores,
        busy_ratio=use.busy_ratio,
        level_ratio=reading.level_ratio,
        gain_points=round(gain, 6),
    )


def _cost(picture: Picture, card: CardUuid, occupant: Occupant) -> float:
    hold = picture.snapshot.pods[occupant.uid].holds[card]
    alone = not any(
        it.owner_uid == occupant.owner_uid and it is not occupant for it in picture.pods.values()
    )
    return (
        _BASE_COST
        + _NO_SURGE_COST
        + (_SINGLE_REPLICA_COST if alone else 0.0)
        + (_PRIORITY_COST if occupant.view.priority > 0 else 0.0)
        + _COST_PER_10_GIB * hold.mib / (10 * 1024)
    )


def _with_under_way(picture: Picture) -> Picture:
    """Count the memory of replacements that are on their way to a target."""
    for it in picture.past:
        if it.under_way and it.landed is None:
            picture = replace(picture, snapshot=picture.snapshot.with_(_coming(it.move)))
    return picture


def _with_planned(picture: Picture, move: Move, *, now: datetime) -> Picture:
    """Count a move just planned: its budget is spent and its target's memory is taken."""
    return replace(
        picture,
        snapshot=picture.snapshot.with_(_coming(move)),
        past=(*picture.past, PastMove(move=move, started_at=now, under_way=True)),
    )


def _coming(move: Move) -> PodHolds:
    hold = {move.target: Hold(mib=move.mib, cores=move.cores)}
    return PodHolds(pod_uid=f"replacement of {move.pod_uid}", node=move.target_node, holds=hold)
