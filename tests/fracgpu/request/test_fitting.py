"""The integers of a fitting give the same results as the arithmetic of needs."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card_class import CardClass
from fracgpu.k8s.container import ContainerKind, pod_resource_sum
from fracgpu.request.grant import Fitting
from fracgpu.request.need import PodRequest, SliceRequest
from fracgpu.units import Mib, share_of

SIZES = st.integers(1, 400).map(lambda granules: granules * 80)
MAYBE = st.none() | st.integers(1, 40_000)
CLASSES = st.builds(
    CardClass,
    capacity_mib=SIZES,
    models=st.just(frozenset({"NVIDIA-A30"})),
    most_per_node=st.integers(1, 4),
    as_large_per_node=st.integers(0, 9),
    cards=st.just(4),
    free_share=st.just(1.0),
)
SHARES = st.fractions(min_value=Fraction(1, 10**6), max_value=1)
SLICES = st.builds(
    lambda kind, share, mib, cards, stated_mib, stated_slots: SliceRequest(
        container="train",
        kind=kind,
        share=share,
        mib=None if share is not None else Mib(mib),
        cards=cards,
        stated_mib=stated_mib,
        stated_slots=stated_slots,
    ),
    st.sampled_from(ContainerKind),
    st.none() | SHARES | st.sampled_from([Fraction(1, 3), Fraction(1, 7), Fraction(1)]),
    st.integers(1, 40_000),
    st.integers(1, 4),
    MAYBE,
    st.none() | st.integers(1, 4),
)


def mib_in(part: SliceRequest, card_class: CardClass) -> int:
    if part.share is not None:
        return share_of(part.share, capacity_mib=card_class.capacity_mib)
    assert part.mib is not None
    return part.mib


@given(
    slices=st.lists(SLICES, min_size=1, max_size=6),
    classes=st.lists(
        CLASSES, min_size=1, max_size=6, unique_by=lambda card_class: card_class.capacity_mib
    ),
)
def test_a_class_holds_a_request_when_each_container_and_all_together_fit_on_one_node(
    slices: list[SliceRequest], classes: list[CardClass]
) -> None:
    fitting = Fitting(PodRequest(slices=tuple(slices)), classes)
    mibs_fit = all(
        any(
            card_class.capacity_mib >= part.mib and card_class.as_large_per_node >= part.cards
            for card_class in classes
        )
        for part in slices
        if part.share is None and part.mib is not None
    )
    for card_class in classes:
        shares = [part for part in slices if part.share is not None]
        peak_mib = pod_resource_sum(
            [(part.kind, mib_in(part, card_class) * part.cards) for part in shares]
        )

        assert fitting.holds(card_class) is (
            mibs_fit
            and all(part.cards <= card_class.most_per_node for part in shares)
            and peak_mib <= card_class.capacity_mib * card_class.most_per_node
        )


@given(slices=st.lists(SLICES, min_size=1, max_size=3), card_class=CLASSES, data=st.data())
def test_a_class_agrees_when_the_limits_say_the_same_mib_and_slots(
    slices: list[SliceRequest], card_class: CardClass, data: st.DataObject
) -> None:
    with_limits = [
        SliceRequest(
            container=part.container,
            share=part.share,
            mib=part.mib,
            cards=part.cards,
            stated_mib=data.draw(
                st.sampled_from([None, Mib(mib_in(part, card_class) * part.cards)])
            ),
            stated_slots=data.draw(st.sampled_from([None, part.cards])),
        )
        for part in slices
    ]

    assert Fitting(PodRequest(slices=tuple(with_limits)), [card_class]).agrees(card_class)
    assert Fitting(PodRequest(slices=tuple(slices)), [card_class]).agrees(card_class) is all(
        part.stated_mib in (None, mib_in(part, card_class) * part.cards)
        and part.stated_slots in (None, part.cards)
        for part in slices
    )


@given(st.lists(CLASSES, max_size=6), SIZES)
def test_the_most_cards_of_so_many_mib_are_those_of_the_best_class(
    classes: list[CardClass], mib: int
) -> None:
    large = [
        card_class.as_large_per_node for card_class in classes if card_class.capacity_mib >= mib
    ]

    assert Fitting(PodRequest(slices=()), classes).cards_of(Mib(mib)) == max(large, default=0)
