from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from simulator.apiserver.apimachinery.errors import ApiError
from simulator.apiserver.apimachinery.request_info import Context, Operation
from simulator.apiserver.apimachinery.resources import (
    CONFIGMAPS,
    PODS,
)
from tests.simulator.harness import Harness, a_pod, at

if TYPE_CHECKING:
    from simulator.objects import Json


async def test_admission_sees_no_name_where_the_server_will_make_one(
    registry_harness: Harness,
) -> None:
    pod = {"metadata": {"generateName": "a-"}, "spec": a_pod()["spec"]}
    await registry_harness.create(PODS, pod)

    mutating, validating = registry_harness.admission.asked
    assert mutating.target.name == ""
    assert mutating.value is not None
    assert "uid" not in mutating.value["metadata"]
    assert validating.value is not None
    assert validating.value["metadata"]["name"].startswith("a-")


class Intruder:
    """An admission during which another client writes the object, a number of times."""

    def __init__(self, harness: Harness, times: int) -> None:
        self._harness = harness
        self._times = times

    async def mutate(self, attributes: Any) -> Json:
        if attributes.operation is Operation.UPDATE and self._times:
            self._times -= 1
            current = self._harness.registry.get(attributes.target)
            value = {**current.object, "data": {"by": f"intruder {self._times}"}}
            value["metadata"] = dict(value["metadata"])
            self._harness.store.write(attributes.target.key, value, expected=current.revision)
        value = attributes.value
        assert value is not None
        return dict(value)

    async def validate(self, attributes: Any) -> None:
        return None

    def check(self, resource: Any, value: Json) -> tuple[()]:
        return ()


@pytest.mark.parametrize(("races", "wins"), [(1, True), (4, True), (5, False)])
async def test_a_patch_that_loses_a_race_is_repeated_a_few_times(
    registry_harness: Harness, races: int, wins: bool
) -> None:
    await registry_harness.create(CONFIGMAPS, {"metadata": {"name": "c"}})
    registry_harness.registry.admission = Intruder(registry_harness, races)  # type: ignore[misc]

    def patch(value: Json) -> Json:
        value["data"] = {**value.get("data", {}), "mine": "1"}
        value["metadata"].pop("resourceVersion")
        return value

    if wins:
        after = await registry_harness.registry.update(at(CONFIGMAPS, "c"), patch, Context())
        assert after["data"] == {"by": "intruder 0", "mine": "1"}
    else:
        with pytest.raises(ApiError, match="the object has been modified"):
            await registry_harness.registry.update(at(CONFIGMAPS, "c"), patch, Context())


async def test_a_pod_on_a_node_gets_its_grace(registry_harness: Harness) -> None:
    await registry_harness.pod(nodeName="n1", terminationGracePeriodSeconds=20)

    value, gone = await registry_harness.delete(PODS, "a")
    assert not gone
    assert value["metadata"]["deletionGracePeriodSeconds"] == 20
    assert value["metadata"]["deletionTimestamp"] == "2026-01-05T12:00:20Z"

    value, gone = await registry_harness.delete(PODS, "a", gracePeriodSeconds=60)
    assert value["metadata"]["deletionGracePeriodSeconds"] == 20
    value, gone = await registry_harness.delete(PODS, "a", gracePeriodSeconds=5)
    assert value["metadata"]["deletionTimestamp"] == "2026-01-05T12:00:05Z"
    value, gone = await registry_harness.delete(PODS, "a", gracePeriodSeconds=0)
    assert gone
    with pytest.raises(ApiError, match='pods "a" not found'):
        registry_harness.get(PODS, "a")
