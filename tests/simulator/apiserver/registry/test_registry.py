"""What HTTP cannot show of the registry: what admission is given, and a race that is lost."""

import random
from dataclasses import replace
from typing import Any

import pytest

from simulator.apiserver.apimachinery.errors import ApiError
from simulator.apiserver.apimachinery.request_info import Attributes, Context, Operation
from simulator.apiserver.apimachinery.resources import CONFIGMAPS, NAMESPACES
from simulator.apiserver.apimachinery.storage import Store
from simulator.apiserver.registry.registry import Registry
from simulator.objects import Json, thaw
from tests.fakes.clock import VirtualClock
from tests.simulator.harness import at


class Admission:
    """Allows everything, keeps the requests, and writes the object meanwhile, a number of times."""

    def __init__(self, store: Store) -> None:
        self.asked: list[Attributes] = []
        self.intrusions = 0
        self._store = store

    async def mutate(self, attributes: Attributes) -> Json:
        if attributes.operation is Operation.UPDATE and self.intrusions:
            self.intrusions -= 1
            current = self._store.get(attributes.target.key)
            assert current is not None
            value = {**thaw(current.object), "data": {"by": f"intruder {self.intrusions}"}}
            self._store.write(attributes.target.key, value, expected=current.revision)
        self._keep(attributes)
        return dict(attributes.value or {})

    async def validate(self, attributes: Attributes) -> None:
        self._keep(attributes)

    def _keep(self, attributes: Attributes) -> None:
        # A webhook is sent a copy; the object itself goes on to change.
        value = thaw(attributes.value) if attributes.value is not None else None
        self.asked.append(replace(attributes, value=value))

    def check(self, resource: Any, value: Json) -> tuple[()]:
        return ()


@pytest.fixture
async def registry() -> Registry:
    store = Store()
    made = Registry(store, Admission(store), VirtualClock(), random.Random(1))  # noqa: S311
    await made.create(at(NAMESPACES), {"metadata": {"name": "default"}}, Context())
    return made


def admission_of(registry: Registry) -> Admission:
    assert isinstance(registry.admission, Admission)
    return registry.admission


@pytest.mark.parametrize(("races", "wins"), [(1, True), (4, True), (5, False)])
async def test_a_patch_that_loses_a_race_is_repeated_a_few_times(
    registry: Registry, races: int, wins: bool
) -> None:
    await registry.create(at(CONFIGMAPS), {"metadata": {"name": "c"}}, Context())
    admission_of(registry).intrusions = races

    def patch(value: Json) -> Json:
        value["data"] = {**value.get("data", {}), "mine": "1"}
        value["metadata"].pop("resourceVersion")
        return value

    if wins:
        after = await registry.update(at(CONFIGMAPS, "c"), patch, Context())
        assert after["data"] == {"by": "intruder 0", "mine": "1"}
    else:
        with pytest.raises(ApiError, match="the object has been modified"):
            await registry.update(at(CONFIGMAPS, "c"), patch, Context())
