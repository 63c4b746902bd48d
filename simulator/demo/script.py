"""The steps of the demo, in order, and the collection of its facts at the end."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from component.wiring import Wiring
from fracgpu import names
from fracgpu.state.allocation import sizes
from fracgpu.state.pod_info import PodInfo
from kube.errors import Forbidden, Invalid, KubeError
from kube.kinds import DEPLOYMENTS, PDBS, PODS, Kind
from process.clock import Clock
from simulator.demo.promises import (
    LEFT_OUT_BY_CLAIMS,
    DemoFacts,
    LimitFact,
    PodFact,
    Promise,
    RefusalFact,
    judge,
)
from simulator.demo.rig import Rig
from simulator.demo.workload import (
    GREEDY,
    GREEDY_MIB,
    GREEDY_WANTS_MIB,
    NAMESPACE,
    RESIZED_MIB,
    DemoWorkload,
    bad_requests,
    disruption_budget,
    heating_workload,
    owner_of,
    steady_workloads,
)

_KINDS: Final[Mapping[str, Kind]] = {
    "pods": PODS,
    "deployments": DEPLOYMENTS,
}
_POLL_S: Final = 0.5
_MOST_STARTS: Final = 6


class RoleKeepsDying(Exception):  # noqa: N818 - says what happens
    """A role's process ended repeatedly; the message has the end of its log."""

    def __init__(self, name: str, last_words: str) -> None:
        super().__init__(f"{name} keeps dying: {last_words}")


@dataclass(slots=True)
class Progress:
    """The demo's progress, for display."""

    step: str = "starting the cluster"
    waiting_for: tuple[str, ...] = ()
    expected: dict[str, int] = field(default_factory=dict)
    refusals: list[RefusalFact] = field(default_factory=list)
    limit: LimitFact = field(default_factory=LimitFact)


