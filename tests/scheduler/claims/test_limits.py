"""How much the containers of claims may use: more than they are guaranteed, where that is free."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fracgpu.device_claims.claim import DeviceClaim
from tests.scheduler.claims.harness import (
    ClaimsApi,
    ClaimsHarness,
    a_pod,
    an_api,
    claim_of,
    is_bound,
    owned,
)
from tests.support.claims import claim_name, decoded
from tests.support.examples import at_least
from tests.support.gpu import some_cards
from tests.support.moves import move_of


def requested(api: ClaimsApi, pod: str) -> dict[str, str]:
    (request,) = api.claims[claim_name(pod)]["spec"]["devices"]["requests"]
    amounts = request["exactly"]["capacity"]["requests"]
    return {name: amounts[name] for name in ("memory", "borrowed") if name in amounts}


def listed(api: ClaimsApi, pod: str) -> list[str]:
    return [card for request in claim_of(api, pod).requests for card in request.cards]


async def test_a_claim_requests_what_may_be_used_of_cards_that_can_be_limited() -> None:
    api = an_api(nodes=4, limited={"n1", "n3"})
    harness = ClaimsHarness(api)

    api.put_pod(a_pod("p", 4_000, limit_mib=6_000))
    await harness.settle()

    assert listed(api, "p") == ["GPU-n1-0", "GPU-n3-0"]
    assert requested(api, "p") == {"memory": "6000Mi", "borrowed": "2000Mi"}
    assert harness.core.ledger.assumed["uid-p"].allocation.borrows


async def test_where_the_best_card_cannot_be_limited_a_claim_requests_what_is_guaranteed() -> None:
    api = an_api(nodes=4, limited={"n2"})
    harness = ClaimsHarness(api)

    api.put_pod(a_pod("p", 4_000, limit_mib=6_000))
    await harness.settle()

    assert listed(api, "p") == ["GPU-n1-0", "GPU-n3-0", "GPU-n4-0"]
    assert requested(api, "p") == {"memory": "4000Mi"}


async def fill(api: ClaimsApi, harness: ClaimsHarness, nodes: Sequence[str]) -> None:
    for node in nodes:
        api.put_pod(a_pod(f"on-{node}", 6_000, nodeSelector={"kubernetes.io/hostname": node}))
    await harness.settle()
    api.schedule()
    await harness.settle()


async def test_a_pod_waits_for_its_limit_and_takes_less_where_only_that_gets_free() -> None:
    api = an_api(nodes=2, limited={"n1"})
    harness = ClaimsHarness(api)
    await fill(api, harness, ("n1", "n2"))

    api.put_pod(a_pod("p", 4_000, limit_mib=6_000))
    await harness.settle()
    assert claim_of(api, "p").open
    assert requested(api, "p") == {"memory": "6000Mi", "borrowed": "2000Mi"}

    api.end_pod("on-n2")
    api.schedule()
    assert not is_bound(api.pods["p"])
    await harness.look()
    assert requested(api, "p") == {"memory": "4000Mi"}
    api.schedule()
    assert api.pods["p"]["spec"]["nodeName"] == "n2"


async def test_a_pod_that_waits_gets_a_limit_once_a_node_can_limit_it() -> None:
    api = an_api(nodes=1)
    harness = ClaimsHarness(api)
    await fill(api, harness, ("n1",))
    api.put_pod(a_pod("p", 4_000, limit_mib=6_000))
    await harness.settle()
    assert requested(api, "p") == {"memory": "4000Mi"}

    api.cards["n2"] = some_cards("n2", count=1, mib=8_000, limited=True)
    harness.see_node("n2", api.cards["n2"])
    await harness.look()

    assert listed(api, "p") == ["GPU-n2-0"]
    assert requested(api, "p") == {"memory": "6000Mi", "borrowed": "2000Mi"}


_SIZES = st.sampled_from([(1_000, 0), (3_000, 0), (2_000, 5_000), (4_000, 8_000), (1_000, 3_000)])
_STEPS = st.sampled_from(
    ["create", "create", "schedule", "schedule", "look", "end", "lead", "move"]
)


@settings(max_examples=at_least(25), deadline=None)
@given(
    st.sets(st.sampled_from(["n1", "n2", "n3"])),
    st.lists(st.tuples(_STEPS, _SIZES), min_size=5, max_size=40),
    st.randoms(use_true_random=False),
)
async def test_limits_together_never_exceed_a_card_in_any_order(
    limited: Collection[str], steps: Sequence[tuple[str, tuple[int, int]]], random: Any
) -> None:
    api = an_api(nodes=3, limited=limited)
    leaders = [ClaimsHarness(api), ClaimsHarness(api)]  # one for too long
    for number, (step, size) in enumerate(steps):
        if step == "create":
            api.put_pod(a_pod(f"p{number}", size[0], limit_mib=size[1]))
        elif step == "schedule":
            api.schedule(lowest_first=random.random() < 0.5)
        elif step == "end" and api.pods:
            api.end_pod(random.choice(sorted(api.pods)))
        elif step == "lead":
            leaders[random.randrange(2)].end()
            leaders = [*api.watchers, ClaimsHarness(api)]
        elif step == "move":
            begin_move(api, leaders, random.choice(sorted(api.cards)), f"p{number}", size)
        await random.choice(leaders).settle()
        if step == "look":
            await random.choice(leaders).look()
        check(api, limited)
    api.schedule()
    check(api, limited)


def begin_move(
    api: ClaimsApi,
    leaders: Sequence[ClaimsHarness],
    node: str,
    replacement: str,
    size: tuple[int, int],
) -> None:
    """Reserve a card for a pod that is created at once."""
    mib, limit_mib = size
    (card,) = api.cards[node]
    move = move_of(
        replacement,
        owner_uid=replacement,
        mib=mib,
        limit_mib=limit_mib if card.limits_mib else 0,
        target=(node, card.uuid),
        reserved_until=leaders[0].clock.now() + timedelta(hours=1),
    )
    for leader in leaders:
        leader.see_move(move)
    pod = a_pod(replacement, mib, limit_mib=limit_mib)
    api.put_pod(owned(pod, replacement))


def check(api: ClaimsApi, limited: Collection[str]) -> None:
    used = Counter[str]()
    for claim in map(decoded, api.claims.values()):
        for one in claim.devices:
            used[one.device] += one.amounts.limit_mib
            wanted = api.pods[_pod_of(claim)]["metadata"]["annotations"]
            limit = wanted.get("fracgpu.io/memory-limit", wanted["fracgpu.io/memory"])
            has = limit if one.node in limited else wanted["fracgpu.io/memory"]
            assert f"{one.amounts.limit_mib}Mi" == has
            assert f"{one.amounts.mib}Mi" == wanted["fracgpu.io/memory"]
    assert all(mib <= 8_000 for mib in used.values()), used


def _pod_of(claim: DeviceClaim) -> str:
    assert claim.owner is not None
    return claim.owner.name
