"""Every card at one moment: immutable; what-if questions make copies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid, CordonEffect, NodeCards
from fracgpu.state.snapshot import PodAllocation, Snapshot, build_node_info
from tests.support.core import a_card, a_node_info, an_allocation


def a_snapshot(*pods: PodAllocation) -> Snapshot:
    cards = (a_card("GPU-b", index=1), a_card("GPU-a", index=0))
    node_info = build_node_info(NodeCards(node="n", cards=cards), pods)
    return Snapshot(nodes={"n": node_info}, pods={pod.pod_uid: pod for pod in pods})


def holding(uid: str, *, node: str = "n", **mib: int) -> PodAllocation:
    holds = {CardUuid(f"GPU-{card}"): an_allocation(amount) for card, amount in mib.items()}
    return PodAllocation(pod_uid=uid, node=node, by_card=holds)


def free(snapshot: Snapshot, card: str) -> int:
    card_info = snapshot.card(CardUuid(card))
    assert card_info is not None
    return card_info.free_mib


def test_what_pods_hold_is_not_free() -> None:
    snapshot = a_snapshot(holding("p", a=1000), holding("q", a=500, b=1))

    assert (free(snapshot, "GPU-a"), free(snapshot, "GPU-b")) == (22_500, 23_999)
    assert snapshot.nodes["n"].free_mib == 46_499
    card_info = snapshot.card(CardUuid("GPU-a"))
    assert card_info is not None
    assert card_info.pods == ("p", "q")


def test_a_card_is_avoided_or_closed_as_its_cordon_says() -> None:
    cards = tuple(a_card(f"GPU-{name}", index=index) for index, name in enumerate("abc"))
    cordons = {
        CardUuid("GPU-a"): CordonEffect.PREFER_NO_SCHEDULE,
        CardUuid("GPU-b"): CordonEffect.NO_SCHEDULE,
    }

    node = build_node_info(NodeCards(node="n", cards=cards), (), cordons=cordons)

    assert [card.avoided for card in node.cards.values()] == [True, False, False]
    assert [card.cordoned for card in node.cards.values()] == [False, True, False]


def test_what_if_a_pod_came_leaves_the_picture_as_it_was() -> None:
    snapshot = a_snapshot()

    assert free(snapshot.with_(holding("p", a=1000)), "GPU-a") == 23_000
    assert free(snapshot, "GPU-a") == 24_000


def test_what_if_a_pod_went_leaves_the_picture_as_it_was() -> None:
    snapshot = a_snapshot(holding("p", a=1000))

    assert free(snapshot.without("p"), "GPU-a") == 24_000
    assert free(snapshot, "GPU-a") == 23_000


def test_without_a_stranger_nothing_changes() -> None:
    snapshot = a_snapshot(holding("p", a=1000))

    assert snapshot.without("nobody") is snapshot


def test_a_pod_cannot_come_twice() -> None:
    snapshot = a_snapshot(holding("p", a=1))

    with pytest.raises(AssertionError, match="in the snapshot already"):
        snapshot.with_(holding("p", b=1))


def test_holds_on_cards_that_are_gone_count_nowhere() -> None:
    snapshot = a_snapshot(holding("p", vanished=1000))

    assert snapshot.nodes["n"].free_mib == 48_000
    assert snapshot.card(CardUuid("GPU-vanished")) is None


def test_a_pod_on_a_node_that_is_gone_changes_no_card() -> None:
    snapshot = a_snapshot()

    assert snapshot.with_(holding("p", node="gone", a=1)).nodes == snapshot.nodes


def test_a_card_that_shrank_under_its_pods_has_less_than_nothing_free() -> None:
    node_info = a_node_info(a_card("GPU-a", mib=800), held={"GPU-a": an_allocation(1000)})

    assert node_info.cards[CardUuid("GPU-a")].free_mib == -200


@given(st.integers(0, 9000), st.integers(0, 9000), st.integers(0, 100))
def test_coming_and_going_restores_the_snapshot(a_mib: int, b_mib: int, cores: int) -> None:
    snapshot = a_snapshot(holding("other", a=17))
    pod = PodAllocation(
        pod_uid="p",
        node="n",
        by_card={
            CardUuid("GPU-a"): an_allocation(a_mib, cores=cores),
            CardUuid("GPU-b"): an_allocation(b_mib),
        },
    )

    assert snapshot.with_(pod).without("p") == snapshot


def test_a_pod_that_may_be_on_any_card_is_free_on_none_and_held_on_none() -> None:
    somewhere = PodAllocation(
        pod_uid="p", node="n", by_card={}, unplaced=an_allocation(30_000, cores=100)
    )
    cards = (a_card("GPU-a"), a_card("GPU-b", mib=48_000, index=1))

    node_info = build_node_info(NodeCards(node="n", cards=cards), [somewhere])

    assert [card.free_mib for card in node_info.cards.values()] == [0, 18_000]
    assert [card.held_mib for card in node_info.cards.values()] == [0, 0]
    assert [card.held_cores for card in node_info.cards.values()] == [100, 100]
    assert [card.pods for card in node_info.cards.values()] == [(), ()]
