"""A pod that kube-scheduler has nominated to a node holds its card there, for a limited time."""

from dataclasses import replace

import pytest

from scheduler.cache.nominations import NOMINATION_LIMIT, Nominations
from scheduler.extender.api import FilterResult
from tests.scheduler.harness import Harness, silence
from tests.support.gpu import some_cards


def cluster_of_one_card(*pods: str) -> Harness:
    """Return a cluster in which *pods* wait, each of which nearly fills the card."""
    cluster = Harness("n", cards=1)
    for pod in pods:
        cluster.create(pod, mib=20_000)
    return cluster


def nominate(cluster: Harness, name: str = "p", *, node: str = "n") -> None:
    """Write a pod's nomination as kube-scheduler does, and let the informer see it."""
    pod = cluster.copy_of(name)
    pod.setdefault("status", {})["nominatedNodeName"] = node
    cluster.api.put(pod)
    cluster.see(name)


def ask(cluster: Harness, name: str = "p") -> FilterResult:
    """Filter a pod as the extender's server does."""
    args = cluster.asking(name, "n")
    cluster.nominations.count()
    result = cluster.extender.filter(args)
    cluster.cycles.filtered(args.pod, result)
    return result


def fits(cluster: Harness, name: str) -> bool:
    return ask(cluster, name).passed == ("n",)


def test_a_nominated_pod_holds_its_card_until_its_binding() -> None:
    cluster = cluster_of_one_card("p", "q")
    assert fits(cluster, "p")

    nominate(cluster)

    assert not fits(cluster, "q")
    assert fits(cluster, "p"), "what is held for the pod itself is not in its way"


async def test_its_binding_takes_the_card_that_was_held() -> None:
    cluster = cluster_of_one_card("p")
    assert fits(cluster, "p")
    nominate(cluster)
    cluster.nominations.count()

    assert await cluster.bind() == ""

    cluster.see("p")
    assert cluster.held() == 20_000
    assert not cluster.ledger.assumed


async def test_a_nominated_pod_is_on_the_lease_only_once_its_binding_is_about_to_be_sent() -> None:
    cluster = cluster_of_one_card("p")
    assert fits(cluster, "p")
    nominate(cluster)
    cluster.nominations.count()
    uid = cluster.args("p").uid

    before = list(cluster.assumptions.under_way())
    cluster.api.bind_raises = silence()
    assert "did not say" in await cluster.bind()

    assert uid in cluster.ledger.assumed
    assert before == []
    assert cluster.recorded == [{uid}]
    assert list(cluster.assumptions.under_way()) == [uid]


@pytest.mark.parametrize("what", ["cleared", "deleted"])
def test_the_card_is_free_once_the_nomination_is_gone(what: str) -> None:
    cluster = cluster_of_one_card("p", "q")
    assert fits(cluster, "p")
    nominate(cluster)
    assert not fits(cluster, "q")

    if what == "cleared":
        nominate(cluster, node="")
    else:
        cluster.delete("p")

    assert fits(cluster, "q")


def test_a_nomination_for_which_preemption_makes_room_holds_nothing() -> None:
    cluster = cluster_of_one_card("q")
    assert fits(cluster, "q")
    nominate(cluster, "q")
    cluster.create("p", mib=20_000)
    cluster.create("r", mib=20_000)
    assert not fits(cluster, "p")

    nominate(cluster, "p")  # kube-scheduler evicts for it
    cluster.delete("q")

    assert fits(cluster, "r")


def test_of_those_that_did_not_fit_only_the_last_are_remembered() -> None:
    """A pod that is deleted before the answer about it would be remembered for ever."""
    cluster = Harness("n", cards=1)
    nominations = Nominations(cluster.cards, cluster.clock, most_refused=1)
    first, last = pods = [cluster.create(name, mib=1000) for name in ("first", "last")]
    for pod in pods:
        nominations.filtered(pod, fits=False)
    for pod in pods:
        nominations.see(replace(pod, nominated_node="n"))

    nominations.count()

    assert cluster.ledger.assumed.keys() == {first.record.uid}, last


async def test_a_nomination_lapses_and_is_not_renewed_by_writing_it_again() -> None:
    cluster = cluster_of_one_card("p", "q")
    nominate(cluster)  # nobody has asked about it
    assert not fits(cluster, "q")

    await cluster.clock.advance(NOMINATION_LIMIT.total_seconds())
    nominate(cluster, node="")
    nominate(cluster)

    assert fits(cluster, "q")


async def test_it_counts_anew_once_kube_scheduler_asks_about_the_pod_again() -> None:
    cluster = cluster_of_one_card("p", "q")
    nominate(cluster)
    assert not fits(cluster, "q")
    await cluster.clock.advance(NOMINATION_LIMIT.total_seconds() - 1)

    assert fits(cluster, "p")

    await cluster.clock.advance(2)
    assert not fits(cluster, "q")


def test_a_gated_pod_holds_nothing() -> None:
    cluster = cluster_of_one_card()
    cluster.create("p", mib=20_000, schedulingGates=[{"name": "example.com/wait"}])
    cluster.create("q", mib=20_000)

    nominate(cluster)

    assert fits(cluster, "q")


def test_a_nomination_seen_before_the_node_counts_once_the_node_is_known() -> None:
    cluster = Harness("other", cards=1)
    cluster.create("p", mib=20_000)
    cluster.create("q", mib=20_000)
    nominate(cluster)

    cluster.add_node("n", some_cards("n", count=1))

    assert not fits(cluster, "q")
