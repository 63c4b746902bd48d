"""What a container may have: its assignment, if node, size, health and sums agree with it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from deviceplugin.claims import Claim, NodeClaims, Rejected, RejectReason, claim_of, held_on
from fracgpu import names
from fracgpu.cards.card import DEFAULT_SLOTS, Card, CardUuid
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib
from tests.deviceplugin.builders import NODE, a_card, a_container, a_pod, a_resized_pod

BOTH = (a_card("GPU-a"), a_card("GPU-b", index=1))


def ask(pod: PodInfo, *others: PodInfo, cards: tuple[Card, ...] = BOTH) -> Claim | Rejected:
    claims = NodeClaims(
        node=NODE,
        cards={card.uuid: card for card in cards},
        pods={each.record.uid: each for each in (pod, *others)},
    )
    return claim_of("train", pod, claims)


def assert_rejected(answer: Claim | Rejected, wanted: RejectReason, *texts: str) -> None:
    assert isinstance(answer, Rejected), answer
    assert answer.reason is wanted, answer
    for word in texts:
        assert word in answer.text


def test_a_container_with_two_cards_gets_them_in_the_order_of_its_assignment() -> None:
    pod = a_pod(
        assigned={"train": [("GPU-b", 500), ("GPU-a", 500)]},
        containers=[a_container("train", mib=500, slots=2)],
    )

    answer = ask(pod)

    assert isinstance(answer, Claim)
    assert [card.uuid for card in answer.cards] == ["GPU-b", "GPU-a"]
    assert [part.mib for part in answer.slices] == [500, 500]


@pytest.mark.parametrize(
    ("pod", "reason", "texts"),
    [
        (a_pod(node="gpu-2"), RejectReason.WRONG_NODE, ("gpu-2", NODE)),
        (a_pod(assigned={}), RejectReason.NOT_ASSIGNED, (names.ASSIGNMENT,)),
        (a_pod(assigned={"eval": [("GPU-a", 1000)]}), RejectReason.NOT_ASSIGNED, ("train",)),
        (
            a_pod(annotations={names.ASSIGNMENT: "{"}),
            RejectReason.UNREADABLE,
            (names.ASSIGNMENT,),
        ),
        (
            a_pod(assigned={"train": [("GPU-a", 500), ("GPU-b", 500)]}),
            RejectReason.WRONG_COUNT,
            ("1 slot ", "2 cards"),
        ),
        (a_pod(phase="Failed"), RejectReason.ENDED, ("ml/train-0",)),
        (
            a_pod(assigned={"train": [("GPU-a", 900)]}),
            RejectReason.WRONG_SIZE,
            ("900 MiB", "1000"),
        ),
        (a_pod(assigned={"train": [("GPU-x", 1000)]}), RejectReason.NO_SUCH_CARD, ("GPU-x", NODE)),
    ],
    ids=[
        "a-pod-of-another-node",
        "no-assignment",
        "an-assignment-of-another-container",
        "an-assignment-that-cannot-be-read",
        "more-cards-than-slots",
        "a-pod-that-has-ended",
        "another-size-than-the-limit",
        "a-card-that-is-not-here",
    ],
)
def test_what_a_container_may_not_have_is_refused(
    pod: PodInfo, reason: RejectReason, texts: Sequence[str]
) -> None:
    assert_rejected(ask(pod), reason, *texts)


def test_a_resized_pod_gets_what_it_was_granted_and_holds_what_may_be_applied() -> None:
    pod = a_resized_pod(600, applied=1000)

    claim = ask(pod)

    assert isinstance(claim, Claim)
    assert [part.mib for part in claim.slices] == [600]
    assert held_on([pod], node=NODE)[CardUuid("GPU-a")].mib == 1000


def test_a_limit_is_read_as_the_api_server_writes_it() -> None:
    limits = {"limits": {names.GPU_MEM: "4k", names.GPU_SLOT: "1"}}
    pod = a_pod(
        assigned={"train": [("GPU-a", 4000)]}, containers=[{"name": "train", "resources": limits}]
    )

    assert isinstance(ask(pod), Claim)


def test_an_unhealthy_card_is_refused_with_its_reason() -> None:
    unhealthy = a_card("GPU-a", unhealthy="fell off the bus")

    assert_rejected(
        ask(a_pod(), cards=(unhealthy,)),
        RejectReason.UNHEALTHY,
        "fell off the bus",
    )


def another_pod(name: str, *, mib: int) -> PodInfo:
    """A pod that holds *mib* of GPU-a."""
    containers = [a_container("train", mib=mib)]
    return a_pod(name, assigned={"train": [("GPU-a", mib)]}, containers=containers)


def test_a_card_assigned_beyond_its_capacity_is_refused() -> None:
    answer = ask(a_pod(), *(another_pod(f"other-{n}", mib=4000) for n in range(2)))

    assert_rejected(answer, RejectReason.OVER_CAPACITY, "9000 of 8000 MiB")


def test_a_card_full_to_the_last_mib_is_not_too_full() -> None:
    assert isinstance(ask(a_pod(), another_pod("other", mib=7000)), Claim)


def test_a_cards_own_limit_of_containers_is_kept_at_prestart() -> None:
    others = [another_pod(f"other-{n}", mib=10) for n in range(DEFAULT_SLOTS)]

    assert isinstance(ask(a_pod(), *others[1:]), Claim)
    assert_rejected(
        ask(a_pod(), *others),
        RejectReason.OVER_SLOTS,
        "GPU-a",
        "together have 33 containers of 32",
    )


def test_a_pod_whose_assignment_cannot_be_read_takes_room_on_every_card_by_its_limits() -> None:
    unread = a_pod("unread", containers=[a_container("train", mib=7001)])
    unread = replace(unread, record=replace(unread.record, assignment=None, problem="no JSON"))
    ended = replace(unread, record=replace(unread.record, live=False))

    assert_rejected(ask(a_pod(), unread), RejectReason.OVER_CAPACITY, "unread", "7001 more")
    assert isinstance(ask(a_pod(), ended), Claim)


def test_ended_pods_and_pods_of_other_nodes_take_no_room() -> None:
    pods = [a_pod("live"), a_pod("ended", phase="Succeeded"), a_pod("away", node="gpu-2")]

    assert held_on(pods, node=NODE) == {"GPU-a": CardAllocation(mib=Mib(1000))}
