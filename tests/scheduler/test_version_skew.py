"""The version skew between the kube-scheduler in the pod and the API server."""

import asyncio
import json
from typing import Any

from kube.errors import Unavailable
from kube.kinds import PODS, Kind
from scheduler.version_skew import VersionSkewCheck
from tests.fakes.clock import VirtualClock


class Server:
    """An API server of one version, and the one pod in it; its first answer may be lost."""

    def __init__(self, version: str, image: str, *, silent: int = 0) -> None:
        self.version, self.image, self.silent = version, image, silent

    async def get_path(self, path: str) -> bytes:
        assert path == "/version"
        if self.silent:
            self.silent -= 1
            raise Unavailable(verb="GET", path=path, status=None, reason="Timeout", message="-")
        return json.dumps({"gitVersion": self.version}).encode()

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        assert (kind, name, namespace) == (PODS, "me", "fracgpu-system")
        images = ("fracgpu:0.1.0", self.image)
        return {"spec": {"containers": [{"name": image, "image": image} for image in images]}}


async def checked(server: Server, *, wait_s: float = 0) -> tuple[str | None, list[int]]:
    known: list[int] = []
    clock = VirtualClock()
    skew = VersionSkewCheck(
        server, clock, namespace="fracgpu-system", pod="me", on_known=known.append
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(skew.run(), name="skew")
        await clock.wait_for_sleepers(1)
        if wait_s:
            await clock.advance(wait_s)
            await clock.wait_for_sleepers(1)
        task.cancel()
    return skew.problem(), known


async def test_one_that_is_too_new_is_a_reason_not_to_be_ready() -> None:
    problem, known = await checked(Server("v1.33.1", "registry.k8s.io/kube-scheduler:v1.36.2"))

    assert problem is not None
    assert "newer than the API server" in problem
    assert known == [3]


async def test_one_that_fits_or_cannot_be_told_is_none() -> None:
    assert await checked(Server("v1.36.0", "x/kube-scheduler:v1.35.1")) == (None, [-1])
    assert await checked(Server("v1.36.0", "x/kube-scheduler:v1.30.1")) == (None, [-6])
    assert await checked(Server("v1.36.0", "x/kube-scheduler:mine")) == (None, [])


async def test_a_silent_api_server_is_asked_again() -> None:
    server = Server("v1.36.0", "x/kube-scheduler:v1.36.1", silent=1)

    assert await checked(server, wait_s=30) == (None, [0])
