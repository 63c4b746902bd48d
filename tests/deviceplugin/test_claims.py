"""The container that holds a set of slots: exactly one, or the reason why it is not clear."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.claims import (
    Claim,
    NodeClaims,
    Rejected,
    RejectReason,
    SlotHolder,
    held_on,
)
from deviceplugin.kubelet.resolution import resolve
from fracgpu import names
from fracgpu.cards.card import DEFAULT_SLOTS, Card
from fracgpu.state.allocation import CardAllocation
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib
from tests.deviceplugin.builders import NODE, a_card, a_container, a_holder, a_pod


def ask(  # noqa: PLR0913 - what is known of a node
    ids: str,
    holders: list[SlotHolder],
    *pods: PodInfo,
    cards: tuple[Card, ...] = (a_card("GPU-a"), a_card("GPU-b", index=1)),
    token: str = "",
    owner_uid: str = "",
    elsewhere: tuple[str, ...] = (),
    takers: dict[str, dict[str, int]] | None = None,
    started: dict[tuple[str, str], frozenset[str]] | None = None,
) -> Claim | Rejected:
    snapshot = NodeClaims(
        node=NODE,
        cards={card.uuid: card for card in cards},
        pods={(pod.record.namespace, pod.record.name): pod for pod in pods},
        token=token,
        owner_uid=owner_uid,
        elsewhere=frozenset(elsewhere),
        takers=takers or {},
        started=started or {},
    )
    return resolve(frozenset(ids.split(",")), holders, snapshot)


def assert_rejected(answer: Claim | Rejected, wanted: RejectReason, *texts: str) -> None:
    assert isinstance(answer, Rejected), answer
    assert answer.reason is wanted, answer
    for word in texts:
        assert word in answer.text


def test_the_only_live_holder_gets_what_it_is_assigned() -> None:
    pod = a_pod(assigned={"train": [("GPU-b", 1000)]})

    answer = ask("s1", [a_holder(), a_holder("other", ids="s2")], pod)

    assert isinstance(answer, Claim)
    assert answer.container == "train"
    assert [card.uuid for card in answer.cards] == ["GPU-b"]
    assert [part.mib for part in answer.slices] == [1000]


def test_equal_pods_are_told_apart_by_their_ids() -> None:
    first = a_pod("first", assigned={"train": [("GPU-a", 1000)]})
    second = a_pod("second", assigned={"train": [("GPU-b", 1000)]})
    holders = [a_holder("first", ids="s1"), a_holder("second", ids="s2")]

    answers = [ask(ids, holders, first, second) for ids in ("s2", "s1")]

    assert [claim.cards[0].uuid for claim in answers if isinstance(claim, Claim)] == [
        "GPU-b",
        "GPU-a",
    ]


def test_a_container_with_two_slots_gets_two_cards_in_the_order_of_its_assignment() -> None:
    pod = a_pod(
        assigned={"train": [("GPU-b", 500), ("GPU-a", 500)]},
        containers=[a_container("train", mib=500, slots=2)],
    )

    answer = ask("s1,s2", [a_holder(ids="s1,s2")], pod)

    assert isinstance(answer, Claim)
    assert [card.uuid for card in answer.cards] == ["GPU-b", "GPU-a"]


def test_a_holder_that_has_ended_does_not_stand_in_the_way() -> None:
    ended = a_pod("ended", phase="Succeeded")
    holders = [a_holder("ended"), a_holder("train-0")]

    answer = ask("s1", holders, ended, a_pod())

    assert isinstance(answer, Claim)
    assert answer.pod.record.name == "train-0"


def test_a_holder_that_was_deleted_by_force_may_start_until_kubelet_has_dropped_it() -> None:
    holders = [a_holder("deleted"), a_holder("train-0")]

    assert_rejected(
        ask("s1", holders, a_pod()), RejectReason.SEVERAL_PODS, "does not know ml/deleted"
    )
    assert isinstance(ask("s1", holders[1:], a_pod()), Claim)


def test_nobody_holds_them() -> None:
    assert_rejected(ask("s1", [], a_pod()), RejectReason.NOBODY, "s1")


def test_only_ended_and_unknown_pods_hold_them() -> None:
    holders = [a_holder("ended"), a_holder("unknown")]

    answer = ask("s1", holders, a_pod("ended", phase="Failed"))

    assert_rejected(answer, RejectReason.NOBODY, "ml/ended", "ml/unknown")


def test_two_live_pods_hold_them() -> None:
    answer = ask("s1", [a_holder("one"), a_holder("two")], a_pod("one"), a_pod("two"))

    assert_rejected(answer, RejectReason.SEVERAL_PODS, "ml/one", "ml/two")


def overlapping() -> tuple[list[SlotHolder], PodInfo, PodInfo]:
    """Pods of which one was given an id of the other, beside one of its own."""
    one = a_pod("one", assigned={"train": [("GPU-a", 1000)]})
    two = a_pod(
        "two",
        assigned={"train": [("GPU-a", 500), ("GPU-b", 500)]},
        containers=[a_container("train", mib=500, slots=2)],
    )
    return [a_holder("one"), a_holder("two", ids="s1,s2")], one, two


def test_a_start_names_all_slots_of_its_container_so_sets_that_differ_do_not_wait() -> None:
    holders, one, two = overlapping()

    answers = [ask(ids, holders, one, two, owner_uid="") for ids in ("s1", "s1,s2")]

    found = [claim for claim in answers if isinstance(claim, Claim)]
    assert [claim.pod.record.name for claim in found] == ["one", "two"]
    assert not any(claim.shared for claim in found)  # each has a name of its own


@pytest.mark.parametrize("elsewhere", [(), ("uid-two",)])
def test_an_init_container_that_passes_on_part_of_the_set_may_be_the_one_that_starts(
    elsewhere: tuple[str, ...],
) -> None:
    holders, one, _ = overlapping()
    two = a_pod(
        "two",
        assigned={"prepare": [("GPU-b", 1000)], "train": [("GPU-a", 500), ("GPU-b", 500)]},
        containers=[a_container("train", mib=500, slots=2)],
        inits=[a_container("prepare", mib=1000)],
    )

    answer = ask("s1", holders, one, two, elsewhere=elsewhere)

    if elsewhere:
        assert isinstance(answer, Claim)
        assert (answer.pod.record.name, answer.shared) == ("one", True)
    else:
        assert_rejected(answer, RejectReason.SEVERAL_PODS, "ml/one", "ml/two")


def test_where_only_larger_sets_are_listed_an_unlisted_init_container_starts_by_the_token() -> None:
    holders, _, two = overlapping()
    said = {"prepare": f"[{ASKED}]"}
    other, asked = (an_init_pod("other", "GPU-b", waiting=waiting) for waiting in ({}, said))

    assert_rejected(ask("s1", holders[1:], two, other), RejectReason.UNLISTED)
    answer = ask("s1", holders[1:], two, asked, token=ASKED)

    assert isinstance(answer, Claim)
    assert (answer.container, answer.shared) == ("prepare", False)  # each has a name of its own
    assert_rejected(ask("s1", holders[1:], two), RejectReason.PARTLY_HELD, "s1,s2")


def allocated(**times: int) -> dict[str, dict[str, int]]:
    """How often s1 was allocated to each pod, by UID; to one that is not known as ``unknown``."""
    return {"s1": {uid.replace("_", "-").replace("unknown", ""): n for uid, n in times.items()}}


@pytest.mark.parametrize(
    ("takers", "doubt"),
    [
        ({}, False),  # after a restart of the agent
        (allocated(unknown=1), False),
        (allocated(uid_one=1), False),
        (allocated(uid_gone=3, uid_one=1), False),
        (allocated(unknown=2), True),
        (allocated(uid_one=1, unknown=1), True),
        (allocated(uid_one=1, uid_other=1), True),
    ],
)
def test_a_listed_holder_is_not_alone_if_its_ids_were_allocated_more_often(
    takers: dict[str, dict[str, int]], doubt: bool
) -> None:
    one, other = a_pod("one"), an_init_pod("other", "GPU-b")

    answer = ask("s1", [a_holder("one")], one, other, takers=takers)
    without_others = ask("s1", [a_holder("one")], one, takers=takers)

    if doubt:
        assert_rejected(answer, RejectReason.SEVERAL_PODS, "ml/one", "ml/other")
    else:
        assert isinstance(answer, Claim)
        assert (answer.pod.record.name, answer.shared, answer.alone) == ("one", False, False)
    assert isinstance(without_others, Claim)
    assert without_others.alone


def test_of_a_listed_holder_and_an_unlisted_one_that_starts_which_is_not_elsewhere() -> None:
    said = {"prepare": f"[{ASKED}]"}
    one = a_pod("one", waiting={"train": f"[{ASKED}]"})
    other, asked = (an_init_pod("other", "GPU-b", waiting=waiting) for waiting in ({}, said))

    def start(unlisted: PodInfo, *, elsewhere: str) -> Claim | Rejected:
        return ask(
            "s1", [a_holder("one")], one, unlisted, token=ASKED, owner_uid="uid-one",
            takers=allocated(uid_one=1, unknown=1), elsewhere=(elsewhere,),
        )  # fmt: skip

    listed = start(other, elsewhere="uid-other")
    unlisted = start(asked, elsewhere="uid-one")

    assert isinstance(listed, Claim)
    assert (listed.pod.record.name, listed.shared) == ("one", True)
    assert isinstance(unlisted, Claim)
    assert (unlisted.pod.record.name, unlisted.shared) == ("other", True)
    # An earlier call of either may have got the token that its status has.
    assert_rejected(start(other, elsewhere="uid-one"), RejectReason.UNLISTED)
    assert_rejected(start(asked, elsewhere=""), RejectReason.SEVERAL_PODS)


@pytest.mark.parametrize(("ids", "known"), [("s9", True), ("s1", False)])
def test_a_pod_whose_init_container_was_seen_to_start_with_other_ids_is_no_holder(
    ids: str, known: bool
) -> None:
    one, other = a_pod("one"), an_init_pod("other", "GPU-b")

    answer = ask(
        "s1", [a_holder("one")], one, other, takers=allocated(uid_one=1, unknown=1),
        started={("uid-other", "prepare"): frozenset({ids})},
    )  # fmt: skip

    if known:
        assert isinstance(answer, Claim)
        assert answer.alone
    else:
        assert_rejected(answer, RejectReason.SEVERAL_PODS)


def test_of_two_unlisted_ones_with_an_id_the_token_alone_says_nothing() -> None:
    said = {"prepare": f"[{ASKED}]"}
    one, other = an_init_pod("one", "GPU-a", waiting=said), an_init_pod("other", "GPU-b")

    def start(*elsewhere: str, twice: bool = True) -> Claim | Rejected:
        takers = allocated(unknown=2 if twice else 1)
        return ask("s1", [], one, other, token=ASKED, takers=takers, elsewhere=elsewhere)

    assert isinstance(start(twice=False), Claim)
    assert_rejected(start(), RejectReason.SEVERAL_PODS)
    assert isinstance(start("uid-other"), Claim)
    assert_rejected(start("uid-one"), RejectReason.UNLISTED)


def test_an_init_container_of_the_pod_itself_explains_a_second_allocation() -> None:
    one = a_pod(
        "one",
        assigned={"prepare": [("GPU-a", 1000)], "train": [("GPU-a", 1000)]},
        inits=[a_container("prepare", mib=1000)],
    )
    other = an_init_pod("other", "GPU-b")

    answer = ask("s1", [a_holder("one")], one, other, takers=allocated(unknown=2))
    thrice = ask("s1", [a_holder("one")], one, other, takers=allocated(unknown=3))

    assert isinstance(answer, Claim)
    assert answer.most == 2
    assert_rejected(thrice, RejectReason.SEVERAL_PODS)


def two_pods() -> tuple[list[SlotHolder], PodInfo, PodInfo]:
    """Pods that kubelet has given the same id, on different cards."""
    one = a_pod("one", assigned={"train": [("GPU-a", 1000)]})
    two = a_pod("two", assigned={"train": [("GPU-b", 1000)]})
    return [a_holder("one"), a_holder("two")], one, two


@pytest.mark.parametrize("verified", ["", "uid-one", "uid-two"])
def test_the_only_pod_that_is_not_elsewhere_gets_its_own_card(verified: str) -> None:
    holders, one, two = two_pods()

    first = ask("s1", holders, one, two, owner_uid=verified, elsewhere=("uid-two",))
    second = ask("s1", holders, one, two, owner_uid=verified, elsewhere=("uid-one",))

    assert isinstance(first, Claim)
    assert isinstance(second, Claim)
    assert [first.cards[0].uuid, second.cards[0].uuid] == ["GPU-a", "GPU-b"]
    assert first.shared
    assert second.shared


def test_of_three_pods_two_must_be_elsewhere() -> None:
    holders, one, two = two_pods()
    holders.append(a_holder("three"))
    three = a_pod("three")

    answer = ask("s1", holders, one, two, three, elsewhere=("uid-one",))
    last = ask("s1", holders, one, two, three, elsewhere=("uid-one", "uid-three"))

    assert_rejected(answer, RejectReason.SEVERAL_PODS, "ml/one", "ml/two", "ml/three")
    assert isinstance(last, Claim)
    assert last.pod.record.name == "two"


def test_where_every_pod_is_elsewhere_none_of_them_is_guessed() -> None:
    holders, one, two = two_pods()

    answer = ask("s1", holders, one, two, elsewhere=("uid-one", "uid-two"))

    assert_rejected(answer, RejectReason.SEVERAL_PODS)


def test_a_single_holder_shares_its_ids_with_nobody() -> None:
    answer = ask("s1", [a_holder()], a_pod())

    assert isinstance(answer, Claim)
    assert not answer.shared


def test_a_container_that_holds_more_than_was_asked_about_is_not_meant() -> None:
    assert_rejected(ask("s1", [a_holder(ids="s1,s2")], a_pod()), RejectReason.PARTLY_HELD, "s1,s2")


def test_the_same_container_listed_twice_is_an_old_and_a_new_pod_of_one_name() -> None:
    assert_rejected(
        ask("s1", [a_holder(ids="s1"), a_holder(ids="s2")], a_pod()),
        RejectReason.LISTED_TWICE,
        "twice",
    )


def test_an_init_container_may_hold_what_the_app_container_holds() -> None:
    pod = a_pod(
        assigned={"prepare": [("GPU-a", 1000)], "train": [("GPU-a", 1000)]},
        inits=[a_container("prepare", mib=1000)],
    )

    answer = ask("s1", [a_holder()], pod)

    assert isinstance(answer, Claim)
    assert [card.uuid for card in answer.cards] == ["GPU-a"]


def test_an_init_container_with_more_slots_than_the_app_is_found_by_their_number() -> None:
    pod = a_pod(
        assigned={"prepare": [("GPU-a", 500), ("GPU-b", 500)], "train": [("GPU-a", 1000)]},
        inits=[a_container("prepare", mib=500, slots=2)],
    )

    answer = ask("s1,s2", [a_holder(ids="s1")], pod)

    assert isinstance(answer, Claim)
    assert answer.container == "prepare"


def test_init_and_app_container_assigned_different_cards_cannot_be_told_apart() -> None:
    pod = a_pod(
        assigned={"prepare": [("GPU-b", 1000)], "train": [("GPU-a", 1000)]},
        inits=[a_container("prepare", mib=1000)],
    )

    assert_rejected(ask("s1", [a_holder()], pod), RejectReason.AMBIGUOUS, "prepare", "train")


ASKED = "fracgpu-ask-1"


def an_init_pod(name: str, card: str, **fields: Any) -> PodInfo:
    """A pod whose init container alone has a slice, which kubelet therefore never lists."""
    return a_pod(
        name,
        assigned={"prepare": [(card, 1000)]},
        inits=[a_container("prepare", mib=1000)],
        containers=[{"name": "train"}],
        **fields,
    )


def test_an_init_container_that_is_not_listed_is_asked_for_even_if_only_one_could_be_meant() -> (
    None
):
    answer = ask("s1", [], an_init_pod("one", "GPU-a"))

    assert_rejected(answer, RejectReason.UNLISTED, "s1")
    assert isinstance(answer, Rejected)
    assert answer.askable


def test_the_init_container_that_carries_the_token_is_the_one() -> None:
    said = {"prepare": f"PreStartContainer failed: [{ASKED}] kubelet does not list"}
    pods = [an_init_pod("one", "GPU-a"), an_init_pod("two", "GPU-b", waiting=said)]

    answer = ask("s1", [], *pods, token=ASKED)

    assert isinstance(answer, Claim)
    assert (answer.pod.record.name, answer.container) == ("two", "prepare")


@pytest.mark.parametrize(
    "fields",
    [
        {"waiting": {"prepare": "[fracgpu-ask-2] an older question"}},
        {"waiting": {"train": f"[{ASKED}] on a container that is none of init"}},
        {"waiting": {"prepare": ASKED}, "phase": "Failed"},
        {"waiting": {"prepare": ASKED}, "node": "gpu-2"},
        {"waiting": {"prepare": ASKED}, "terminating": True},
    ],
    ids=["other token", "other container", "ended", "other node", "terminating"],
)
def test_a_token_anywhere_else_answers_nothing(fields: dict[str, Any]) -> None:
    answer = ask("s1", [], an_init_pod("other", "GPU-a"), an_init_pod("one", "GPU-b", **fields))

    assert_rejected(answer, RejectReason.UNLISTED)


def test_a_token_on_two_pods_answers_nothing() -> None:
    pods = [an_init_pod(name, "GPU-a", waiting={"prepare": ASKED}) for name in ("one", "two")]

    assert_rejected(ask("s1", [], *pods, token=ASKED), RejectReason.UNLISTED)


def test_an_empty_token_is_carried_by_nobody() -> None:
    pod = an_init_pod("one", "GPU-a", waiting={"prepare": "whatever"})

    assert_rejected(ask("s1", [], pod, token=""), RejectReason.UNLISTED)


def test_an_init_container_with_another_number_of_slots_is_not_waited_for() -> None:
    assert_rejected(ask("s1,s2", [], an_init_pod("one", "GPU-a")), RejectReason.NOBODY)


@pytest.mark.parametrize(("container", "card"), [("prepare", "GPU-b"), ("train", "GPU-a")])
def test_the_token_tells_an_init_container_from_the_app_container_after_it(
    container: str, card: str
) -> None:
    pod = a_pod(
        assigned={"prepare": [("GPU-b", 1000)], "train": [("GPU-a", 1000)]},
        inits=[a_container("prepare", mib=1000)],
        waiting={container: f"[{ASKED}]"},
    )

    answer = ask("s1", [a_holder()], pod, token=ASKED)

    assert isinstance(answer, Claim)
    assert (answer.container, answer.cards[0].uuid) == (container, card)


def test_ids_of_one_pod_are_not_taken_over_by_another_of_its_name() -> None:
    assert_rejected(
        ask("s1", [a_holder()], a_pod(uid="new"), owner_uid="old"),
        RejectReason.OTHER_POD,
        "old",
        "new",
    )


def test_a_container_that_starts_again_has_its_own_pods_ids() -> None:
    assert isinstance(ask("s1", [a_holder()], a_pod(uid="u1"), owner_uid="u1"), Claim)


def test_a_sidecar_is_listed_and_so_known_by_its_own_ids() -> None:
    pod = a_pod(
        assigned={"proxy": [("GPU-b", 1000)], "train": [("GPU-a", 1000)]},
        inits=[a_container("proxy", mib=1000, restart_policy="Always")],
    )

    answer = ask("s2", [a_holder(ids="s1"), a_holder(container="proxy", ids="s2")], pod)

    assert isinstance(answer, Claim)
    assert answer.container == "proxy"


def test_a_pod_of_another_node_is_refused() -> None:
    assert_rejected(
        ask("s1", [a_holder()], a_pod(node="gpu-2")), RejectReason.WRONG_NODE, "gpu-2", NODE
    )


def test_a_pod_without_assignment_is_refused() -> None:
    assert_rejected(
        ask("s1", [a_holder()], a_pod(assigned={})), RejectReason.NOT_ASSIGNED, names.ASSIGNMENT
    )


def test_an_assignment_for_another_container_is_none() -> None:
    pod = a_pod(assigned={"eval": [("GPU-a", 1000)]})

    assert_rejected(ask("s1", [a_holder()], pod), RejectReason.NOT_ASSIGNED, "train")


def test_an_assignment_that_cannot_be_read_is_refused() -> None:
    pod = a_pod(annotations={names.ASSIGNMENT: "{"})

    assert_rejected(ask("s1", [a_holder()], pod), RejectReason.UNREADABLE, names.ASSIGNMENT)


def test_more_cards_than_slots_are_refused() -> None:
    pod = a_pod(assigned={"train": [("GPU-a", 500), ("GPU-b", 500)]})

    assert_rejected(ask("s1", [a_holder()], pod), RejectReason.WRONG_COUNT, "1 slot ", "2 cards")


def test_an_assignment_that_differs_from_the_limit_is_refused() -> None:
    pod = a_pod(assigned={"train": [("GPU-a", 900)]})

    assert_rejected(ask("s1", [a_holder()], pod), RejectReason.WRONG_SIZE, "900 MiB", "1000")


def test_a_limit_is_read_as_the_api_server_writes_it() -> None:
    limits = {"limits": {names.GPU_MEM: "4k", names.GPU_SLOT: "1"}}
    pod = a_pod(
        assigned={"train": [("GPU-a", 4000)]}, containers=[{"name": "train", "resources": limits}]
    )

    assert isinstance(ask("s1", [a_holder()], pod), Claim)


def test_a_card_that_is_not_here_is_refused() -> None:
    pod = a_pod(assigned={"train": [("GPU-x", 1000)]})

    assert_rejected(ask("s1", [a_holder()], pod), RejectReason.NO_SUCH_CARD, "GPU-x", NODE)


def test_an_unhealthy_card_is_refused_with_its_reason() -> None:
    unhealthy = a_card("GPU-a", unhealthy="fell off the bus")

    assert_rejected(
        ask("s1", [a_holder()], a_pod(), cards=(unhealthy,)),
        RejectReason.UNHEALTHY,
        "fell off the bus",
    )


def test_a_card_assigned_beyond_its_capacity_is_refused() -> None:
    others = [
        a_pod(
            f"other-{n}",
            assigned={"train": [("GPU-a", 4000)]},
            containers=[a_container("train", mib=4000)],
        )
        for n in range(2)
    ]

    answer = ask("s1", [a_holder()], a_pod(), *others)

    assert_rejected(answer, RejectReason.OVER_CAPACITY, "9000 of 8000 MiB")


def test_a_card_full_to_the_last_mib_is_not_too_full() -> None:
    other = a_pod(
        "other",
        assigned={"train": [("GPU-a", 7000)]},
        containers=[a_container("train", mib=7000)],
    )

    assert isinstance(ask("s1", [a_holder()], a_pod(), other), Claim)


def test_a_cards_own_limit_of_containers_is_kept_at_prestart() -> None:
    others = [
        a_pod(
            f"other-{n}",
            assigned={"train": [("GPU-a", 10)]},
            containers=[a_container("train", mib=10)],
        )
        for n in range(DEFAULT_SLOTS)
    ]

    assert isinstance(ask("s1", [a_holder()], a_pod(), *others[1:]), Claim)
    assert_rejected(
        ask("s1", [a_holder()], a_pod(), *others),
        RejectReason.OVER_SLOTS,
        "GPU-a",
        "together have 33 containers of 32",
    )


def test_a_pod_whose_assignment_cannot_be_read_takes_room_on_every_card_by_its_limits() -> None:
    unread = a_pod("unread", containers=[a_container("train", mib=7001)])
    unread = replace(unread, record=replace(unread.record, assignment=None, problem="no JSON"))
    ended = replace(unread, record=replace(unread.record, live=False))

    assert_rejected(
        ask("s1", [a_holder()], a_pod(), unread), RejectReason.OVER_CAPACITY, "unread", "7001 more"
    )
    assert isinstance(ask("s1", [a_holder()], a_pod(), ended), Claim)


def test_ended_pods_and_pods_of_other_nodes_take_no_room() -> None:
    pods = [a_pod("live"), a_pod("ended", phase="Succeeded"), a_pod("away", node="gpu-2")]

    assert held_on(pods, node=NODE) == {"GPU-a": CardAllocation(mib=Mib(1000))}


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
def test_a_yes_is_always_the_one_live_holders_own_assignment_within_capacity(
    node: tuple[list[SlotHolder], list[PodInfo]],
) -> None:
    holders, pods = node

    answer = ask("s1", holders, *pods)

    if isinstance(answer, Claim):
        record = answer.pod.record
        assert record.live
        assert record.node == NODE
        assert record.assignment is not None
        assert answer.slices == record.assignment["train"]
        assert [card.uuid for card in answer.cards] == [part.card for part in answer.slices]
        live = {pod.record.name for pod in pods if pod.record.live}
        assert {
            holder.pod for holder in holders if holder.slot_ids == {"s1"} and holder.pod in live
        } == {record.name}
        held = held_on(pods, node=NODE)
        assert all(held[card.uuid].mib <= card.capacity_mib for card in answer.cards)
    else:
        assert answer.text
