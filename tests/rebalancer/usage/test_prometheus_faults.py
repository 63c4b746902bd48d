"""Faults of a real Prometheus and its targets: the role moves nothing, and its metric says why.

In each test a card is hot and a pod would be moved, as it is once the fault is over.
"""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from fracgpu import names
from fracgpu.disruption.policy import RebalancerPolicy
from kube.client import KubeClient
from kube.kinds import PODS
from simulator.apiserver.server import ApiServer
from simulator.envtest.prometheus import RealPrometheus
from tests.fakes.exporter import Exporter
from tests.fakes.prometheus import Fault, Proxy, answering, hanging_up, vector
from tests.rebalancer.test_service import ACTIVE, QUICK, SCRAPE_S, Load, Role, a_role, configure
from tests.support.moving import NAMESPACE, make_cluster
from tests.support.rebalancing import COOL_CARD, HOT_CARD
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE_S: Final = 180.0  # the machine may be busy
CYCLES: Final = 2  # that a fault must last, once it is known
STALE_S: Final = 6  # three intervals of a second at least, and three seconds


@dataclass
class Site:
    """A role, the Prometheus that it asks through a proxy, and what that scrapes."""

    kube: KubeClient
    role: Role
    real: RealPrometheus
    proxy: Proxy
    exporter: Exporter
    load: Load
    pods: dict[str, str] = field(default_factory=dict)

    async def value(self, line: str) -> float:
        """Return the value of one series of the role's own metrics."""
        found = re.search(
            rf"^fracgpu_rebalancer_{re.escape(line)} (\S+)$",
            (await self.role.get("/metrics"))[1],
            re.MULTILINE,
        )
        assert found is not None, line
        return float(found[1])

    async def blind(self) -> list[str]:
        """Return the reasons to be blind that are shown."""
        text = (await self.role.get("/metrics"))[1]
        return re.findall(r'^fracgpu_rebalancer_blind\{reason="(\w+)"\} 1\.0$', text, re.MULTILINE)

    async def is_blind(self) -> bool:
        return bool(await self.blind())

    async def moves_nothing(self, reason: str, *, cycles: int = CYCLES) -> None:
        """Wait until the role says that it is blind for *reason*, and see that nothing moves."""
        await until(lambda: self._is_blind(reason), what=f"blind: {reason}", limit_s=PATIENCE_S)
        began = await self.value("cycle_seconds_count")

        async def went_on() -> bool:
            return await self.value("cycle_seconds_count") >= began + cycles

        await until(went_on, what="some more cycles", limit_s=PATIENCE_S)
        assert await self.blind() != []  # on a busy machine there may be other reasons by now
        assert await self.disturbed() == []
        assert await self.value('evictions_total{code="allowed"}') == 0

    async def moves_a_pod(self) -> None:
        """Wait until a pod is moved: without the fault it would have been."""
        await until(self._leaves, what="a pod is moved at last", limit_s=PATIENCE_S)
        assert await self.blind() == []

    async def lift_fault(self, *, once: str) -> None:
        """Let the role see Prometheus as soon as a query to Prometheus itself has a result.

        Until then the load was measured, and a role that saw it would rightly move a pod.
        """

        async def has_result() -> bool:
            answer = await self.real.get(f"/api/v1/query?query={quote(once)}")
            return bool(answer["data"]["result"])

        await until(has_result, what=once, limit_s=PATIENCE_S)
        self.proxy.fault = None

    async def disturbed(self) -> list[str]:
        """Return the pods that are being moved: evicted, or released from their ReplicaSet."""
        found = [
            (await self.kube.get_object(PODS, name, namespace=NAMESPACE))["metadata"]
            for name in self.pods
        ]
        return [
            metadata["name"]
            for metadata in found
            if "deletionTimestamp" in metadata or names.MOVED_BY in metadata["annotations"]
        ]

    async def _is_blind(self, reason: str) -> bool:
        return await self.blind() == [reason]

    async def _leaves(self) -> bool:
        return bool(await self.disturbed())


@asynccontextmanager
async def a_site(
    api: ApiServer,
    kube: KubeClient,
    folder: Path,
    *,
    fault: Fault | None,
    base: RebalancerPolicy = QUICK,
    config: str = ACTIVE,
) -> AsyncIterator[Site]:
    """Start everything; *fault* holds from the first query on, and the role knows of it."""
    await make_cluster(kube)
    pods = {
        name: (await kube.get_object(PODS, name, namespace=NAMESPACE))["metadata"]["uid"]
        for name in ("pod-a", "pod-b")
    }
    load = Load({HOT_CARD: 95, COOL_CARD: 5}, dict.fromkeys(pods.values(), 47))
    await configure(kube, config)
    async with Exporter.start() as exporter:
        exporter.text = load.page
        start = RealPrometheus.start(
            folder / "prometheus", {"node": exporter.address}, scrape_interval_s=SCRAPE_S
        )
        async with start as real:
            proxy = Proxy(real.url)
            proxy.fault = fault
            async with proxy.start() as url, a_role(api, folder, url, base=base) as role:
                site = Site(kube, role, real, proxy, exporter, load, pods)
                if fault is not None:
                    await until(site.is_blind, what="blind for the fault", limit_s=PATIENCE_S)
                yield site


