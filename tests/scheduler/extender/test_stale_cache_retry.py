"""A retry before a pod is refused twice on the same cached state."""

import asyncio
from dataclasses import dataclass, field

from fracgpu.state.allocation import PodRecord
from fracgpu.state.pod_info import PodInfo
from scheduler.cache.change_signal import ChangeSignal
from scheduler.extender.api import ExtenderArgs, FilterResult
from scheduler.extender.filter import StaleCacheRetry
from tests.fakes.clock import VirtualClock

NO = FilterResult(failed={"n": "node(s) that are full"})
NEVER = FilterResult(unresolvable={"n": "node(s) of another kind"})
YES = FilterResult(passed=("n",))


@dataclass(slots=True)
class Answers:
    """Returns given answers, and counts the calls."""

    now: FilterResult = field(default_factory=lambda: NO)
    asked: int = 0

    def filter(self, args: ExtenderArgs) -> FilterResult:
        self.asked += 1
        return self.now


def some_args(uid: str = "p") -> ExtenderArgs:
    record = PodRecord(uid=uid, namespace="default", name=uid)
    return ExtenderArgs(pod=PodInfo(record=record), node_names=("n",))


class Harness:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.changes = ChangeSignal()
        self.answers = Answers()
        self.stale_cache_retry = StaleCacheRetry(
            self.answers, self.changes, self.clock, limit_s=0.05
        )

    async def ask(self, uid: str = "p") -> FilterResult:
        return await self.stale_cache_retry.filter(some_args(uid))

    async def ask_and_wait(self, uid: str = "p") -> FilterResult:
        """Filter, and advance the clock by the longest wait."""
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self.ask(uid), name="ask")
            await self.clock.advance(0.06)
        return asking.result()

    async def waits(self, uid: str = "p") -> bool:
        """Report whether the answer comes after a wait."""
        began = self.clock.monotonic()
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self.ask(uid), name="ask")
            for _ in range(100):
                await asyncio.sleep(0)
            waiting = not asking.done()
            await self.clock.advance(0.06)
        assert self.clock.monotonic() - began < 1
        return waiting


async def test_the_first_no_is_answered_at_once() -> None:
    assert not await Harness().waits()


async def test_a_yes_is_answered_at_once() -> None:
    cluster = Harness()
    await cluster.ask()
    cluster.answers.now = YES

    assert await cluster.ask() == YES


async def test_the_second_no_waits_for_news_that_turns_it_into_a_yes() -> None:
    cluster = Harness()
    await cluster.ask()

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(cluster.ask(), name="ask")
        await cluster.clock.wait_for_sleepers(1)
        cluster.answers.now = YES
        cluster.changes.notify("another")

    assert asking.result() == YES
    assert cluster.clock.monotonic() == 0


async def test_news_that_change_nothing_are_not_the_end_of_the_wait() -> None:
    cluster = Harness()
    await cluster.ask()

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(cluster.ask(), name="ask")
        await cluster.clock.wait_for_sleepers(1)
        cluster.changes.notify("another")
        await cluster.clock.advance(0.01)
        cluster.answers.now = YES
        cluster.changes.notify("yet another")

    assert asking.result() == YES


async def test_the_wait_has_an_end() -> None:
    cluster = Harness()
    await cluster.ask()

    assert await cluster.ask_and_wait() == NO
    assert cluster.clock.monotonic() < 0.1


async def test_after_news_a_no_is_answered_at_once() -> None:
    cluster = Harness()
    await cluster.ask()
    cluster.changes.notify("another")

    assert not await cluster.waits()


async def test_news_of_the_pod_itself_are_no_news() -> None:
    cluster = Harness()
    await cluster.ask()
    cluster.changes.notify("p")  # kube-scheduler wrote our refusal into its status

    assert await cluster.waits()


async def test_a_no_that_pods_cannot_change_is_answered_at_once() -> None:
    cluster = Harness()
    cluster.answers.now = NEVER
    await cluster.ask()

    assert not await cluster.waits()


async def test_waiting_takes_at_most_a_fifth_of_the_time() -> None:
    cluster = Harness()
    for uid in ("p", "q"):
        await cluster.ask(uid)
    assert await cluster.waits("p")

    assert not await cluster.waits("q")
    await cluster.clock.advance(0.25)
    assert await cluster.waits("q")


async def test_a_pod_that_passed_is_forgotten() -> None:
    cluster = Harness()
    await cluster.ask()
    cluster.answers.now = YES
    await cluster.ask()
    cluster.answers.now = NO

    assert not await cluster.waits()


async def test_only_so_many_pods_are_remembered() -> None:
    cluster = Harness()
    for n in range(10_001):
        await cluster.ask(f"p{n}")

    assert not await cluster.waits("p0")
    assert await cluster.waits("p10000")


async def test_news_wake_whoever_waits_for_more() -> None:
    news, clock = ChangeSignal(), VirtualClock()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(news.wait(clock, limit_s=5), name="wait")
        await clock.wait_for_sleepers(1)
        news.notify()

    assert waiting.result() is True
    assert news.count == 1
