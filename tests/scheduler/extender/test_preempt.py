"""Preempt: which victims are chosen."""

import json
from typing import Any

from fracgpu.k8s.disruption_budget import PodDisruptionBudget
from fracgpu.names import ASSIGNMENT
from fracgpu.state.pod_info import decode_pod_info
from kube.informer import ChangeType
from scheduler.extender.api import PreemptionArgs
from tests.scheduler.harness import Harness
from tests.support.gpu import a_gpu_pod


def bound(
    cluster: Harness, name: str, *, card: int, mib: int, priority: int = 0, **meta: Any
) -> str:
    slices = f'{{"train":[{{"card":"GPU-n-{card}","mib":{mib}}}]}}'
    pod = a_gpu_pod(name, mib=mib, annotations={ASSIGNMENT: slices}, priority=priority)
    pod["spec"]["nodeName"] = "n"
    pod["metadata"] |= meta
    cluster.api.put(pod)
    return cluster.see(name, ChangeType.ADDED).record.uid


def asked(*proposed: str, mib: int = 20_000, priority: int = 10) -> PreemptionArgs:
    pod = decode_pod_info(json.dumps(a_gpu_pod("p", mib=mib, priority=priority)).encode())
    return PreemptionArgs(pod=pod, proposed={"n": frozenset(proposed)})


def test_kube_schedulers_victims_on_two_cards_become_ours_on_one() -> None:
    cluster = Harness(cards=2)
    a1, a2 = (bound(cluster, f"a{n}", card=0, mib=12_000) for n in range(2))
    b1, b2 = (bound(cluster, f"b{n}", card=1, mib=12_000) for n in range(2))

    (victims,) = cluster.preemptor.preempt(asked(a1, b1)).values()

    assert set(victims.uids) in ({a1, a2}, {b1, b2})


def test_pods_of_the_same_or_higher_priority_are_never_taken() -> None:
    cluster = Harness(cards=1)
    uid = bound(cluster, "boss", card=0, mib=12_000, priority=10)

    assert cluster.preemptor.preempt(asked(uid)) == {}


def test_where_a_pod_is_already_going_one_only_has_to_wait() -> None:
    cluster = Harness(cards=1)
    uid = bound(cluster, "going", card=0, mib=20_000, deletionTimestamp="2026-01-01T00:00:00Z")

    assert cluster.preemptor.preempt(asked(uid)) == {}


def test_a_binding_under_way_is_not_taken_back() -> None:
    cluster = Harness(cards=1)
    cluster.create("new", mib=20_000)
    cluster.ledger.assume(
        cluster.see("new").record,
        node="n",
        assignment={"train": ()},
        until=cluster.clock.now(),
    )

    assert cluster.preemptor.preempt(asked("nobody")) == {}


def test_broken_budgets_are_reported() -> None:
    cluster = Harness(cards=1)
    uid = bound(cluster, "guarded", card=0, mib=20_000, labels={"app": "a"})
    cluster.budgets.append(
        PodDisruptionBudget(namespace="default", name="b", allowed=0, labels={"app": "a"})
    )

    (victims,) = cluster.preemptor.preempt(asked(uid)).values()

    assert (victims.uids, victims.violations) == ((uid,), 1)


def test_unknown_nodes_and_pods_without_a_need_are_left_out() -> None:
    cluster = Harness(cards=1)
    args = asked("x")
    plain = decode_pod_info(b'{"metadata":{"name":"p","namespace":"d"},"spec":{"priority":5}}')

    assert (
        cluster.preemptor.preempt(PreemptionArgs(pod=args.pod, proposed={"m": frozenset()})) == {}
    )
    assert cluster.preemptor.preempt(PreemptionArgs(pod=plain, proposed=args.proposed)) == {}
