"""Without NRI: exactly one container that kubelet lists, or a refusal that says what helps."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.claims import NodeClaims, Rejected, RejectReason, SlotHolder
from deviceplugin.kubelet.listed import ListedClaim, listed_claim
from fracgpu.state.pod_info import PodInfo
from tests.deviceplugin.builders import NODE, a_card, a_container, a_holder, a_pod

INIT: Mapping[str, Any] = {"inits": [a_container("prepare", mib=1000)]}


def ask(ids: str, holders: Sequence[SlotHolder], *pods: PodInfo) -> ListedClaim | Rejected:
    cards = (a_card("GPU-a"), a_card("GPU-b", index=1))
    claims = NodeClaims(
        node=NODE,
        cards={card.uuid: card for card in cards},
        pods={pod.record.uid: pod for pod in pods},
    )
    return listed_claim(frozenset(ids.split(",")), holders, claims)


def assert_rejected(
    answer: ListedClaim | Rejected, wanted: RejectReason, *texts: str, cure: bool = True
) -> None:
    assert isinstance(answer, Rejected), answer
    assert answer.reason is wanted, answer
    for word in (*texts, *(("enable NRI",) if cure else ())):
        assert word in answer.text


def test_the_only_listed_container_gets_what_it_is_assigned() -> None:
    pod = a_pod(assigned={"train": [("GPU-b", 1000)]})

    answer = ask("s1", [a_holder(), a_holder("other", ids="s2")], pod)

    assert isinstance(answer, ListedClaim)
    assert answer.containers == ("train",)
    assert [card.uuid for card in answer.claim.cards] == ["GPU-b"]


def test_an_init_container_with_the_same_cards_may_be_the_one_that_starts() -> None:
    same = {"train": [("GPU-a", 1000)], "prepare": [("GPU-a", 1000)]}

    answer = ask("s1", [a_holder()], a_pod(assigned=same, **INIT))

    assert isinstance(answer, ListedClaim)
    assert answer.containers == ("train", "prepare")


@pytest.mark.parametrize("inits", [["prepare"], ["prepare", "check"]])
def test_an_init_container_with_other_cards_leaves_it_open_and_is_refused_at_once(
    inits: list[str],
) -> None:
    cards = {"train": "GPU-a", "prepare": "GPU-b", "check": "GPU-a"}
    assigned = {name: [(cards[name], 1000)] for name in ("train", *inits)}
    pod = a_pod(assigned=assigned, inits=[a_container(name, mib=1000) for name in inits])

    answer = ask("s1", [a_holder()], pod)

    assert_rejected(answer, RejectReason.SEVERAL, f"{' or '.join(inits)} or train")


def test_an_init_container_that_keeps_its_slots_is_in_no_list() -> None:
    pod = a_pod(assigned={"prepare": [("GPU-a", 1000)]}, containers=[{"name": "main"}], **INIT)

    assert_rejected(ask("s1", [], pod), RejectReason.NOBODY, "never lists init containers")


def test_two_pods_with_one_slot_are_refused_at_once() -> None:
    holders = [a_holder("one"), a_holder("two")]

    answer = ask("s1", holders, a_pod("one"), a_pod("two"))

    assert_rejected(answer, RejectReason.SEVERAL, "ml/one/train and ml/two/train")


@pytest.mark.parametrize(
    ("ids", "holders"),
    [
        ("s1", [a_holder("one"), a_holder("two", ids="s1,s2")]),
        ("s1,s2", [a_holder("one"), a_holder("two", ids="s1,s2")]),
        ("s1", [a_holder("one", ids="s1,s2")]),
    ],
    ids=["another-set-has-it-too", "another-has-a-part-of-it", "it-is-a-part-of-another"],
)
def test_sets_that_share_a_slot_are_refused_too(ids: str, holders: list[SlotHolder]) -> None:
    assert_rejected(ask(ids, holders, a_pod("one"), a_pod("two")), RejectReason.SEVERAL)


def test_a_pod_that_was_deleted_by_force_may_start_until_kubelet_has_dropped_it() -> None:
    holders = [a_holder("deleted"), a_holder()]

    assert_rejected(ask("s1", holders, a_pod()), RejectReason.SEVERAL, "ml/deleted")
    assert isinstance(ask("s1", holders[1:], a_pod()), ListedClaim)


def test_a_pod_that_has_ended_does_not_stand_in_the_way() -> None:
    ended = a_pod("ended", phase="Succeeded")

    answer = ask("s1", [a_holder("ended"), a_holder()], ended, a_pod())

    assert isinstance(answer, ListedClaim)
    assert answer.claim.pod.record.name == "train-0"


def test_a_pod_that_has_not_reached_the_agent_waits() -> None:
    answer = ask("s1", [a_holder()])

    assert_rejected(answer, RejectReason.UNKNOWN_POD, "ml/train-0", cure=False)


def test_more_slots_than_the_container_has_cards_are_refused() -> None:
    answer = ask("s1,s2", [a_holder(ids="s1,s2")], a_pod())

    assert_rejected(answer, RejectReason.WRONG_COUNT, "1 card", cure=False)


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[SlotHolder], list[PodInfo]]:
    """Draw some pods in any state, and a list of holders that may be stale or wrong."""
    pods = [
        a_pod(
            f"pod-{n}",
            assigned={"train": [(draw(st.sampled_from(["GPU-a", "GPU-b", "GPU-x"])), mib)]},
            containers=[a_container("train", mib=draw(st.sampled_from([mib, mib, 500])))],
            phase=draw(st.sampled_from(["Pending", "Running", "Succeeded"])),
            node=draw(st.sampled_from([NODE, NODE, NODE, "gpu-2"])),
        )
        for n in range(draw(st.integers(1, 4)))
        for mib in [draw(st.sampled_from([1000, 5000]))]
    ]
    holders = [
        a_holder(f"pod-{draw(st.integers(0, 4))}", ids=draw(st.sampled_from(["s1", "s2", "s1,s2"])))
        for _ in range(draw(st.integers(0, 5)))
    ]
    return holders, pods


@given(nodes())
def test_a_yes_is_always_the_one_container_that_may_hold_them(
    node: tuple[list[SlotHolder], list[PodInfo]],
) -> None:
    holders, pods = node
    ended = {pod.record.name for pod in pods if not pod.record.live}

    answer = ask("s1", holders, *pods)

    if isinstance(answer, ListedClaim):
        record = answer.claim.pod.record
        assert answer.claim.slices == (record.assignment or {})["train"]
        (holder,) = [each for each in holders if "s1" in each.slot_ids and each.pod not in ended]
        assert (holder.pod, holder.slot_ids) == (record.name, frozenset({"s1"}))
    else:
        assert answer.text
