"""The pods of a gang get a card each, or none of them does."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.k8s.container import ContainerSpec
from fracgpu.k8s.resources import HostResources
from fracgpu.placement.gang import GangMember, NoRoom, place_gang
from fracgpu.placement.outcome import Placement
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.allocation import allocations_by_card
from fracgpu.state.pod_info import PodInfo
from fracgpu.state.snapshot import NodeInfo, build_node_info
from fracgpu.units import Mib
from tests.support.core import (
    GRANULE_MIB,
    a_card,
    a_need,
    a_node_info,
    a_pod_need,
    a_record,
    an_allocation,
    small_needs,
    small_nodes,
)
from tests.support.examples import at_least

strategies = st.sampled_from(Strategy)


def a_member(uid: str, need: PodNeed, nodes: Sequence[str], *, cpu_milli: int = 0) -> GangMember:
    containers = tuple(ContainerSpec(name=one.name, kind=one.kind) for one in need.containers)
    host = HostResources(cpu_milli=cpu_milli)
    pod = PodInfo(record=a_record(uid, containers=containers), need=need, host=host)
    return GangMember(pod=pod, need=need, nodes=tuple(nodes))


def placed(
    members: Sequence[GangMember],
    nodes: Mapping[str, NodeInfo],
    *,
    left: Mapping[str, HostResources] | None = None,
    strategy: Strategy = Strategy.PACK,
) -> Mapping[str, Placement] | NoRoom:
    return place_gang(members, node=nodes.get, left=(left or {}).get, strategy=strategy)


def named(nodes: Sequence[NodeInfo]) -> dict[str, NodeInfo]:
    return {
        f"n{at}": replace(
            each,
            node=replace(each.node, node=f"n{at}"),
            cards={CardUuid(f"n{at}-{uuid}"): card for uuid, card in each.cards.items()},
        )
        for at, each in enumerate(nodes)
    }


some_nodes = st.lists(small_nodes(), min_size=1, max_size=4).map(named)


@settings(max_examples=at_least(100))
@given(some_nodes, st.lists(small_needs(), min_size=1, max_size=6), strategies, st.data())
def test_a_gang_is_placed_whole_where_its_pods_may_go_and_no_card_is_overcommitted(
    nodes: dict[str, NodeInfo], needs: list[PodNeed], strategy: Strategy, data: st.DataObject
) -> None:
    names = st.lists(st.sampled_from(sorted(nodes)), unique=True)
    members = [a_member(f"m{at}", need, data.draw(names)) for at, need in enumerate(needs)]

    answer = placed(members, nodes, strategy=strategy)

    if isinstance(answer, NoRoom):
        assert answer.placed < len(members)
        return
    assert answer.keys() == {member.uid for member in members}
    after = dict(nodes)
    for member in members:
        got = answer[member.uid]
        assert got.node in member.nodes
        holds = allocations_by_card(got.assignment, member.pod.record.containers)
        assert holds
        after[got.node] = after[got.node].with_allocations(holds, pod_uid=member.uid)
    for name, node in after.items():
        for uuid, card in node.cards.items():
            before = nodes[name].cards[uuid]
            assert card.free_mib >= min(before.free_mib, 0)
            assert card.free_slots >= min(before.free_slots, 0)
            assert card.held_cores <= max(before.held_cores, 100)


@settings(max_examples=at_least(100))
@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(1, 12),
    strategies,
)
def test_pods_that_are_alike_fit_exactly_if_the_cards_have_room_for_their_number(
    free: list[list[int]], each: int, size: int, strategy: Strategy
) -> None:
    full = 4 * GRANULE_MIB
    nodes = {
        f"n{at}": build_node_info(
            NodeCards(
                node=f"n{at}",
                cards=tuple(a_card(f"GPU-{at}-{n}", mib=full, index=n) for n in range(len(cards))),
            ),
            (),
        )
        for at, cards in enumerate(free)
    }
    for at, cards in enumerate(free):
        for n, granules in enumerate(cards):
            held = {CardUuid(f"GPU-{at}-{n}"): an_allocation(full - granules * GRANULE_MIB)}
            nodes[f"n{at}"] = nodes[f"n{at}"].with_allocations(held, pod_uid=f"{at}-{n}")
    names = sorted(nodes)
    need = a_pod_need(a_need(each * GRANULE_MIB))
    room = sum(granules // each for cards in free for granules in cards)

    answer = placed([a_member(f"m{n}", need, names) for n in range(size)], nodes, strategy=strategy)

    assert isinstance(answer, NoRoom) == (room < size)
    if isinstance(answer, NoRoom):
        assert answer.placed == room


def test_a_gang_fills_a_node_before_it_takes_the_next() -> None:
    nodes = {
        name: a_node_info(a_card(f"GPU-{name}-0"), a_card(f"GPU-{name}-1", index=1), node=name)
        for name in ("a", "b")
    }
    need = a_pod_need(a_need(12_000))

    answer = placed([a_member(f"m{n}", need, ["b", "a"]) for n in range(5)], nodes)

    assert not isinstance(answer, NoRoom)
    assert Counter(each.node for each in answer.values()) == {"b": 4, "a": 1}


def test_the_cpu_of_a_node_is_counted_for_all_that_go_there() -> None:
    nodes = {name: a_node_info(a_card(f"GPU-{name}"), node=name) for name in ("a", "b")}
    left = {"a": HostResources(cpu_milli=1500), "b": HostResources(cpu_milli=1000)}
    need = a_pod_need(a_need(Mib(1000)))

    def gang(size: int) -> list[GangMember]:
        return [a_member(f"m{n}", need, ["a", "b"], cpu_milli=1000) for n in range(size)]

    two = placed(gang(2), nodes, left=left)

    assert not isinstance(two, NoRoom)
    assert {each.node for each in two.values()} == {"a", "b"}
    assert placed(gang(3), nodes, left=left) == NoRoom(2)


def test_the_largest_pod_of_a_gang_is_placed_first() -> None:
    nodes = {
        "a": a_node_info(a_card("GPU-a", mib=8_000), node="a"),
        "b": a_node_info(a_card("GPU-b", mib=4_000), node="b"),
    }
    small, large = a_pod_need(a_need(4_000)), a_pod_need(a_need(8_000))

    answer = placed([a_member("small", small, ["a", "b"]), a_member("z", large, ["a"])], nodes)

    assert not isinstance(answer, NoRoom)
    assert {uid: each.node for uid, each in answer.items()} == {"small": "b", "z": "a"}
