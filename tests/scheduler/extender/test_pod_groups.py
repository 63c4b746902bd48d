"""The pods of a PodGroup are counted while kube-scheduler tries them one after the other."""

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.extender.api import FilterResult
from tests.scheduler.harness import Harness
from tests.support.examples import at_least

CARD_MIB = 24_000


class Groups:
    """A cluster of one node, asked as kube-scheduler does."""

    def __init__(self, *, cards: int) -> None:
        self.cluster = Harness(cards=cards)

    def create(self, *pods: str) -> None:
        """Create pods of the group after which they are named, as in ``a-1``; others have none."""
        for pod in pods:
            group, _, number = pod.rpartition("-")
            spec: dict[str, Any] = {"schedulingGroup": {"podGroupName": group}} if number else {}
            self.cluster.create(pod, mib=CARD_MIB, **(spec if group else {}))

    def ask(self, pod: str) -> bool:
        """Ask filter as the server does; return whether the pod was given a node."""
        args = self.cluster.asking(pod)
        groups = self.cluster.gangs.pod_groups
        if groups.trying or args.pod.pod_group:
            groups.begin(args.pod)
        result: FilterResult = self.cluster.extender.filter(args)
        if args.pod.pod_group:
            result = groups.answer(args, result)
        return bool(result.passed)

    def ask_all(self, *pods: str) -> list[bool]:
        return [self.ask(pod) for pod in pods]

    @property
    def held(self) -> set[str]:
        """The pods for which a card is assumed."""
        names = {pod["metadata"]["uid"]: name for name, pod in self.cluster.api.pods.items()}
        return {names[uid] for uid in self.cluster.ledger.assumed if uid in names}


def test_each_answer_of_a_cycle_is_counted_in_the_next_one() -> None:
    groups = Groups(cards=2)
    groups.create("a-0", "a-1", "a-2")

    assert groups.ask_all("a-0", "a-1", "a-2") == [True, True, False]
    assert groups.held == {"a-0", "a-1"}


def test_a_second_cycle_begins_with_nothing() -> None:
    groups = Groups(cards=2)
    groups.create("a-0", "a-1", "a-2")
    groups.ask_all("a-0", "a-1", "a-2")

    assert groups.ask_all("a-1", "a-2", "a-0") == [True, True, False]
    assert groups.held == {"a-1", "a-2"}


def test_what_a_group_without_room_for_all_would_get_is_free_for_the_next_pod() -> None:
    groups = Groups(cards=2)
    groups.create("a-0", "a-1", "a-2", "alone")
    groups.ask_all("a-0", "a-1", "a-2")

    assert groups.ask("alone")
    assert groups.held == set()


def test_so_it_is_where_kube_scheduler_itself_refuses_a_pod_of_the_group() -> None:
    groups = Groups(cards=2)
    groups.create("a-0", "a-1", "b-0", "b-1")
    groups.ask("a-0")  # and a-1 has no node by its own filters, so that we are not asked

    assert groups.ask_all("b-0", "b-1") == [True, True]
    assert groups.held == {"b-0", "b-1"}


async def test_a_group_that_fits_keeps_its_cards_until_it_is_bound() -> None:
    groups = Groups(cards=3)
    groups.create("a-0", "a-1", "b-0", "b-1")
    groups.ask_all("a-0", "a-1")

    assert groups.ask_all("b-0", "b-1") == [True, False]
    assert groups.held == {"a-0", "a-1", "b-0"}
    assert set(groups.cluster.assumptions.under_way()) == set()
    for pod in ("a-0", "a-1"):
        assert await groups.cluster.bind(pod) == ""
        groups.cluster.see(pod)
    assert groups.held == {"b-0"}
    assert groups.ask_all("b-1", "b-0") == [True, False]


def test_a_group_that_was_not_bound_after_all_is_tried_from_nothing() -> None:
    groups = Groups(cards=3)
    groups.create("a-0", "a-1", "b-0", "b-1")
    groups.ask_all("a-0", "a-1", "b-0", "b-1")

    assert groups.ask("a-1")

    assert groups.held == {"a-1"}


async def test_what_is_assumed_for_a_group_that_is_never_bound_lapses() -> None:
    groups = Groups(cards=1)
    groups.create("a-0", "alone")
    groups.ask("a-0")
    assert not groups.ask("alone")

    await groups.cluster.clock.advance(timedelta(seconds=31).total_seconds())

    assert groups.ask("alone")


def test_a_pod_of_a_group_that_is_deleted_holds_nothing() -> None:
    groups = Groups(cards=1)
    groups.create("a-0", "alone")
    groups.ask("a-0")

    groups.cluster.delete("a-0")

    assert groups.ask("alone")
    assert not groups.cluster.gangs.pod_groups.of_pod


def test_a_pod_asked_about_after_its_deletion_is_no_longer_of_the_group() -> None:
    groups = Groups(cards=2)
    groups.create("a-0")
    late = groups.cluster.asking("a-0")
    groups.cluster.delete("a-0")

    groups.cluster.gangs.pod_groups.begin(late.pod)

    assert not groups.cluster.gangs.pod_groups.of_pod
    groups.create("a-1", "a-2", "alone")
    assert groups.ask("alone"), "the cycle is over"
    assert groups.ask_all("a-1", "a-2", "alone") == [True, True, False]
    assert groups.held == {"a-1", "a-2"}, "the group is complete without the one that is gone"


def test_a_nomination_takes_over_what_is_assumed_for_the_group() -> None:
    groups = Groups(cards=1)
    groups.create("a-0")
    groups.ask("a-0")
    pod = groups.cluster.copy_of("a-0")
    pod["status"] = {"nominatedNodeName": "n"}  # it waits for a volume
    groups.cluster.api.put(pod)
    groups.cluster.see("a-0")

    groups.cluster.nominations.count()

    (assumed,) = groups.cluster.ledger.assumed.values()
    assert assumed.nominated
    assert assumed.until > groups.cluster.clock.now() + timedelta(minutes=10)


def test_a_pod_of_a_group_does_not_preempt() -> None:
    groups = Groups(cards=1)
    groups.create("a-0", "alone")

    assert groups.cluster.gangs.waits(groups.cluster.asking("a-0").pod)
    assert not groups.cluster.gangs.waits(groups.cluster.asking("alone").pod)


PODS = ["a-0", "a-1", "a-2", "b-0", "b-1", "alone"]


@settings(max_examples=at_least(60))
@given(st.integers(1, 4), st.lists(st.sampled_from(PODS), max_size=25))
def test_whatever_is_asked_no_card_is_given_twice_and_no_failed_group_holds_one(
    cards: int, asked: list[str]
) -> None:
    groups = Groups(cards=cards)
    groups.create(*PODS)
    cycle: list[str] = []
    for pod in asked:
        group = pod.rpartition("-")[0]
        if not group or pod in cycle or (cycle and cycle[0].rpartition("-")[0] != group):
            cycle = []
        cycle += [pod] if group else []

        groups.ask(pod)

        for card in range(cards):
            assert groups.cluster.held(f"GPU-n-{card}") <= CARD_MIB
        for other in ("a", "b"):
            held = {pod for pod in groups.held if pod.startswith(other)}
            whole = held == {pod for pod in PODS if pod.startswith(f"{other}-")}
            assert not held or whole or held <= set(cycle)
