"""A running pod's share is resized by the one accountant, and no card is ever promised twice."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fracgpu import names
from fracgpu.state.allocation import Resize, sizes, write_assignment
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from fracgpu.units import Mib
from kube.leader_election import LeaseLost
from tests.scheduler.harness import Harness, refusal, silence
from tests.support.gpu import some_cards

CARD_MIB = 8000
SIZES = st.sampled_from([2000, 4000, 6000])


def a_cluster() -> Harness:
    return Harness(cards=1, mib=CARD_MIB)


async def run(
    cluster: Harness, name: str, *, mib: int, isolation: str | None = "kernel", **wanted: Any
) -> None:
    """Bind a pod, and let its container start."""
    cluster.create(name, mib=mib, **wanted)
    assert await cluster.bind(name) == ""
    cluster.see(name)
    if isolation is not None:
        wired = {"train": {"cards": ["GPU-n-0"], "isolation": isolation}}
        annotate(cluster, name, names.WIRED, json.dumps(wired))


def annotate(cluster: Harness, name: str, key: str, text: str, *, observed: bool = True) -> None:
    pod = cluster.api.pods[name]
    pod["metadata"]["annotations"][key] = text
    cluster.api.put(pod)
    if observed:
        cluster.see(name)


async def ask(cluster: Harness, name: str, size: str) -> None:
    annotate(cluster, name, names.RESIZE, size)
    await cluster.resizer.answer_all()


def stored(cluster: Harness, name: str) -> PodInfo:
    return decode_pod_info(json.dumps(cluster.api.pods[name]).encode())


def resize_of(cluster: Harness, name: str) -> Resize:
    found = stored(cluster, name).record.resize
    assert found is not None
    return found


def mib_of(assignment: Any) -> int:
    return sum(sizes(assignment).values())


def held(cluster: Harness) -> int:
    node = cluster.ledger.node("n", now=cluster.clock.now())
    assert node is not None
    (card,) = node.cards.values()
    return card.held_mib


def apply(cluster: Harness, name: str) -> None:
    """Confirm what was granted, as the node's agent does."""
    granted = write_assignment(resize_of(cluster, name).granted)
    annotate(cluster, name, names.APPLIED, granted)


async def test_more_is_counted_before_it_is_applied() -> None:
    cluster = a_cluster()
    await run(cluster, "p", mib=2000)

    await ask(cluster, "p", "5000Mi")

    assert mib_of(resize_of(cluster, "p").granted) == 5000
    assert mib_of(resize_of(cluster, "p").applied) == 2000
    # Also before the informer shows it, and the Lease has named the pod before it was written.
    assert held(cluster) == 5000
    assert cluster.recorded[-1] == {stored(cluster, "p").record.uid}
    cluster.see("p")
    assert held(cluster) == 5000
    assert cluster.ledger.growing == set()
    assert [reason for _, reason, _ in cluster.events.events] == ["ResizeGranted"]


async def test_less_is_counted_only_after_it_is_applied() -> None:
    cluster = a_cluster()
    await run(cluster, "p", mib=5000)

    await ask(cluster, "p", "2000Mi")
    cluster.see("p")
    assert held(cluster) == 5000
    cluster.create("other", mib=6000)
    assert "no room" in await cluster.bind("other")

    apply(cluster, "p")

    assert held(cluster) == 2000
    assert await cluster.bind("other") == ""


async def test_a_pod_grows_within_its_limit_and_within_what_limits_may_add_up_to() -> None:
    cluster = a_cluster()
    (card,) = some_cards("n", count=1, mib=CARD_MIB)
    cluster.add_node("n", (replace(card, limits_mib=Mib(CARD_MIB)),))
    await run(cluster, "p", mib=2000, annotations={names.MEMORY_LIMIT: "5000Mi"})
    await run(cluster, "other", mib=2000)

    await ask(cluster, "other", "4000Mi")
    assert resize_of(cluster, "other").refused == "at most 3000Mi fit on the pod's card now"
    await ask(cluster, "p", "6000Mi")
    found = resize_of(cluster, "p")
    assert found.refused == "more than the 5000Mi that the pod may use at most"
    await ask(cluster, "p", "5000Mi")
    assert mib_of(resize_of(cluster, "p").granted) == 5000
    cluster.see("p")
    assert held(cluster) == 7000


