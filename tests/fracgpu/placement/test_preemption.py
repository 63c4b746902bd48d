"""Victims that make room on one card."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.cards.card import Card, CardUuid, Health, NodeCards
from fracgpu.k8s.disruption_budget import BudgetIndex, PodDisruptionBudget
from fracgpu.k8s.resources import NO_HOST_RESOURCES, HostResources
from fracgpu.placement.node_matrix import NodeMatrix
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.placement.preemption import (
    CandidateCount,
    PreemptionTarget,
    Victims,
    choose_victims,
    fits_if_emptied,
)
from fracgpu.request.need import ContainerNeed, PodNeed, Strategy
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.bound_pod import BoundPod
from fracgpu.state.ledger import Ledger
from fracgpu.state.snapshot import NodeInfo, PodAllocation, build_node_info
from fracgpu.units import Mib
from tests.fakes.clock import NOON
from tests.support.core import a_card, a_need, a_pod_need
from tests.support.examples import at_least

ONE_EACH = HostResources(cpu_milli=1000, memory_mib=1, pods=1)


def a_potential_victim(uid: str, *, priority: int = 0, app: str = "", **mib_on: int) -> BoundPod:
    by_card = {CardUuid(card): CardAllocation(mib=Mib(mib)) for card, mib in mib_on.items()}
    return BoundPod(
        namespace="default",
        name=uid,
        labels={"app": app},
        priority=priority,
        host=ONE_EACH,
        allocation=PodAllocation(pod_uid=uid, node="n", by_card=by_card),
    )


def loads_of(cards: Sequence[Card], pods: Sequence[BoundPod]) -> NodeInfo:
    held = [pod.allocation for pod in pods]
    return build_node_info(NodeCards(node="n", cards=tuple(cards)), held)


def chosen(  # noqa: PLR0913 - what a test varies
    need: PodNeed,
    pods: Sequence[BoundPod],
    *,
    cards: Sequence[Card] = (),
    budgets: Sequence[PodDisruptionBudget] = (),
    missing: HostResources = NO_HOST_RESOURCES,
    proposed: frozenset[str] = frozenset(),
    below: int = 100,
) -> Victims | None:
    here = cards or [a_card(name, mib=800, index=n) for n, name in enumerate("ab")]
    target = PreemptionTarget(
        node=loads_of(here, pods),
        missing=missing,
        potential_victims=[pod for pod in pods if pod.priority < below],
        proposed=proposed,
    )
    (found,) = choose_victims([target], need, strategy=Strategy.PACK, budgets=BudgetIndex(budgets))
    return found


def uids(victims: Victims | None) -> set[str]:
    assert victims is not None
    return set(victims.uids)


def test_a_budget_is_broken_only_where_nothing_else_helps_and_then_it_is_said() -> None:
    budget = PodDisruptionBudget(
        namespace="default", name="b", allowed=0, labels={"app": "guarded"}
    )
    guarded = a_potential_victim("guarded", app="guarded", a=800)
    other = a_potential_victim("other", priority=5, b=800)
    need = a_pod_need(a_need(800))

    assert chosen(need, [guarded, other], budgets=[budget]) == Victims(
        uids=("other",), violations=0
    )
    boss = a_potential_victim("boss", priority=100, b=800)
    assert chosen(need, [guarded, boss], budgets=[budget]) == Victims(
        uids=("guarded",), violations=1
    )


def test_several_containers_get_what_they_need_and_no_victim_is_in_vain() -> None:
    pods = [
        a_potential_victim("a1", a=400),
        a_potential_victim("a2", a=400),
        a_potential_victim("b1", b=800),
    ]
    need = a_pod_need(a_need(400, name="x"), a_need(400, name="y"))

    found = uids(chosen(need, pods))

    assert found in ({"b1"}, {"a1", "a2"})


def test_where_a_card_is_free_but_the_host_is_full_kube_schedulers_choice_goes_first() -> None:
    pods = [a_potential_victim("p", a=10), a_potential_victim("q", a=10)]
    missing = HostResources(cpu_milli=500)

    found = chosen(a_pod_need(a_need(100)), pods, missing=missing, proposed=frozenset({"q"}))
    assert uids(found) == {"q"}
    assert chosen(a_pod_need(a_need(100)), pods, missing=HostResources(cpu_milli=9000)) is None


def test_host_and_card_are_freed_together() -> None:
    pods = [
        a_potential_victim("p", a=800),
        a_potential_victim("q"),
        a_potential_victim("boss", priority=100, b=800),
    ]

    found = chosen(
        a_pod_need(a_need(800)),
        pods,
        missing=HostResources(cpu_milli=1500),
        proposed=frozenset({"q"}),
    )
    assert uids(found) == {"p", "q"}


def test_among_dozens_of_different_pods_on_a_card_no_victim_is_in_vain() -> None:
    cards = [a_card("a", mib=32_000)]
    pods = [a_potential_victim(f"p{n:02d}", a=984 + n) for n in range(32)]  # 32,000 MiB less 16
    need = a_pod_need(a_need(4_000))

    found = uids(chosen(need, pods, cards=cards))

    freed = [pod.allocation.by_card[CardUuid("a")].mib for pod in pods if pod.uid in found]
    free = 32_000 - sum(pod.allocation.by_card[CardUuid("a")].mib for pod in pods)
    assert free + sum(freed) >= 4_000 > free + sum(freed) - min(freed)


def test_kube_schedulers_rule_says_when_enough_nodes_are_found() -> None:
    breaking, clean = Victims(uids=("p",), violations=1), Victims(uids=("p",), violations=0)

    def needed(nodes: int, *others: Victims) -> int:
        count, added = CandidateCount(nodes), 0
        for victims in (*others, *[clean] * nodes):
            if count.enough:
                break
            count.add(victims)
            added += 1
        return added

    assert [needed(nodes) for nodes in (10, 500, 1000, 1010, 5000)] == [10, 100, 100, 101, 500]
    assert needed(500, *[breaking] * 99) == 100
    assert needed(500, *[breaking] * 300) == 301, "one node has to break no budget"


@st.composite
def cards_and_victims(draw: st.DrawFn) -> tuple[list[Card], list[BoundPod]]:
    cards = [a_card(name, mib=400, index=n) for n, name in enumerate("abc")]
    pods: list[BoundPod] = []
    for n, card in enumerate(cards):
        left = 400
        for k in range(draw(st.integers(0, 4))):
            mib = draw(st.sampled_from([40, 80, 120, 200]))
            if mib <= left:
                left -= mib
                priority = draw(st.sampled_from([0, 0, 5, 100]))
                on_card: dict[str, Any] = {str(card.uuid): mib}
                pods.append(a_potential_victim(f"{n}{k}", priority=priority, **on_card))
    return cards, pods


@settings(max_examples=at_least(60))
@given(
    cards_and_victims(),
    st.sampled_from([80, 160, 240, 400]),
    st.sampled_from([1, 1, 2]),
)
def test_the_pod_fits_afterwards_and_without_any_one_victim_it_would_not(
    drawn: tuple[list[Card], list[BoundPod]], mib: int, count: int
) -> None:
    cards, pods = drawn
    need = a_pod_need(a_need(mib, cards=count))
    lesser = [pod for pod in pods if pod.priority < 100]

    def fits_without(gone: Sequence[BoundPod]) -> bool:
        rest = [pod for pod in pods if pod not in gone]
        return isinstance(place(loads_of(cards, rest), need, strategy=Strategy.PACK), Placement)

    found = chosen(need, pods, cards=cards)
    possible = fits_without(lesser)
    if found is None or not found.uids:
        assert fits_without(()) or not possible
        return
    victims = [pod for pod in pods if pod.uid in found.uids]
    assert possible
    assert fits_without(victims)
    for one in victims:
        assert not fits_without([victim for victim in victims if victim is not one])
    if count == 1:
        assert len({card for victim in victims for card in victim.allocation.by_card}) == 1
        top = max(victim.priority for victim in victims)
        cheaper = [pod for pod in lesser if pod.priority < top]
        assert not fits_without(cheaper), "lower priorities would have done"
        equal = [pod for pod in lesser if pod.priority <= top]
        for fewer in combinations(equal, len(victims) - 1):
            assert not fits_without(fewer)


@settings(max_examples=at_least(60))
@given(
    cards_and_victims(),
    st.lists(st.just(a_card("a", mib=400, health=Health.UNHEALTHY)), max_size=1),
    st.builds(
        a_need,
        st.sampled_from([80, 200, 400, 480]),
        cards=st.sampled_from([1, 2, 3]),
        share=st.sampled_from([None, Fraction(1, 2), Fraction(1)]),
    ),
    st.sampled_from([(), ("NVIDIA A30",), ("NVIDIA H100",)]),
    st.booleans(),
)
def test_no_node_is_left_out_by_the_arrays_on_which_victims_would_be_found(
    drawn: tuple[list[Card], list[BoundPod]],
    sick: list[Card],
    wanted: ContainerNeed,
    models: tuple[str, ...],
    shared: bool,
) -> None:
    cards, pods = drawn
    cards = [*sick, *cards[len(sick) :]]
    ledger = Ledger()
    ledger.set_node(NodeCards(node="n", cards=tuple(cards), shared=shared))
    for pod in pods:
        ledger.observe(pod.allocation)
    matrix = NodeMatrix(ledger)
    matrix.refresh(now=NOON)
    need = a_pod_need(wanted, models=models)
    node_info = ledger.node("n", now=NOON)
    assert node_info is not None

    target = PreemptionTarget(node=node_info, missing=NO_HOST_RESOURCES, potential_victims=pods)
    (found,) = choose_victims([target], need, strategy=Strategy.PACK)

    (possible,) = fits_if_emptied(matrix, matrix.rows_of(["n"]), need).tolist()
    assert possible or found is None
    emptied = [PodAllocation(pod_uid="none", node="n", by_card={})]
    node = NodeCards(node="n", cards=tuple(cards), shared=shared)
    answer = place(build_node_info(node, emptied), need, strategy=Strategy.PACK)
    assert possible == isinstance(answer, Placement)
    assert not fits_if_emptied(matrix, matrix.rows_of(["unknown"]), need).any()
