"""Cards, nodes and needs as tests of the core write them, and as hypothesis draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from hypothesis import strategies as st
from msgspec import structs

from fracgpu.cards.card import Card, CardUuid, CordonEffect, Health, NodeCards
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.request.need import ContainerNeed, PodNeed, Strategy
from fracgpu.state.allocation import Assignment, CardAllocation, PodRecord, Slice
from fracgpu.state.snapshot import NodeInfo, PodAllocation, build_node_info
from fracgpu.units import Mib

GRANULE_MIB = 80  # cards share multiples of this


def a_card(
    uuid: str,
    *,
    mib: int = 24_000,
    index: int = 0,
    model: str = "NVIDIA A30",
    health: Health = Health.HEALTHY,
) -> Card:
    return Card(uuid=CardUuid(uuid), index=index, model=model, total_mib=Mib(mib), health=health)


def an_allocation(
    mib: int, *, cores: int = 0, slots: int = 1, borrow_mib: int = 0
) -> CardAllocation:
    return CardAllocation(mib=Mib(mib), cores=cores, slots=slots, borrow_mib=Mib(borrow_mib))


def a_node_info(
    *cards: Card,
    node: str = "n",
    held: Mapping[str, CardAllocation] | None = None,
    cordoned: Sequence[str] = (),
    avoided: Sequence[str] = (),
    shared: bool = True,
    schedulable: bool = True,
) -> NodeInfo:
    """Return one node's cards, each with one pod's allocation."""
    pods = [
        PodAllocation(pod_uid=f"on-{uuid}", node=node, by_card={CardUuid(uuid): allocation})
        for uuid, allocation in (held or {}).items()
    ]
    return build_node_info(
        NodeCards(node=node, cards=cards, shared=shared, schedulable=schedulable),
        pods,
        cordons={
            **dict.fromkeys(map(CardUuid, cordoned), CordonEffect.NO_SCHEDULE),
            **dict.fromkeys(map(CardUuid, avoided), CordonEffect.PREFER_NO_SCHEDULE),
        },
    )


def a_need(
    mib: int,
    *,
    name: str = "main",
    kind: ContainerKind = ContainerKind.APP,
    cards: int = 1,
    cores: int = 0,
    share: Fraction | None = None,
) -> ContainerNeed:
    return ContainerNeed(name=name, kind=kind, cards=cards, mib=Mib(mib), cores=cores, share=share)


def a_pod_need(
    *containers: ContainerNeed, models: tuple[str, ...] = (), strategy: Strategy | None = None
) -> PodNeed:
    return PodNeed(containers=containers, models=models, strategy=strategy)


def a_record(
    uid: str,
    *,
    node: str = "",
    assignment: Assignment | None = None,
    live: bool = True,
    containers: tuple[ContainerSpec, ...] = (),
) -> PodRecord:
    return PodRecord(
        uid=uid,
        namespace="default",
        name=f"pod-{uid}",
        node=node,
        live=live,
        resource_version="1",
        containers=containers or (ContainerSpec(name="main"),),
        assignment=assignment,
    )


def on(card: str, mib: int, *, cores: int = 0, container: str = "main") -> Assignment:
    """Return an assignment of one container to one card."""
    return {container: (Slice(card=CardUuid(card), mib=Mib(mib), cores=cores),)}


small_mib = st.integers(1, 4 * GRANULE_MIB)
kinds = st.sampled_from(ContainerKind)


@st.composite
def small_nodes(draw: st.DrawFn) -> NodeInfo:
    """Up to four cards of a few hundred MiB, some of it held."""
    count = draw(st.integers(1, 4))
    cards = [
        replace(
            a_card(f"GPU-{n}", mib=(mib := GRANULE_MIB * draw(st.integers(1, 4))), index=n),
            slots=draw(st.sampled_from([32, 32, 1, 2])),
            limits_mib=Mib(mib * draw(st.sampled_from([0, 0, 1, 2]))),
        )
        for n in range(count)
    ]
    held = {
        str(card.uuid): an_allocation(
            mib := draw(st.integers(0, card.capacity_mib)),
            cores=draw(st.sampled_from([0, 0, 30, 80])),
            # Also where nothing limits: of pods that began before the card lost its limits.
            borrow_mib=draw(st.integers(0, max((card.limits_mib or card.capacity_mib) - mib, 0))),
        )
        for card in cards
        if draw(st.booleans())
    }
    return a_node_info(*cards, held=held)


@st.composite
def small_needs(draw: st.DrawFn) -> PodNeed:
    """Up to three containers of any kind, init containers first as in a pod's spec."""
    drawn = draw(st.lists(kinds, min_size=1, max_size=3))
    ordered = sorted(drawn, key=lambda kind: kind is ContainerKind.APP)
    containers = [
        structs.replace(
            a_need(
                mib := draw(small_mib),
                name=f"c{n}",
                kind=kind,
                cards=draw(st.sampled_from([1, 1, 1, 2, 3])),
                cores=draw(st.sampled_from([0, 0, 30, 60])),
            ),
            limit_mib=draw(st.sampled_from([None, None, Mib(mib + GRANULE_MIB), Mib(2 * mib)])),
        )
        for n, kind in enumerate(ordered)
    ]
    return a_pod_need(*containers)
