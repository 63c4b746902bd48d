"""Readers of pods find in them what their claims hold."""

from collections.abc import Mapping, Set
from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.cards.card import CardUuid, NodeCards
from fracgpu.device_claims.claim import DeviceClaim
from fracgpu.device_claims.devices import cards_by_device
from fracgpu.device_claims.holders import ClaimHolders, describe_claim, with_claims
from fracgpu.k8s.container import ContainerKind, ContainerSpec
from fracgpu.state.allocation import CardAllocation, PodRecord
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.state.snapshot import allocation_of
from fracgpu.units import Mib
from tests.support.claims import a_claiming_pod, an_allocated_claim, claim_name, decoded
from tests.support.core import a_card, a_need, a_pod_need, a_record, on
from tests.support.gpu import Json

NODES = (NodeCards(node="n", cards=(a_card("GPU-a"), a_card("GPU-b", index=1))),)


def a_pod(name: str = "p") -> PodInfo:
    body = a_claiming_pod(name, claim=claim_name(name))
    body["metadata"]["uid"] = f"pod-{name}"
    body["spec"]["nodeName"] = "n"
    return decode_pod_info(msgspec.json.encode(body))


def a_claim(pod: str = "p", *, name: str = "", mib: int = 1_000) -> Json:
    record, need = a_record(f"pod-{pod}"), a_pod_need(a_need(mib, name="train"))
    choice = on("GPU-a", mib, container="train")
    return an_allocated_claim(record, need, choice, node="n", name=name or claim_name(pod))


def test_a_pod_holds_what_its_claim_was_allocated() -> None:
    mine, other = a_pod(), a_pod("other")

    found, untouched = with_claims([mine, other], [decoded(a_claim())], NODES)

    assert found.record.assignment == on("GPU-a", 1_000, container="train")
    assert allocation_of(found.record).by_card == {"GPU-a": CardAllocation(mib=Mib(1_000), slots=1)}
    assert untouched is other


def test_a_claim_that_users_made_is_held_by_the_pod_that_uses_it() -> None:
    theirs = a_claim(name="mine")

    (found,) = with_claims([a_pod()], [decoded(a_claim()), decoded(theirs)], NODES)

    assert found.record.assignment is not None
    assert set(found.record.assignment) == {"train", "mine/train"}
    assert allocation_of(found.record).by_card["GPU-a"].mib == 2_000  # type: ignore[index]


def test_what_a_binding_assigned_counts_beside_the_claim() -> None:
    pod = a_pod()
    bound = replace(pod.record, assignment=on("GPU-a", 500, container="train"), move="m")

    (found,) = with_claims([replace(pod, record=bound)], [decoded(a_claim())], NODES)

    assert allocation_of(found.record).by_card["GPU-a"].mib == 1_500  # type: ignore[index]
    assert found.record.move == "m"


def test_a_card_that_is_not_known_is_a_problem_and_counts_as_the_most() -> None:
    (found,) = with_claims([a_pod()], [decoded(a_claim())], ())

    assert "no card of n" in found.record.problem
    unplaced = allocation_of(found.record).unplaced
    assert unplaced is not None
    assert unplaced.mib == 1_000


def test_all_requests_of_a_claim_count_at_once() -> None:
    containers = (
        ContainerSpec(name="warm-up", kind=ContainerKind.INIT),
        ContainerSpec(name="train"),
    )
    both = {**on("GPU-a", 500, container="warm-up"), **on("GPU-a", 700, container="train")}
    record = PodRecord(
        uid="u", namespace="d", name="p", node="n", containers=containers, assignment=both
    )

    assert {card: held.mib for card, held in allocation_of(record).by_card.items()} == {
        "GPU-a": 700
    }
    by_claim = PodRecord(
        uid="u",
        namespace="d",
        name="p",
        node="n",
        containers=containers,
        assignment=both,
        by_claim=True,
    )
    assert {card: held.mib for card, held in allocation_of(by_claim).by_card.items()} == {
        "GPU-a": 1_200
    }


def test_a_claim_of_another_namespace_is_not_the_pods() -> None:
    forged = a_claim()
    forged["metadata"]["namespace"] = "evil"

    (found,) = with_claims([a_pod()], [decoded(forged)], NODES)

    assert found.record.assignment is None


def test_a_claim_that_somebodys_finalizer_keeps_is_said_to_hold_up_the_pod() -> None:
    body = a_claim()
    del body["status"]
    body["metadata"]["deletionTimestamp"] = "2026-01-05T12:00:00Z"

    why = describe_claim(a_pod(), decoded(body))

    assert why.endswith("is being deleted; it is made anew once its finalizers are gone")


def cards_of(node: str) -> Mapping[str, CardUuid]:
    return cards_by_device(card.uuid for here in NODES if here.node == node for card in here.cards)


def test_two_claims_of_a_pod_that_is_gone_are_both_counted_on_their_card() -> None:
    holders = ClaimHolders(lambda _: None)
    for name in (claim_name("p"), claim_name("forged")):
        claim = decoded(a_claim(name=name))
        assert holders.observe(claim) >= {"pod-p"}

    held = holders.allocation("pod-p", cards_of)

    assert (held.node, held.by_card["GPU-a"].mib, held.by_card["GPU-a"].slots) == ("n", 2_000, 2)  # type: ignore[index]


_CLAIMS = st.tuples(
    st.integers(0, 3),  # which claim
    st.sampled_from(["p", "q"]),  # the pod that controls it
    st.sampled_from(["default", "evil"]),
    st.sampled_from(["n", "other"]),
    st.booleans(),  # it is gone
)


@given(st.lists(_CLAIMS | st.sampled_from(["p", "q"]), max_size=20))
def test_each_claim_counts_once_whatever_it_says_and_whoever_is_observed_when(
    steps: list[tuple[int, str, str, str, bool] | str],
) -> None:
    """A step is a claim, or a pod that comes or goes; told of each, a reader has it all right."""
    namespaces: dict[str, str] = {}
    holders = ClaimHolders(namespaces.get)
    claims: dict[str, DeviceClaim] = {}
    read: dict[str, tuple[str, ...]] = {}
    for step in steps:
        if isinstance(step, str):
            if namespaces.pop(f"pod-{step}", None) is None:
                namespaces[f"pod-{step}"] = "default"
            touched: Set[str] = holders.touched(f"pod-{step}")
        else:
            number, pod, namespace, node, gone = step
            body = a_claim(pod, name=claim_name(str(number)))
            body["metadata"] |= {"namespace": namespace, "uid": f"{namespace}-{number}"}
            for result in body["status"]["allocation"]["devices"]["results"]:
                result["pool"] = node
            claim = decoded(body)
            claims.pop(claim.key, None)
            if not gone:
                claims[claim.key] = claim
            touched = holders.observe(claim, gone=gone)
        for uid in touched:
            read[uid] = tuple(sorted(one.key for one in holders.of(uid)))

    assert sorted(key for keys in read.values() for key in keys) == sorted(claims)
    counted = dict(holders.counted())
    assert {uid: keys for uid, keys in read.items() if keys} == {
        uid: tuple(sorted(one.key for one in some)) for uid, some in counted.items()
    }
    for uid, some in counted.items():
        assert len({one.node for one in some}) == 1
        assert {one.namespace for one in some} <= {
            namespaces.get(uid, one.namespace) for one in some
        }
        assert all(uid in holders.on_node(one.node) for one in some)
