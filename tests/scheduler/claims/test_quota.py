"""No claim is made beyond the quota of its namespace."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fracgpu.device_claims.quota import claimed_mib, quota_problem
from fracgpu.k8s.workloads.quota import ResourceQuota, read_quota
from fracgpu.state.pod_info import decode_pod_info
from kube.informer import Change, ChangeType
from kube.objects import ObjectKey
from scheduler.claims.quota import Quotas
from scheduler.metrics import ClaimOutcome
from tests.scheduler.claims.harness import (
    ClaimsApi,
    ClaimsHarness,
    a_pod,
    an_api,
    answer_lost,
    is_bound,
    unanswered,
)
from tests.support.claims import claim_name, decoded

MEMORY = "requests.fracgpu.io/gpu-mem"


def a_quota(
    mib: object, *, used: str = "0", namespace: str = "default", **spec: Any
) -> ResourceQuota:
    body = {
        "metadata": {"name": "cards", "namespace": namespace},
        "spec": {"hard": {MEMORY: mib}, **spec},
        "status": {"used": {MEMORY: used}},
    }
    return read_quota(msgspec.json.encode(body))


def total_mib(api: ClaimsApi) -> int:
    return sum(claimed_mib(decoded(claim)) for claim in api.claims.values())


async def test_a_pod_beyond_the_quota_gets_no_claim_and_is_told_the_numbers() -> None:
    api = an_api()
    api.quotas = [a_quota("10000")]
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("a"))
    api.put_pod(a_pod("b"))

    async with harness.running():
        await harness.clock.advance(0.9)

    assert set(api.claims) == {claim_name("a")}
    why = (
        f"exceeded quota: cards, requested: {MEMORY}=6000, used: {MEMORY}=6000, "
        f"limited: {MEMORY}=10000"
    )
    assert harness.recorder.events == [("Pod/b", "ExceededQuota", f"no claim is made: {why}")]
    waits = harness.cache.pods["uid-b"].info
    assert harness.controller.status_of(waits) == f"no claim is made: {why}"
    assert harness.outcomes == {ClaimOutcome.LISTED: 1, ClaimOutcome.WITHHELD: 1}
    claims = [decoded(claim) for claim in api.claims.values()]
    assert quota_problem(harness.cache.pods["uid-b"].info, api.quotas, claims) == why
    assert quota_problem(harness.cache.pods["uid-a"].info, api.quotas, claims) == ""


async def test_the_pod_goes_on_when_the_quota_is_raised_or_another_ends() -> None:
    api = an_api()
    api.quotas = [a_quota("6000")]
    harness = ClaimsHarness(api)
    for name in ("a", "b", "c"):
        api.put_pod(a_pod(name))
    async with harness.running():
        await harness.clock.advance(0.1)
        assert len(api.claims) == 1

        api.quotas = [a_quota("12k")]
        harness.controller.quota_changed("default")
        await harness.clock.advance(0.1)
        assert len(api.claims) == 2

        api.schedule()
        ended = next(name for name, pod in api.pods.items() if is_bound(pod))
        api.remove_pod(ended)
        api.remove_claim(claim_name(ended))
        await harness.clock.advance(3.0)

    assert len(api.claims) == 2
    assert set(api.claims) == {claim_name(name) for name in api.pods}


@pytest.mark.parametrize(
    ("quota", "why"),
    [
        (a_quota("much"), "says 'much' of requests.fracgpu.io/gpu-mem, which cannot be read"),
        (a_quota("9000", used="?"), "cannot be read"),
        (a_quota("90000", scopes=["NotTerminating"]), "has scopes"),
        (a_quota("9000", used="4000"), f"used: {MEMORY}=4000"),
    ],
)
def test_a_quota_that_cannot_be_counted_by_is_not_taken_as_free(
    quota: ResourceQuota, why: str
) -> None:
    assert why in quota_problem(decode_pod_info(msgspec.json.encode(a_pod("p"))), [quota], ())


@pytest.mark.parametrize(
    "quotas",
    [[a_quota("1", namespace="other")], [read_quota(b'{"metadata":{"namespace":"default"}}')]],
)
def test_other_quotas_change_nothing(quotas: list[ResourceQuota]) -> None:
    assert quota_problem(decode_pod_info(msgspec.json.encode(a_pod("p"))), quotas, ()) == ""


async def test_nobody_is_evicted_for_a_pod_beyond_the_quota() -> None:
    api = an_api(nodes=1)
    harness = ClaimsHarness(api)
    api.put_pod(a_pod("low", priority=0))
    await harness.settle()
    api.schedule()
    api.quotas = [a_quota("6000")]

    api.put_pod(a_pod("high", priority=1_000))
    await harness.settle()
    await harness.look()

    assert not any("evict" in what for what in api.writes)


_STEPS = st.one_of(
    st.tuples(st.sampled_from([1_000, 2_000, 4_000]), st.integers(0, 2)),
    st.sampled_from(["run", "schedule", "gone", "unanswered", "lost", "another leads"]),
)


@given(st.lists(_STEPS, max_size=25))
async def test_the_quota_is_never_exceeded(steps: list[tuple[int, int] | str]) -> None:
    api = an_api(nodes=2)
    api.quotas = [a_quota("7000")]
    harness = ClaimsHarness(api)
    for at, step in enumerate(steps):
        if isinstance(step, tuple):
            mib, priority = step
            api.put_pod(a_pod(f"p{at}", mib, priority=priority))
        elif step == "run":
            await _run(harness)
        elif step == "another leads":
            harness.end()
            harness = ClaimsHarness(api)
        else:
            _happens(step, api)
        assert total_mib(api) <= 7_000
        assert harness.cache.memory.by_namespace["default"] >= total_mib(api)
    for _ in range(3):
        await _run(harness)
        assert total_mib(api) <= 7_000

    claims = [decoded(claim) for claim in api.claims.values()]
    for pod in harness.cache.pods.values():
        if harness.cache.claim_of(pod) is None:
            assert quota_problem(pod.info, api.quotas, claims)
    _all_end(api)
    assert harness.cache.memory.by_namespace["default"] == 0


def _all_end(api: ClaimsApi) -> None:
    for name in list(api.pods):
        api.remove_pod(name)
    for name in list(api.claims):
        api.remove_claim(name)


def _change(
    quota: ResourceQuota, *, change: ChangeType = ChangeType.MODIFIED
) -> Change[ResourceQuota]:
    key = ObjectKey(quota.namespace, quota.name)
    return Change(type=change, key=key, uid="q", resource_version="", object=quota)


def test_only_what_changes_the_mib_that_are_left_is_told() -> None:
    told: list[str] = []
    quotas = Quotas(told.append)
    of_pods = read_quota(
        b'{"metadata":{"namespace":"a","name":"pods"},"spec":{"hard":{"pods":"4"}}}'
    )
    other = a_quota("1", namespace="b")

    quotas.changed(_change(of_pods))
    assert (told, [*quotas.of("a")]) == ([], [])
    quotas.changed(_change(a_quota("10", namespace="a")))
    quotas.changed(_change(other))
    assert told == ["a", "b"]
    quotas.changed(_change(a_quota("10", namespace="a")))  # as when pods are counted
    assert told == ["a", "b"]
    quotas.changed(_change(a_quota("10", namespace="a", used="4")))
    assert told == ["a", "b", "a"]
    assert [*quotas.of("b")] == [other]
    quotas.changed(_change(a_quota("10", namespace="a"), change=ChangeType.DELETED))
    assert told == ["a", "b", "a", "a"]
    assert [*quotas.of("a")] == []


def _happens(what: str, api: ClaimsApi) -> None:
    match what:
        case "schedule":
            api.schedule()
        case "gone":
            for name in list(api.pods)[:1]:
                api.end_pod(name)
        case _:
            api.faults.append({"unanswered": unanswered, "lost": answer_lost}[what])


async def _run(harness: ClaimsHarness) -> None:
    async with harness.running():
        for _ in range(3):
            await harness.clock.advance(4.0)
