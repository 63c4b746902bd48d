"""A second look before a pod is refused twice on the same news."""

import asyncio
from dataclasses import dataclass, field

from fracgpu.state.allocation import PodRecord
from fracgpu.state.pod_info import PodInfo
from scheduler.cache.change_signal import ChangeSignal
from scheduler.extender.api import ExtenderArgs, FilterResult
from scheduler.extender.stale_cache_retry import StaleCacheRetry
from tests.fakes.clock import VirtualClock

NO = FilterResult(failed={"n": "node(s) that are full"})
NEVER = FilterResult(unresolvable={"n": "node(s) of another kind"})
YES = FilterResult(passed=("n",))


@dataclass(slots=True)
class Answers:
    """Answers as it is told, and counts how often it is asked."""

    now: FilterResult = field(default_factory=lambda: NO)
    asked: int = 0

    def filter(self, args: ExtenderArgs) -> FilterResult:
        self.asked += 1
        return self.now


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.news = ChangeSignal()
        self.answers = Answers()
        self.patient = StaleCacheRetry(self.answers, self.news, self.clock, limit_s=0.05)

    async def ask(self, uid: str = "p") -> FilterResult:
        record = PodRecord(uid=uid, namespace="default", name=uid)
        args = ExtenderArgs(pod=PodInfo(record=record), node_names=("n",))
        return await self.patient.filter(args)

    async def ask_and_wait(self, uid: str = "p") -> FilterResult:
        """Ask, and let the time pass that the answer may take."""
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self.ask(uid), name="ask")
            await self.clock.advance(0.06)
        return asking.result()

    async def waits(self, uid: str = "p") -> bool:
        """Tell whether an answer takes time."""
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
    assert not await World().waits()


async def test_a_yes_is_answered_at_once() -> None:
    world = World()
    await world.ask()
    world.answers.now = YES

    assert await world.ask() == YES


async def test_the_second_no_waits_for_news_that_turns_it_into_a_yes() -> None:
    world = World()
    await world.ask()

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(world.ask(), name="ask")
        await world.clock.wait_for_sleepers(1)
        world.answers.now = YES
        world.news.notify("another")

    assert asking.result() == YES
    assert world.clock.monotonic() == 0


async def test_news_that_change_nothing_are_not_the_end_of_the_wait() -> None:
    world = World()
    await world.ask()

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(world.ask(), name="ask")
        await world.clock.wait_for_sleepers(1)
        world.news.notify("another")
        await world.clock.advance(0.01)
        world.answers.now = YES
        world.news.notify("yet another")

    assert asking.result() == YES


async def test_the_wait_has_an_end() -> None:
    world = World()
    await world.ask()

    assert await world.ask_and_wait() == NO
    assert world.clock.monotonic() < 0.1


async def test_after_news_a_no_is_answered_at_once() -> None:
    world = World()
    await world.ask()
    world.news.notify("another")

    assert not await world.waits()


async def test_news_of_the_pod_itself_are_no_news() -> None:
    world = World()
    await world.ask()
    world.news.notify("p")  # kube-scheduler wrote our refusal into its status

    assert await world.waits()


async def test_a_no_that_pods_cannot_change_is_answered_at_once() -> None:
    world = World()
    world.answers.now = NEVER
    await world.ask()

    assert not await world.waits()


async def test_waiting_takes_at_most_a_fifth_of_the_time() -> None:
    world = World()
    for uid in ("p", "q"):
        await world.ask(uid)
    assert await world.waits("p")

    assert not await world.waits("q")
    await world.clock.advance(0.25)
    assert await world.waits("q")


async def test_a_pod_that_passed_is_forgotten() -> None:
    world = World()
    await world.ask()
    world.answers.now = YES
    await world.ask()
    world.answers.now = NO

    assert not await world.waits()


async def test_only_so_many_pods_are_remembered() -> None:
    world = World()
    for n in range(10_001):
        await world.ask(f"p{n}")

    assert not await world.waits("p0")
    assert await world.waits("p10000")


async def test_news_wake_whoever_waits_for_more() -> None:
    news, clock = ChangeSignal(), VirtualClock()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(news.wait(clock, limit_s=5), name="wait")
        await clock.wait_for_sleepers(1)
        news.notify()

    assert waiting.result() is True
    assert news.count == 1