async def test_what_does_not_fit_is_refused_with_the_largest_size_that_does() -> None:
    cluster = a_cluster()
    await run(cluster, "p", mib=2000)
    await run(cluster, "other", mib=3000)

    await ask(cluster, "p", "6Gi")

    found = resize_of(cluster, "p")
    assert found.refused == "at most 5000Mi fit on the pod's card now"
    assert mib_of(found.granted) == 2000
    assert held(cluster) == 5000
    ((_, reason, note),) = cluster.events.events
    assert (reason, note) == ("ResizeRefused", f"{names.RESIZE} 6Gi: {found.refused}")

    cluster.see("p")
    await ask(cluster, "p", "5000Mi")
    assert mib_of(resize_of(cluster, "p").granted) == 5000


@pytest.mark.parametrize(
    ("isolation", "asked", "why"),
    [
        pytest.param("none", "4Gi", "neither driver nor kernel limit it", id="none"),
        pytest.param("kernel", "much", "want a Kubernetes quantity", id="no-size"),
    ],
)
async def test_a_share_that_nothing_limits_and_a_size_that_is_none_are_refused(
    isolation: str, asked: str, why: str
) -> None:
    cluster = a_cluster()
    await run(cluster, "p", mib=2000, isolation=isolation)

    await ask(cluster, "p", asked)

    assert why in resize_of(cluster, "p").refused
    assert held(cluster) == 2000


async def test_a_pod_that_has_not_started_waits_for_its_answer() -> None:
    cluster = a_cluster()
    await run(cluster, "p", mib=2000, isolation=None)
    await ask(cluster, "p", "4000Mi")
    assert [reason for _, reason, _ in cluster.events.events] == ["ResizePending"]

    wired = {"train": {"cards": ["GPU-n-0"], "isolation": "kernel"}}
    annotate(cluster, "p", names.WIRED, json.dumps(wired))
    await cluster.resizer.answer_all()

    assert mib_of(resize_of(cluster, "p").granted) == 4000


async def test_nothing_is_decided_before_the_informer_shows_what_counts() -> None:
    cluster = a_cluster()
    await run(cluster, "p", mib=6000)
    await ask(cluster, "p", "2000Mi")
    cluster.see("p")
    annotate(cluster, "p", names.RESIZE, "4000Mi")
    granted = write_assignment(resize_of(cluster, "p").granted)
    annotate(cluster, "p", names.APPLIED, granted, observed=False)

    # 6,000 MiB count here, and 2,000 there: what is granted now would be lost with the next event.
    await cluster.resizer.answer_all()
    assert mib_of(resize_of(cluster, "p").granted) == 2000

    cluster.see("p")
    await cluster.resizer.answer_all()
    assert mib_of(resize_of(cluster, "p").granted) == 4000
    assert held(cluster) == 4000


async def test_a_card_that_is_not_healthy_gives_no_more() -> None:
    cluster = a_cluster()
    await run(cluster, "p", mib=2000)
    cluster.annotate_node({"cards": "spoilt"})

    await ask(cluster, "p", "3000Mi")

    assert "takes no new slices" in resize_of(cluster, "p").refused


@pytest.mark.parametrize("written", [True, False])
async def test_a_write_that_was_not_answered_counts_until_it_is_known_what_became_of_it(
    *, written: bool
) -> None:
    cluster = a_cluster()
    await run(cluster, "p", mib=2000)
    cluster.api.patch_answer_lost = written
    cluster.api.patch_raises = None if written else silence()

    await ask(cluster, "p", "5000Mi")
    await cluster.resizer.answer_all()
    assert held(cluster) == 5000

    cluster.api.patch_answer_lost, cluster.api.patch_raises = False, refusal()
    await cluster.resizer.answer_all()
    assert held(cluster) == 5000  # not even the mark is written
    cluster.api.patch_raises = None
    cluster.leads = False  # so that nothing new is decided
    await cluster.resizer.answer_all()

    assert held(cluster) == (5000 if written else 2000)


async def test_a_replica_that_no_longer_leads_grants_nothing() -> None:
    cluster = a_cluster()
    await run(cluster, "p", mib=2000)
    cluster.record_raises = LeaseLost("another holds it")

    await ask(cluster, "p", "5000Mi")

    assert stored(cluster, "p").record.resize is None
    assert held(cluster) == 2000