class Script:
    """One run of the demo over a started rig.

    Args:
        rig: the cluster and its roles.
        clock: for pauses.
        progress: kept up to date while :meth:`play` runs.
    """

    def __init__(self, rig: Rig, clock: Clock, progress: Progress) -> None:
        self._rig = rig
        self._clock = clock
        self.progress: Final = progress

    async def play(self) -> None:
        """Submit everything, heat a card, and return when the card has been relieved."""
        rig, progress = self._rig, self.progress
        progress.step = "waiting until every role is ready and the nodes show their cards"
        await self._until(self._ready)
        progress.step = "submitting pods that ask for shares of cards"
        for workload in steady_workloads():
            await self._submit(workload)
        await self._submit_bad_requests()
        progress.step = "waiting until every pod runs on its card"
        await self._until(self._all_run)
        await self._see_limit()
        if rig.wiring is Wiring.CLAIMS:
            for part in LEFT_OUT_BY_CLAIMS:
                rig.observer.add_event_line(f"left out with the wiring by claims: {part}")
        else:
            await self._resize()
        progress.step = "letting a card run hot"
        await rig.kube.create(PDBS, disruption_budget())
        await self._submit(heating_workload())
        await self._until(lambda: _is(rig.observer.heat.hot_after_s is not None))
        progress.step = "the card is hot: waiting for the rebalancer to move a pod off it"
        await self._until(lambda: _is(bool(rig.observer.heat.moved_pods)))
        progress.step = "a pod moves: waiting until the card is cool and every pod runs"
        await self._until(lambda: _is(rig.observer.heat.relieved_after_s is not None))
        await self._until(self._all_run)
        await self._until(self._ready)
        await self._until(self._scraped)
        progress.step = "relieved: watching that it stays so"

    async def facts(self) -> DemoFacts:
        """Collect the facts on which the promises are judged."""
        rig = self._rig
        return DemoFacts(
            expected_pods=dict(self.progress.expected),
            pods=await self._pod_facts(),
            refusals=tuple(self.progress.refusals),
            peaks=rig.observer.peaks,
            heat=rig.observer.heat,
            scrape_targets=await self._targets_up(),
            limit=self.progress.limit,
            by_claims=self._rig.wiring is Wiring.CLAIMS,
        )

    async def judge(self) -> tuple[Promise, ...]:
        return judge(await self.facts())

    async def _ready(self) -> bool:
        waiting = await self._rig.waiting_for()
        self.progress.waiting_for = tuple(waiting)
        return not waiting

    async def _scraped(self) -> bool:
        up = await self._targets_up()
        return bool(up) and all(up.values())

    async def _targets_up(self) -> Mapping[str, bool]:
        """Return the state of Prometheus' targets; none if it does not answer."""
        try:
            return await self._rig.prometheus.targets_up()
        except OSError:
            return {}

    async def _submit(self, workload: DemoWorkload) -> None:
        await self._rig.kube.create(_KINDS[workload.plural], workload.body)
        self.progress.expected[workload.name] = workload.pods
        self._rig.observer.add_event_line(f"submitted {workload.name}: {workload.story}")

    async def _submit_bad_requests(self) -> None:
        for bad in bad_requests():
            message: str | None = None
            try:
                await self._rig.kube.create(PODS, bad.body)
            except (Invalid, Forbidden) as error:
                message = error.message
            self.progress.refusals.append(
                RefusalFact(name=bad.name, mentions=bad.mentions, message=message)
            )
            self._rig.observer.add_event_line(f"refused {bad.name} ({bad.story}): {message}")

    async def _see_limit(self) -> None:
        """Watch a pod that is held to its share."""
        progress = self.progress
        progress.step = "waiting until a pod that wants too much is held to its share"
        await self._until(lambda: _is(self._used_mib() == GREEDY_MIB))
        progress.limit = LimitFact(wanted_mib=GREEDY_WANTS_MIB, mib=GREEDY_MIB, used_mib=GREEDY_MIB)
        self._rig.observer.add_event_line(
            f"{GREEDY} wanted {GREEDY_WANTS_MIB} MiB, and was refused more than {GREEDY_MIB}"
        )

    async def _resize(self) -> None:
        """Resize that pod to a larger share."""
        progress = self.progress
        progress.step = "resizing that pod while it runs"
        change = {"metadata": {"annotations": {names.RESIZE: f"{RESIZED_MIB}Mi"}}}
        await self._rig.kube.patch(PODS, GREEDY, change, namespace=NAMESPACE)
        await self._until(lambda: _is(self._used_mib() == RESIZED_MIB))
        progress.limit = replace(
            progress.limit, resized_mib=self._limit_mib(), resized_used_mib=RESIZED_MIB
        )
        self._rig.observer.add_event_line(f"{GREEDY} was resized to {RESIZED_MIB} MiB")

    def _greedy(self) -> PodInfo | None:
        pods = self._rig.observer.pods
        return next((pod for pod in pods if pod.record.name == GREEDY), None)

    def _used_mib(self) -> int | None:
        """Return what the greedy pod uses, as the page shows it."""
        pod = self._greedy()
        used = [
            mib
            for node in self._rig.observer.nodes
            for pods in node.used.values()
            for uid, mib in pods.items()
            if pod is not None and uid == pod.record.uid
        ]
        return used[0] if used else None

    def _limit_mib(self) -> int:
        """Return the limit that the node's agent has confirmed for it."""
        pod = self._greedy()
        resize = pod.record.resize if pod is not None else None
        return sum(sizes(resize.applied).values()) if resize is not None else 0

    async def _all_run(self) -> bool:
        running = self._running()
        return all(running.get(name, 0) == want for name, want in self.progress.expected.items())

    def _running(self) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for pod in self._rig.observer.pods:
            if pod.ready and not pod.record.terminating:
                owner = owner_of(pod.record.name, self.progress.expected)
                counts[owner] = counts.get(owner, 0) + 1
        return counts

    async def _pod_facts(self) -> Sequence[PodFact]:
        facts = []
        for pod in self._rig.observer.pods:
            record = pod.record
            # A finished pod holds no card; whether its owner has replaced it is counted elsewhere.
            if record.terminating or not record.live:
                continue
            facts.append(
                PodFact(
                    key=record.key,
                    owner=owner_of(record.name, self.progress.expected),
                    running=pod.ready,
                    assignment=record.assignment,
                    wired=self._rig.wired(record.node, record.uid),
                )
            )
        return tuple(sorted(facts, key=lambda fact: fact.key))

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition, without a time limit of its own.

        Raises:
            RoleKeepsDying: a role does not stay up, so the condition cannot become true.
        """
        while not await _asked(condition):
            for name in self._rig.supervisor.names():
                if self._rig.supervisor.starts(name) >= _MOST_STARTS:
                    raise RoleKeepsDying(name, self._rig.supervisor.last_words(name))
            await self._clock.sleep(_POLL_S)


async def _asked(condition: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await condition()
    except KubeError:
        return False


async def _is(fact: bool) -> bool:  # noqa: FBT001 - wraps a fact into an awaitable
    return fact


async def play_within(script: Script, limit_s: float) -> str:
    """Run the demo; return '' if it finished within *limit_s* seconds, else why not."""
    try:
        async with asyncio.timeout(limit_s):
            await script.play()
    except TimeoutError:
        return f"timed out at: {'; '.join((script.progress.step, *script.progress.waiting_for))}"
    except RoleKeepsDying as error:
        return str(error)
    except KubeError as error:
        return f"failed at: {script.progress.step}: {error}"
    return ""
