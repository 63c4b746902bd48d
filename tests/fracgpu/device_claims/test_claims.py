import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from fracgpu.cards.card import CardUuid
from fracgpu.device_claims.claim import assignment_of, decode_claim, held_of_cards
from fracgpu.device_claims.claims import borrow_in, claim_of, shortlists
from fracgpu.device_claims.devices import cards_by_device
from fracgpu.device_claims.quota import claimed_mib
from fracgpu.errors import RequestError, WireError
from fracgpu.k8s.container import ContainerKind
from fracgpu.placement.outcome import Placement
from fracgpu.placement.placement import place
from fracgpu.request.need import PodNeed, Strategy
from fracgpu.state.allocation import WHOLE_CARD, CardAllocation, Slice, allocations_by_card
from fracgpu.state.snapshot import NodeInfo
from fracgpu.units import Mib
from tests.support.claims import allocated, decoded, stored
from tests.support.core import (
    a_need,
    a_pod_need,
    a_record,
    on,
    small_needs,
    small_nodes,
)

POD = a_record("pod-uid")
NAME = "fracgpu-0123456789"


def cards(*uuids: str) -> tuple[CardUuid, ...]:
    return tuple(map(CardUuid, uuids))


@given(small_nodes(), small_needs())
def test_what_is_placed_claimed_and_allocated_is_the_same(node: NodeInfo, asked: PodNeed) -> None:
    apps = (structs.replace(one, kind=ContainerKind.APP) for one in asked.containers)
    need = structs.replace(asked, containers=tuple(apps))
    assume(len({bool(one.card.limits_mib) for one in node.cards.values()}) == 1)
    placement = place(node, need, strategy=Strategy.PACK)
    if not isinstance(placement, Placement):
        return
    choice = placement.assignment
    borrow = borrow_in([choice])
    body = stored(claim_of(POD, NAME, need, shortlists([choice]), borrow=borrow))

    claim = decoded(body)
    assert claim.first_choice == choice
    assert claim.borrowing == borrow.keys()
    by_container = {name: [part.card for part in parts] for name, parts in choice.items()}
    held = decoded(allocated(body, by_container, node="n", pod=POD))

    known = cards_by_device(node.cards)
    assert assignment_of(held, known) == choice
    assert held_of_cards(held, known) == allocations_by_card(choice, ())
    assert (held.node, held.holder, held.managed) == ("n", "pod-uid", True)


def test_a_claim_has_a_request_for_each_container() -> None:
    need = a_pod_need(a_need(1000, name="train", cards=2, cores=30), a_need(500, name="log"))
    lists = {"train": cards("GPU-a", "GPU-b"), "log": cards("GPU-a")}

    body = claim_of(POD, NAME, need, lists)

    train, log = body["spec"]["devices"]["requests"]
    assert (train["name"], log["name"]) == ("train", "log")
    assert train["exactly"] == {
        "deviceClassName": "fracgpu-placed",
        "allocationMode": "ExactCount",
        "count": 2,
        "capacity": {"requests": {"memory": "1000Mi", "cores": "30", "slots": "1"}},
        "selectors": [
            {
                "cel": {
                    "expression": 'device.driver == "gpu.fracgpu.io" && '
                    '"uuid" in device.attributes["gpu.fracgpu.io"] && '
                    'device.attributes["gpu.fracgpu.io"].uuid in ["GPU-a","GPU-b"]'
                }
            }
        ],
    }
    assert body["metadata"] == {
        "name": NAME,
        "namespace": "default",
        "labels": {"app.kubernetes.io/managed-by": "fracgpu"},
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": "pod-pod-uid",
                "uid": "pod-uid",
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }


def test_shortlists_have_the_cards_of_the_best_node_first() -> None:
    two = {"main": (Slice(card=CardUuid("GPU-c"), mib=Mib(5)),)}

    assert shortlists([on("GPU-b", 5), on("GPU-a", 5), two]) == {
        "main": ["GPU-b", "GPU-a", "GPU-c"]
    }