async def test_a_grant_that_is_late_is_refused_once_the_next_leader_has_marked_the_pod() -> None:
    cluster = a_cluster()
    await run(cluster, "p", mib=2000)
    stalled = False

    async def stall() -> None:
        nonlocal stalled
        stalled, cluster.api.before_patch = True, None
        await cluster.fence().mark_pending()

    cluster.api.before_patch = stall
    await ask(cluster, "p", "5000Mi")

    assert stalled
    assert names.RESIZED not in cluster.api.pods["p"]["metadata"]["annotations"]
    assert held(cluster) == 2000


async def test_a_pod_that_the_fence_finds_larger_than_listed_counts_so() -> None:
    cluster = a_cluster()
    await run(cluster, "p", mib=2000)
    listed = cluster.pods()
    await ask(cluster, "p", "5000Mi")
    uid = stored(cluster, "p").record.uid
    cluster.ledger.keep(uid)  # as in a replica that listed before the grant was written
    assert held(cluster) == 2000
    text = json.dumps({"term": "lease/4", "pods": [uid]})
    cluster.record.inherit({names.BINDINGS_UNDER_WAY: text}, term="lease/4")

    await cluster.fence(lambda: listed).mark_pending()

    assert held(cluster) == 5000


class AnyOrder(RuleBasedStateMachine):
    """Pods come and are resized, in any order with crashes, lost answers and late observations."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.cluster = a_cluster()
        self.real: dict[str, int] = {}
        self.view: dict[str, PodInfo] = {}

    def teardown(self) -> None:
        self.loop.close()

    def do(self, step: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(_of(lambda: step))

    def pod(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.real)))

    @initialize(mib=SIZES)
    def begin(self, mib: int) -> None:
        self.start(mib)

    @precondition(lambda self: len(self.real) < 3)
    @rule(mib=SIZES)
    def start(self, mib: int) -> None:
        name = f"p{len(self.cluster.api.pods)}"
        self.cluster.create(name, mib=mib)
        if self.do(self.cluster.bind(name)) == "":
            self.cluster.see(name)
            wired = {"train": {"cards": ["GPU-n-0"], "isolation": "kernel"}}
            annotate(self.cluster, name, names.WIRED, json.dumps(wired))
            self.real[name] = mib
            self.view[name] = stored(self.cluster, name)

    @rule(data=st.data(), mib=SIZES, at_once=st.booleans())
    def ask(self, data: st.DataObject, mib: int, *, at_once: bool) -> None:
        name = self.pod(data)
        annotate(self.cluster, name, names.RESIZE, f"{mib}Mi")
        if at_once:
            self.answer("written")
            self.cluster.see(name)

    @rule(outcome=st.sampled_from(["written", "lost", "not written", "refused"]))
    def answer(self, outcome: str) -> None:
        api = self.cluster.api
        api.patch_answer_lost = outcome == "lost"
        api.patch_raises = {"not written": silence(), "refused": refusal()}.get(outcome)
        self.do(self.cluster.resizer.answer_all())
        api.patch_answer_lost, api.patch_raises = False, None

    @rule(data=st.data())
    def see(self, data: st.DataObject) -> None:
        self.cluster.see(self.pod(data))

    @rule(data=st.data(), looks=st.booleans(), busy=st.booleans(), confirms=st.booleans())
    def agent(self, data: st.DataObject, *, looks: bool, busy: bool, confirms: bool) -> None:
        """Audit one pod: apply what is granted, unless more is in use, and say so or crash."""
        name = self.pod(data)
        if looks:
            self.view[name] = stored(self.cluster, name)
        record = self.view[name].record
        assert record.limits is not None
        if not (busy and mib_of(record.limits) < self.real[name]):
            self.real[name] = mib_of(record.limits)
        current = self.cluster.api.pods[name]["metadata"]["resourceVersion"]
        if not (confirms and record.resource_version == current and record.resize is not None):
            return
        if self.real[name] == mib_of(record.resize.granted):
            text = write_assignment(record.resize.granted)
            annotate(self.cluster, name, names.APPLIED, text, observed=False)

    @invariant()
    def no_card_is_promised_twice(self) -> None:
        counted = 0
        for name, limit in self.real.items():
            assignment = stored(self.cluster, name).record.assignment
            assert assignment is not None
            assert limit <= mib_of(assignment), "the limit is never above what counts"
            counted += mib_of(assignment)
        # The ledger may be late to learn that something counts less, and never that it counts more.
        assert counted <= held(self.cluster) <= CARD_MIB


async def _of(make: Callable[[], Awaitable[Any]]) -> Any:
    return await make()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
