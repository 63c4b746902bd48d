"""A registry without HTTP, and objects as these tests write them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulator.apiserver.apimachinery import resources
from simulator.apiserver.apimachinery.request_info import Context, Target
from simulator.apiserver.apimachinery.storage import Store
from simulator.apiserver.registry.registry import Registry
from simulator.objects import thaw
from tests.fakes.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.apiserver.apimachinery.errors import StatusCause
    from simulator.apiserver.apimachinery.request_info import Attributes
    from simulator.apiserver.apimachinery.resources import Resource
    from simulator.objects import Json


class Consent:
    """An admission that allows everything and records its requests."""

    def __init__(self) -> None:
        self.asked: list[Attributes] = []

    async def mutate(self, attributes: Attributes) -> Json:
        self._keep(attributes)
        return attributes.value or {}

    async def validate(self, attributes: Attributes) -> None:
        self._keep(attributes)

    def _keep(self, attributes: Attributes) -> None:
        # A webhook is sent a copy; the object itself goes on to change.
        value = thaw(attributes.value) if attributes.value is not None else None
        self.asked.append(replace(attributes, value=value))

    def check(self, resource: Resource, value: Json) -> Sequence[StatusCause]:
        return ()


class Harness:
    """A registry with namespace ``default``, its clock, and shortcuts to use it."""

    def __init__(self, *, seed: int = 1) -> None:
        self.clock = VirtualClock()
        self.admission = Consent()
        self.store = Store()
        rng = random.Random(seed)  # noqa: S311
        self.registry = Registry(self.store, self.admission, self.clock, rng)

    async def start(self) -> Harness:
        await self.create(resources.NAMESPACES, {"metadata": {"name": "default"}})
        self.admission.asked.clear()
        return self

    async def create(self, resource: Resource, value: Json) -> Json:
        return await self.registry.create(at(resource), value, Context())

    async def pod(self, name: str = "a", **spec: Any) -> Json:
        return await self.create(resources.PODS, a_pod(name, **spec))

    async def delete(self, resource: Resource, name: str, **options: Any) -> tuple[Json, bool]:
        return await self.registry.delete(at(resource, name), Context(options=options))

    def get(self, resource: Resource, name: str) -> Json:
        return self.registry.get(at(resource, name)).object


def at(resource: Resource, name: str = "", subresource: str = "") -> Target:
    namespace = "default" if resource.namespaced else ""
    return Target(resource=resource, namespace=namespace, name=name, subresource=subresource)


def a_pod(name: str = "a", **spec: Any) -> Json:
    container = {"name": "main", "image": "registry.example/app:1"}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