def changed(change: Callable[[str, Any], Any]) -> Fault:
    """Return a fault that changes every answer but that to the first query, for the time."""

    def fault(query: str, answer: Any) -> Any:
        return answer if query == "time()" else change(query, answer)

    return fault


def with_value(value: str) -> Fault:
    def change(_: str, answer: Any) -> Any:
        for series in answer["data"]["result"]:
            series["value"][1] = value
        return answer

    return changed(change)


def with_clock(shift_s: float) -> Fault:
    """Return the fault of a server whose clock is wrong: it says another time."""

    def fault(query: str, answer: Any) -> Any:
        if query == "time()":
            at_s = float(answer["data"]["result"][1]) + shift_s
            answer["data"]["result"][1] = f"{at_s:.3f}"
        return answer

    return fault


def standing_still() -> Fault:
    """Return the fault of a cache that keeps the answer to the first query."""
    first: list[Any] = []

    def fault(query: str, answer: Any) -> Any:
        if query != "time()":
            return answer
        first.append(answer)
        return first[0]

    return fault


FAULTS: Final[dict[str, tuple[Fault, str]]] = {
    "503": (lambda *_: answering("busy", status=503), "refused"),
    "hangs up": (lambda *_: hanging_up, "unreachable"),
    "warnings": (lambda _, answer: answer | {"warnings": ["a store is gone"]}, "partial"),
    "marked as partial": (lambda _, answer: answer | {"isPartial": True}, "partial"),
    "not JSON": (lambda *_: answering("<html>"), "garbled"),
    "empty": (changed(lambda *_: vector()), "cards_unknown"),
    "NaN": (with_value("NaN"), "cards_stale"),
    "a cache answers": (standing_still(), "frozen"),
    "the clock is slow": (with_clock(-3600), "cards_unknown"),
    "the clock is fast": (with_clock(3600), "cards_unknown"),
}


async def test_whatever_prometheus_answers_wrongly_nothing_moves_until_it_answers_again(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    async with a_site(api, kube, tmp_path, fault=FAULTS["503"][0]) as site:
        for fault, reason in FAULTS.values():
            site.proxy.fault = fault
            await site.moves_nothing(reason, cycles=1)
        for reason in ("refused", "unreachable", "partial", "garbled"):
            assert await site.value(f'prometheus_query_errors_total{{reason="{reason}"}}') >= 1

        site.proxy.fault = None
        await site.moves_a_pod()

        # The queries of one cycle are evaluated at one time, the one that the server said.
        cycles: list[set[str | None]] = []
        for query, at in site.proxy.asked:
            if query == "time()":
                assert at is None
                cycles.append(set())
            else:
                cycles[-1].add(at)
        assert all(len(times) <= 1 and None not in times for times in cycles)
        assert len({at for times in cycles for at in times}) > CYCLES


@pytest.mark.parametrize("shift_s", [-600, 300])
async def test_samples_with_the_time_of_a_wrong_clock_are_not_believed(
    api: ApiServer, kube: KubeClient, tmp_path: Path, shift_s: int
) -> None:
    """Prometheus takes explicit timestamps as they are, unless they are far in the future."""
    async with a_site(api, kube, tmp_path, fault=FAULTS["503"][0]) as site:
        site.exporter.text = lambda: _stamped(site.load.page(), shift_s)
        name = "fracgpu_card_util"
        await site.lift_fault(once=f"absent({name}) or time() - timestamp({name}) > {STALE_S}")
        await until(lambda: _any_cards(site), what="blind for its cards", limit_s=PATIENCE_S)
        (reason,) = await site.blind()
        await site.moves_nothing(reason)


async def _any_cards(site: Site) -> bool:
    return any(reason.startswith("cards_") for reason in await site.blind())


def _stamped(page: str, shift_s: float) -> str:
    """Return the page with a timestamp on each sample, off by *shift_s*."""
    lines = page.splitlines()
    at_ms = round((float(lines[0].split(" ")[1]) + shift_s) * 1000)
    return "\n".join([lines[0], *(f"{line} {at_ms}" for line in lines[1:] if line), ""])


async def test_figures_that_are_all_zero_after_a_restart_make_no_card_cool_at_once(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    slow = replace(QUICK, settle_s=60)
    async with a_site(api, kube, tmp_path, fault=None, base=slow, config="mode: off") as site:
        hot = 'cards{state="hot"}'
        await until(lambda: _is(site, hot, 1), what="the card is hot", limit_s=PATIENCE_S)

        site.load.cards |= {HOT_CARD: 0, COOL_CARD: 0}
        for pod in site.load.pods:
            site.load.pods[pod] = 0
        await until(lambda: _is(site, hot, 0), what="the card is hot no more", limit_s=PATIENCE_S)
        assert await site.value('cards{state="settling"}') == 1
        assert await site.value('cards{state="cool"}') == 1
        await configure(kube, ACTIVE)
        began = await site.value("cycle_seconds_count")
        await until(
            lambda: _is_at_least(site, "cycle_seconds_count", began + 2 * CYCLES),
            what="some more cycles",
            limit_s=PATIENCE_S,
        )
        assert await site.value('cards{state="settling"}') == 1
        assert await site.disturbed() == []


async def _is(site: Site, line: str, value: float) -> bool:
    return await site.value(line) == value


async def _is_at_least(site: Site, line: str, value: float) -> bool:
    return await site.value(line) >= value
