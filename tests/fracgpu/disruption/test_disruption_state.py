"""The input of a plan."""

from fracgpu.cards.card import CardUuid
from fracgpu.disruption.move import HoldReason
from tests.support.rebalancing import (
    COOL_CARD,
    HOT_CARD,
    a_disruption_state,
    a_node,
    a_placed_pod,
)


def test_only_healthy_cards_of_shared_nodes_are_expected_to_be_measured() -> None:
    state = a_disruption_state(
        nodes=[a_node("n1", HOT_CARD), a_node("whole", "GPU-whole", shared=False)], pods=[]
    )

    assert state.cards() == {HOT_CARD}


def test_a_card_is_found_by_its_node_and_reading() -> None:
    state = a_disruption_state()

    assert state.node_of(COOL_CARD) == "n2"
    assert state.node_of(CardUuid("GPU-none")) == ""
    assert state.reading(CardUuid("GPU-none")) is None
    assert state.reading(HOT_CARD) is not None


def test_reasons_have_distinct_texts_and_labels_fit_for_a_metric() -> None:
    assert len({reason.value for reason in HoldReason}) == len(HoldReason.__members__)
    assert all(
        reason.label == reason.label.lower() and " " not in reason.label for reason in HoldReason
    )


def test_a_bare_pod_has_no_owner() -> None:
    assert a_placed_pod("a", owner=None).owner_uid == ""
    assert a_placed_pod("a").owner_uid == "owner-1"
