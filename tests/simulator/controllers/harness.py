"""Owners as tests write them, and a namespace in which their pods become ready, fail or end."""

from collections.abc import Callable
from typing import Any

from kube.client import KubeClient
from kube.errors import NotFound
from kube.kinds import PODS, Kind
from simulator.objects import Json, decode
from tests.support.waiting import until

READY = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


def an_owner(name: str, *, replicas: int, **spec: Any) -> Json:
    """Return a Deployment, ReplicaSet or StatefulSet over pods labelled ``app=a``."""
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "a"}},
            "template": a_template("a"),
            **spec,
        },
    }


def a_template(app: str, **spec: Any) -> Json:
    container = {"name": "main", "image": "registry.example/app:1"}
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container], **spec}}


class Harness:
    """One namespace of a cluster whose kubelets are played by the test."""

    def __init__(self, kube: KubeClient, namespace: str = "default") -> None:
        self.kube = kube
        self.namespace = namespace

    async def pods(self) -> list[Json]:
        listed = await self.kube.list(PODS, namespace=self.namespace)
        return [decode(bytes(raw)) for raw in listed.items]

    async def names(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in await self.pods()}

    async def get(self, kind: Kind, name: str) -> Json | None:
        try:
            return await self.kube.get_object(kind, name, namespace=self.namespace)
        except NotFound:
            return None

    async def wait_pods(self, holds: Callable[[list[Json]], bool], *, what: str) -> list[Json]:
        """Return the pods once *holds* is true of them."""
        found: list[Json] = []

        async def check() -> bool:
            found[:] = await self.pods()
            return holds(found)

        await until(check, what=what)
        return found

    async def wait_count(self, count: int) -> list[Json]:
        return await self.wait_pods(lambda pods: len(pods) == count, what=f"{count} pods")

    async def wait_object(
        self, kind: Kind, name: str, holds: Callable[[Json], bool], *, what: str
    ) -> Json:
        """Return the object once it exists and *holds* is true of it."""
        found: list[Json] = []

        async def check() -> bool:
            value = await self.get(kind, name)
            found[:] = [value] if value is not None else []
            return value is not None and holds(value)

        await until(check, what=what)
        return found[0]

    async def wait_status(self, kind: Kind, name: str, **wanted: Any) -> Json:
        """Wait until the object's status has these members (None: it is absent)."""
        return await self.wait_object(
            kind,
            name,
            lambda value: all((value.get("status") or {}).get(k) == w for k, w in wanted.items()),
            what=f"{kind.kind} {name} with status {wanted}",
        )

    async def set_status(self, name: str, status: Json = READY) -> None:
        await self.kube.patch(PODS, name, status, namespace=self.namespace, subresource="status")

    async def ready_all(self, count: int) -> list[Json]:
        """Wait for *count* pods and make all of them ready."""
        for pod in await self.wait_count(count):
            await self.set_status(pod["metadata"]["name"])
        return await self.pods()
