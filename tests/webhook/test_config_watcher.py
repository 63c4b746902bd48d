import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from component.metrics import ConfigMetrics
from kube.client import KubeClient
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
    kube: KubeClient, registry: CollectorRegistry
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
    )
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


async def test_an_edit_counts_and_a_bad_one_keeps_the_last_good_rules_and_is_told(
    kube: KubeClient,
) -> None:
    registry = CollectorRegistry()
    async with followed(kube, registry) as (rules, changes):
        await kube.create(CONFIGMAPS, a_config_map("voidOthers: false"))
        await until_true(lambda: not rules.config.value.void_others, what="the edit counts")
        assert (rules.config.value.scheduler_name, changes) == ("mine", ["changed"])

        bad = {"data": {"admission": "voidOther: true"}}
        await kube.patch(CONFIGMAPS, "fracgpu-config", bad, namespace=SPACE)

        await until_noted(
            kube,
            "key admission is not in use, the last good one is: voidOther is not a key here; "
            "did you mean voidOthers?",
        )
        assert rules.config.value.void_others is False
        assert registry.get_sample_value("fracgpu_webhook_config_refused_total") == 1
        assert registry.get_sample_value("fracgpu_webhook_config_valid") == 0

        good = {"data": {"admission": ""}}
        await kube.patch(CONFIGMAPS, "fracgpu-config", good, namespace=SPACE)
        await until_true(lambda: rules.config.value.void_others, what="the good edit counts")
        assert registry.get_sample_value("fracgpu_webhook_config_valid") == 1


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
            "want only admission, placement, pools, rebalancer",
        )
        assert rules.config.value.void_others is False, "the keys that are right count"
        assert registry.get_sample_value("fracgpu_webhook_config_refused_total") == 1
        assert registry.get_sample_value("fracgpu_webhook_config_valid") == 0

        mended = {"data": {"placment": None, "node": None}}
        await kube.patch(CONFIGMAPS, "fracgpu-config", mended, namespace=SPACE)

        async def valid() -> bool:
            return registry.get_sample_value("fracgpu_webhook_config_valid") == 1

        await until(valid, what="without them all is in use")
