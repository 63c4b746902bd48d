"""What claims hold is counted, in whatever order things are observed."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.device_claims.claims import claim_of
from fracgpu.state.pod_info import decode_pod_info
from scheduler.cache.comparer import CacheComparer
from tests.scheduler.claims.harness import ClaimsApi, ClaimsHarness, a_pod, an_api
from tests.support.claims import allocated, claim_name, stored
from tests.support.gpu import Json, some_cards


def a_claim(pod: str, mib: int = 6_000, *, node: str = "n1") -> Json:
    """Return our claim for a pod, allocated."""
    body = a_pod(pod, mib)
    body["metadata"]["uid"] = f"uid-{pod}"
    info = decode_pod_info(msgspec.json.encode(body))
    assert info.need is not None
    card = CardUuid(f"GPU-{node}-0")
    claim = stored(claim_of(info.record, claim_name(pod), info.need, {"train": [card]}))
    return allocated(claim, {"train": [card]}, node=node)


def bound(pod: str, node: str = "n1") -> Json:
    body = a_pod(pod)
    body["metadata"]["uid"] = f"uid-{pod}"
    body["spec"]["nodeName"] = node
    return body


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_pod_holds_what_its_claim_says_in_whatever_order_they_come(
    order: tuple[int, ...],
) -> None:
    harness = ClaimsHarness(ClaimsApi())
    steps = [
        lambda: harness.see_node("n1", some_cards("n1", count=1, mib=8_000)),
        lambda: harness.see_pod(bound("p")),
        lambda: harness.see_claim(a_claim("p")),
    ]

    for at in order:
        steps[at]()

    assert harness.free_mib("n1") == [2_000]
    pod = harness.core.bound_pods.get("uid-p")
    assert pod is not None
    assert {card: held.mib for card, held in pod.allocation.by_card.items()} == {"GPU-n1-0": 6_000}


def test_a_pods_own_annotation_holds_nothing() -> None:
    harness = ClaimsHarness(an_api(nodes=1))
    body = bound("p")
    body["metadata"]["annotations"][names.ASSIGNMENT] = '{"train":[{"card":"GPU-n1-0","mib":80}]}'

    harness.see_pod(body)

    assert harness.free_mib("n1") == [8_000]


def test_a_claim_that_users_made_is_counted_by_what_it_consumes() -> None:
    harness = ClaimsHarness(an_api(nodes=1))
    mine = a_claim("p")
    mine["metadata"] = {"name": "mine", "namespace": "team", "uid": "mine"}

    harness.see_claim(mine)
    assert harness.free_mib("n1") == [2_000]
    harness.see_claim(mine, gone=True)

    assert harness.free_mib("n1") == [8_000]


def test_a_node_whose_cards_change_counts_what_is_on_them() -> None:
    harness = ClaimsHarness(an_api(nodes=1))
    harness.see_claim(a_claim("p"))

    harness.see_node("n1", some_cards("n1", count=2, mib=16_000))
    assert harness.free_mib("n1") == [10_000, 16_000]
    harness.see_node("n1", (), gone=True)
    harness.see_node("n1", some_cards("n1", count=1, mib=8_000))

    assert harness.free_mib("n1") == [2_000]


def test_a_card_that_was_put_into_another_node_is_known_there() -> None:
    """A node that was installed anew under another name comes before the old one goes."""
    harness = ClaimsHarness(an_api(nodes=1))
    harness.see_node("renamed", some_cards("n1", count=1, mib=8_000))
    harness.see_node("n1", (), gone=True)
    harness.see_pod(bound("p", ""))
    waiting = a_claim("p", node="n1")
    del waiting["status"]

    harness.see_claim(waiting)

    assert harness.free_mib("renamed") == [2_000]


def test_a_second_pod_that_names_a_claim_takes_nothing_with_it_when_it_goes() -> None:
    harness = ClaimsHarness(an_api(nodes=1))
    thief = a_pod("thief")
    thief["metadata"]["uid"] = "uid-thief"
    thief["spec"]["resourceClaims"] = bound("p", "")["spec"]["resourceClaims"]
    harness.see_pod(bound("p", ""))
    harness.cache.memory.promise(harness.cache.pods["uid-p"].info.claim_key, 6_000)
    harness.see_pod(thief)

    harness.see_pod(thief, gone=True)

    assert harness.cache.memory.by_namespace["default"] == 6_000
    waiting = a_claim("p")
    del waiting["status"]
    harness.see_claim(waiting)
    assert harness.free_mib("n1") == [2_000]


_STEPS = st.tuples(
    st.sampled_from(["pod", "bound", "claim", "unallocated"]),
    st.sampled_from(["a", "b", "c"]),
    st.booleans(),
)


@given(st.lists(_STEPS, max_size=30))
async def test_the_ledger_is_what_a_rebuild_from_the_claims_would_be(
    steps: list[tuple[str, str, bool]],
) -> None:
    harness = ClaimsHarness(an_api(nodes=1))
    claims: dict[str, Json] = {}
    seen: set[str] = set()
    for what, name, gone in steps:
        if what in ("pod", "bound"):
            body = bound(name) if what == "bound" else bound(name, "")
            if not gone or name in seen:
                harness.see_pod(body, gone=gone)
                (seen.discard if gone else seen.add)(name)
            continue
        claim = a_claim(name)
        if what == "unallocated":
            del claim["status"]
        if gone and name not in claims:
            continue
        harness.see_claim(claim, gone=gone)
        if gone:
            del claims[name]
        else:
            claims[name] = claim
    held = sum(6_000 for claim in claims.values() if "status" in claim)
    held += sum(one.allocation.by_card["GPU-n1-0"].mib for one in _assumed(harness))

    assert harness.free_mib("n1") == [8_000 - held]
    comparer = CacheComparer(
        harness.core.ledger,
        harness.core.matrix,
        nodes=harness.core.ledger.nodes.values,
        pods=lambda: harness.cache.holders,
        clock=harness.clock,
        on_drift=lambda _: None,
        every_s=1.0,
    )
    assert await comparer.once() == ()


def _assumed(harness: ClaimsHarness) -> list[Any]:
    """Return what is counted although it is not allocated: at most what a claim lists."""
    assumed = dict(harness.core.ledger.assumed)
    for uid in assumed:
        claim = harness.cache.claim_of(harness.cache.pods[uid])
        assert claim is None or not claim.allocated
    return list(assumed.values())


def test_a_claims_label_changes_nothing() -> None:
    harness = ClaimsHarness(an_api(nodes=1))
    harness.see_pod(bound("p"))
    harness.see_claim(a_claim("p"))
    unlabelled = a_claim("p")
    del unlabelled["metadata"]["labels"]

    harness.see_claim(unlabelled)
    assert harness.free_mib("n1") == [2_000]

    harness.see_claim(unlabelled, gone=True)
    harness.see_pod(bound("p"), gone=True)
    assert (harness.free_mib("n1"), list(harness.cache.holders)) == ([8_000], [])


def test_a_claim_whose_owner_changes_is_counted_once() -> None:
    harness = ClaimsHarness(an_api(nodes=1))
    harness.see_pod(bound("p"))
    harness.see_claim(a_claim("p"))
    orphan = a_claim("p")
    del orphan["metadata"]["ownerReferences"]

    harness.see_claim(orphan)
    assert harness.free_mib("n1") == [2_000]
    harness.see_claim(orphan, gone=True)

    assert harness.free_mib("n1") == [8_000]


@pytest.mark.parametrize("assigned", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_claim_of_another_namespace_takes_nothing_from_a_pod(
    order: tuple[int, ...], *, assigned: bool
) -> None:
    """Neither what its own claim was allocated, nor what the extender assigned to it."""
    harness = ClaimsHarness(an_api(nodes=1), assignments=assigned)
    forged = a_claim("p", 1_000)
    forged["metadata"] |= {"namespace": "evil", "uid": "forged"}
    pod = bound("p")
    if assigned:
        slices = '{"train":[{"card":"GPU-n1-0","mib":6000}]}'
        pod["metadata"]["annotations"][names.ASSIGNMENT] = slices
        del pod["spec"]["resourceClaims"]
    anew = some_cards("n1", count=2, mib=8_000)
    steps = [
        lambda: harness.see_pod(pod),
        lambda: harness.see_node("n1", anew) if assigned else harness.see_claim(a_claim("p")),
        lambda: harness.see_claim(forged),
    ]

    for at in order:
        steps[at]()
    assert harness.free_mib("n1")[0] == 1_000
    known = harness.core.bound_pods.get("uid-p")
    assert known is not None
    assert {card: held.mib for card, held in known.allocation.by_card.items()} == {
        "GPU-n1-0": 6_000
    }

    harness.see_claim({**forged, "status": {}})
    assert harness.free_mib("n1")[0] == 2_000


def test_a_second_claim_with_the_same_owner_is_counted_beside_the_first() -> None:
    harness = ClaimsHarness(an_api(nodes=1))
    harness.see_claim(a_claim("p"))
    of_a_template = a_claim("p", 1_000)
    of_a_template["metadata"] |= {"name": "p-gpu-x7k2p", "uid": "of-a-template"}

    harness.see_claim(of_a_template)

    assert harness.free_mib("n1") == [1_000]
