"""Where a new pod lands after a card was relieved: the rebalancer's entries, and who reads them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.planner import cards_to_avoid, cards_to_cordon
from fracgpu.placement.outcome import Placement
from fracgpu.request.need import Strategy
from fracgpu.state.bound_pod import decode_bound_pod
from fracgpu.state.pod_info import decode_pod_info
from kube.objects import encode
from rebalancer.moves.cordons import DesiredCordons, desired_on
from scheduler.core import SchedulerCore
from tests.fakes.clock import NOON, VirtualClock
from tests.support.core import on
from tests.support.gpu import a_gpu_pod
from tests.support.rebalancing import (
    ACTIVE,
    CARD_MIB,
    a_disruption_state,
    a_node,
    a_past_move,
    a_reading,
)


@dataclass(frozen=True, kw_only=True)
class Known:
    """One card: how busy it is, what of it is held, and whether a hot pod was moved off it."""

    level: float = 0.0
    held_mib: int = 0
    relieved: bool = False


Nodes = Sequence[Sequence[Known]]

hundredths = st.integers(0, 100).map(lambda part: part / 100)
known_cards = st.builds(
    Known,
    level=hundredths,
    held_mib=st.sampled_from([0, 8000, 16_000, 24_000]),
    relieved=st.booleans(),
)

IDLE = Known()
FULL = Known(held_mib=CARD_MIB)
BUSY = Known(level=0.7)
RELIEVED = Known(level=0.3, held_mib=8000, relieved=True)
COOLER_RELIEVED = Known(level=0.2, relieved=True)


def cards_of(nodes: Nodes) -> Mapping[CardUuid, Known]:
    return {
        CardUuid(f"GPU-{row}-{at}"): known
        for row, cards in enumerate(nodes)
        for at, known in enumerate(cards)
    }


def entries(nodes: Nodes) -> tuple[SchedulerCore, frozenset[CardUuid]]:
    """Return a scheduler that knows the nodes as agents and rebalancer annotate them.

    Also the cards that are closed.
    """
    cards = cards_of(nodes)
    shown = [
        a_node(f"n{row}", *(f"GPU-{row}-{at}" for at in range(len(here))))
        for row, here in enumerate(nodes)
    ]
    state = a_disruption_state(
        nodes=shown,
        pods=[],
        readings={"GPU-hot": None, "GPU-cool": None}
        | {uuid: a_reading(known.level) for uuid, known in cards.items()},
        past=[
            a_past_move(source=uuid, ended_at=NOON - timedelta(minutes=20))
            for uuid, known in cards.items()
            if known.relieved
        ],
    )
    closed = cards_to_cordon(state, policy=ACTIVE, now=NOON)
    desired = DesiredCordons(
        cordon=closed,
        avoid=cards_to_avoid(state, cordoned=closed, policy=ACTIVE, now=NOON),
        cool=frozenset(),
        lasting=timedelta(minutes=5),
    )
    core = SchedulerCore(strategy=lambda: Strategy.PACK, clock=VirtualClock())
    for node in shown:
        heat = {card.uuid: cards[card.uuid].level for card in node.cards}
        cordons = desired_on(node, desired, now=NOON) or ()
        core.ledger.set_node(replace(node, heat=heat, load_time=NOON, cordons=cordons))
    return core, closed


def hold(core: SchedulerCore, nodes: Nodes) -> None:
    """Let a pod hold what is held of each card."""
    for uuid, known in cards_of(nodes).items():
        if known.held_mib:
            slices = on(uuid, known.held_mib, container="train")["train"]
            text = json.dumps({"train": [{"card": part.card, "mib": part.mib} for part in slices]})
            body = a_gpu_pod(
                f"on-{uuid}".lower(),
                mib=known.held_mib,
                annotations={"fracgpu.io/assignment": text},
                nodeName=f"n{uuid.split('-')[1]}",
            )
            body["metadata"]["uid"] = f"uid-{uuid}"
            bound = decode_bound_pod(encode(body))
            assert bound is not None
            core.ledger.observe(bound.allocation)
            core.bound_pods.put(bound)


def landing(nodes: Nodes, *, mib: int, strategy: Strategy) -> tuple[CardUuid | None, set[CardUuid]]:
    """Return the card that a new pod gets, and all that it could get."""
    core, closed = entries(nodes)
    hold(core, nodes)
    core.least_waste.learn_now()
    body = a_gpu_pod("new", mib=mib, annotations={"fracgpu.io/placement": strategy.value})
    body["metadata"]["uid"] = "uid-new"
    pod = decode_pod_info(encode(body))
    fitting = {
        uuid
        for uuid, known in cards_of(nodes).items()
        if uuid not in closed and CARD_MIB - known.held_mib >= mib
    }
    best = core.best_node(pod, sorted(core.ledger.nodes))
    if best is None:
        return None, fitting
    answer = core.cards_on(pod, best)
    assert isinstance(answer, Placement)
    ((part,),) = answer.assignment.values()
    return part.card, fitting


@example([[RELIEVED, IDLE], [replace(BUSY, held_mib=CARD_MIB)]], 8000, Strategy.PACK)
@example([[RELIEVED, COOLER_RELIEVED, FULL]], 8000, Strategy.LEAST_WASTE)
@given(
    st.lists(st.lists(known_cards, min_size=1, max_size=3), min_size=1, max_size=3),
    st.sampled_from([4000, 8000, 12_000, 24_000]),
    st.sampled_from(Strategy),
)
def test_a_new_pod_lands_on_a_relieved_card_only_if_no_cooler_card_has_room(
    nodes: Nodes, mib: int, strategy: Strategy
) -> None:
    card, fitting = landing(nodes, mib=mib, strategy=strategy)

    assert (card is None) == (not fitting)
    cards = cards_of(nodes)
    if card is not None and cards[card].relieved:
        assert cards[card].level == min(cards[uuid].level for uuid in fitting)


def test_a_relieved_card_that_is_the_coolest_counts_as_any_other() -> None:
    card, _ = landing([[BUSY, RELIEVED], [BUSY]], mib=8000, strategy=Strategy.PACK)

    assert card == "GPU-0-1"  # the fullest