def test_an_open_claim_has_no_choice_and_the_class_of_users() -> None:
    claim = decoded(stored(claim_of(POD, NAME, a_pod_need(a_need(1000)), None)))

    assert claim.open
    assert claim.first_choice == {}
    assert [request.device_class for request in claim.requests] == ["fracgpu"]


@pytest.mark.parametrize("many", [1, 230, 900, 6_900])
def test_an_open_claim_leaves_out_as_many_cards_as_are_kept_for_others(many: int) -> None:
    kept = {CardUuid(f"GPU-00000000-0000-0000-0000-{number:012}") for number in range(many)}
    need = a_pod_need(a_need(1_000))

    claim = decoded(stored(claim_of(POD, NAME, need, None, kept=kept)))

    assert claim.excluded == kept
    assert claim.open


def test_an_open_claim_that_cannot_leave_out_all_of_them_is_not_made() -> None:
    kept = {CardUuid(f"GPU-00000000-0000-0000-0000-{number:012}") for number in range(9_000)}
    need = a_pod_need(a_need(1_000))

    with pytest.raises(RequestError, match="open without 9000 cards that are kept for other pods"):
        claim_of(POD, NAME, need, None, kept=kept)
    cards = {"main": [CardUuid("GPU-a")]}
    assert claim_of(
        a_record("p"), "fracgpu-1", a_pod_need(a_need(1, name="main")), cards, kept=kept
    )


def test_a_claim_of_another_form_is_decoded() -> None:
    body = {
        "metadata": {"name": "mine", "namespace": "team", "uid": "u"},
        "spec": {
            "devices": {
                "requests": [
                    {"name": "one", "firstAvailable": [{"name": "a", "deviceClassName": "fracgpu"}]}
                ]
            }
        },
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {
                            "request": "one/a",
                            "driver": "gpu.fracgpu.io",
                            "pool": "n",
                            "device": "gpu-a",
                            "consumedCapacity": {"memory": "1G", "cores": "5"},
                        },
                        {"request": "one/a", "driver": "other", "pool": "n", "device": "x"},
                        {"request": "b", "driver": "gpu.fracgpu.io", "pool": "n", "device": "d"},
                    ]
                }
            }
        },
    }

    claim = decoded(body)

    assert (claim.holder, claim.managed, claim.owner) == ("u", False, None)
    assert [(one.request, one.device) for one in claim.devices] == [("one", "gpu-a"), ("b", "d")]
    known = cards_by_device(cards("GPU-a"))
    assert held_of_cards(claim, known) == {
        "GPU-a": CardAllocation(mib=Mib(954), cores=5, slots=1),
        "d": WHOLE_CARD,
    }
    with pytest.raises(WireError, match="device d, which is no card of n"):
        assignment_of(claim, known)


def test_all_that_a_users_own_claim_may_use_counts_as_guaranteed() -> None:
    need = a_pod_need(a_need(1000))
    body = stored(claim_of(POD, "mine", need, {"main": cards("GPU-a")}, borrow={"main": Mib(500)}))
    claim = decoded(allocated(body, {"main": ["GPU-a"]}, node="n"))

    assert held_of_cards(claim, {})[CardUuid("gpu-a")] == CardAllocation(mib=Mib(1500))
    assert claimed_mib(claim) == 1500


def test_one_card_twice_for_a_container_cannot_be_an_assignment() -> None:
    need = a_pod_need(a_need(1000, cards=2))
    body = stored(claim_of(POD, NAME, need, {"main": cards("GPU-a")}))
    claim = decoded(allocated(body, {"main": ["GPU-a", "GPU-a"]}, node="n"))

    with pytest.raises(WireError, match="twice for 'main'"):
        assignment_of(claim, cards_by_device(cards("GPU-a")))
    assert held_of_cards(claim, {})[CardUuid("gpu-a")] == CardAllocation(mib=Mib(2000), slots=2)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner)
                    | st.dictionaries(st.sampled_from(["metadata", "spec", "status", "devices"]),
                                      inner)))  # fmt: skip
def test_anything_else_is_refused(value: object) -> None:
    body = msgspec.json.encode(value)
    assume(not isinstance(value, dict))
    with pytest.raises(WireError, match="ResourceClaim"):
        decode_claim(body)
