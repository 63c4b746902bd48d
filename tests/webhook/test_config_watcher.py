import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from prometheus_client import CollectorRegistry

from component.metrics import ConfigMetrics
from fracgpu.units import Mib
from kube.client import KubeClient
from kube.errors import KubeError
from kube.events import EventRecorder
from kube.kinds import CONFIGMAPS, EVENTS, NAMESPACES
from kube.objects import decode_object
from process.clock import SystemClock
from tests.support.waiting import until, until_true
from webhook.admission_config import AdmissionConfig
from webhook.config_watcher import AdmissionConfigWatcher

SPACE = "fracgpu-system"


@asynccontextmanager
async def followed(
    kube: KubeClient,
    registry: CollectorRegistry,
    measured: Callable[[], Mapping[str, Mib] | None] = lambda: None,
) -> AsyncIterator[tuple[AdmissionConfigWatcher, list[str]]]:
    changes: list[str] = []
    clock = SystemClock()
    rules = AdmissionConfigWatcher(
        kube,
        events=EventRecorder(kube, "fracgpu-webhook", clock),
        metrics=ConfigMetrics("webhook", registry),
        namespace=SPACE,
        base=AdmissionConfig(scheduler_name="mine"),
        on_change=lambda: changes.append("changed"),
        measured=measured,
    )
    with suppress(KubeError):  # a test may have made it
        await kube.create(NAMESPACES, {"metadata": {"name": SPACE}})
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for run in rules.tasks.values()]
        try:
            await until_true(lambda: rules.problem() is None, what="the ConfigMap was looked for")
            yield rules, changes
        finally:
            for task in tasks:
                task.cancel()


def a_config_map(text: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "fracgpu-config", "namespace": SPACE},
        "data": {"admission": text},
    }


async def until_noted(kube: KubeClient, *notes: str) -> None:
    async def noted() -> bool:
        listing = await kube.list(EVENTS, namespace=SPACE)
        return [decode_object(raw)["message"] for raw in listing.items] == list(notes)

    await until(noted, what=f"events tell {notes}")


async def test_without_a_config_map_the_rules_of_the_command_line_hold(kube: KubeClient) -> None:
    async with followed(kube, CollectorRegistry()) as (rules, _):
        assert rules.config.value == AdmissionConfig(scheduler_name="mine")


async def test_a_misspelt_key_of_the_config_map_makes_an_event_and_a_metric(
    kube: KubeClient,
) -> None:
    registry = CollectorRegistry()
    async with followed(kube, registry) as (rules, _):
        body = a_config_map("voidOthers: false")
        body["data"] |= {"placment": "strategy: pack", "node": "headroomMib: 512"}
        await kube.create(CONFIGMAPS, body)

        await until_noted(
            kube,
            "node is not a key here; placment is not a key here; did you mean placement?; "
            "want only admission, placement, pools, rebalancer, wiring",
        )
        assert rules.config.value.void_others is False, "the keys that are right count"
        assert registry.get_sample_value("fracgpu_webhook_config_refused_total") == 1
        assert registry.get_sample_value("fracgpu_webhook_config_valid") == 0

        mended = {"data": {"placment": None, "node": None}}
        await kube.patch(CONFIGMAPS, "fracgpu-config", mended, namespace=SPACE)

        async def valid() -> bool:
            return registry.get_sample_value("fracgpu_webhook_config_valid") == 1

        await until(valid, what="without them all is in use")


POOLS = "a30: {models: A30, mib: 24000, pools: [{name: a30, cards: 1}]}"


async def test_a_catalogue_that_promises_too_much_is_refused_and_the_last_good_one_stays(
    kube: KubeClient,
) -> None:
    registry = CollectorRegistry()
    async with followed(kube, registry, lambda: {"A30": Mib(23_920)}) as (rules, changes):
        good = {**a_config_map(""), "data": {"pools": POOLS.replace("24000", "23920")}}
        await kube.create(CONFIGMAPS, good)
        await until_true(lambda: bool(rules.pools.value), what="the catalogue counts")
        before = rules.pools.value
        assert changes == ["changed"]

        bad = {"data": {"pools": POOLS}}
        await kube.patch(CONFIGMAPS, "fracgpu-config", bad, namespace=SPACE)

        await until_noted(
            kube,
            "key pools is not in use, the last good one is: a30.mib is 24000, but a card A30 "
            "shares 23920 MiB; want at most 23920, so that what is granted before a node exists "
            "fits on it",
        )
        assert rules.pools.value is before
        assert registry.get_sample_value("fracgpu_webhook_config_valid") == 0


async def test_a_card_that_comes_with_less_than_the_catalogue_promises_is_reported(
    kube: KubeClient,
) -> None:
    registry = CollectorRegistry()
    measured: dict[str, Mib] = {}
    await kube.create(NAMESPACES, {"metadata": {"name": SPACE}})
    await kube.create(CONFIGMAPS, {**a_config_map(""), "data": {"pools": POOLS}})
    async with followed(kube, registry, lambda: measured) as (rules, _):
        rules.compare_pools()
        assert registry.get_sample_value("fracgpu_webhook_config_valid") == 1

        measured["A30"] = Mib(23_920)
        rules.compare_pools()
        rules.compare_pools()

        await until_noted(
            kube,
            "key pools is in use, but a30.mib is 24000, but a card A30 shares 23920 MiB; want at "
            "most 23920, so that what is granted before a node exists fits on it",
        )
        assert rules.pools.value
        assert registry.get_sample_value("fracgpu_webhook_config_valid") == 0

        measured.clear()
        rules.compare_pools()
        assert registry.get_sample_value("fracgpu_webhook_config_valid") == 1


async def test_what_the_config_map_has_at_the_start_is_used_whatever_was_measured_first(
    kube: KubeClient,
) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": SPACE}})
    await kube.create(CONFIGMAPS, {**a_config_map(""), "data": {"pools": POOLS}})
    async with followed(kube, CollectorRegistry(), lambda: {"A30": Mib(80)}) as (rules, _):
        assert rules.pools.value
