"""Refused edits of a ConfigMap, reported as Events on it."""

from component.refused_config import RefusedConfigReporter
from kube.client import KubeClient
from kube.events import EventRecorder
from kube.kinds import EVENTS, NAMESPACES
from kube.objects import decode_object
from process.clock import SystemClock
from simulator.background import background
from tests.support.waiting import until

SPACE = "fracgpu-system"


async def test_each_reason_becomes_a_warning_on_the_config_map(kube: KubeClient) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": SPACE}})
    events = EventRecorder(kube, "fracgpu-scheduler", SystemClock())
    refused = RefusedConfigReporter(events, name="fracgpu-config", namespace=SPACE)
    refused.key("placement", "strategy is 3")
    async with background(refused.run()):
        refused.note("colour is not a key here")

        async def notes() -> list[tuple[str, ...]]:
            found = [
                decode_object(body) for body in (await kube.list(EVENTS, namespace=SPACE)).items
            ]
            fields = ("type", "reason", "message")
            return sorted(
                (event["involvedObject"]["name"], *(event[field] for field in fields))
                for event in found
            )

        async def both() -> bool:
            return len(await notes()) > 1

        await until(both, what="both are notes")
    assert await notes() == [
        ("fracgpu-config", "Warning", "ConfigRefused", note)
        for note in (
            "colour is not a key here",
            "key placement is not in use, the last good one is: strategy is 3",
        )
    ]
