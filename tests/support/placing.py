"""Users who keep creating pods, each of which must soon have a card."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from fracgpu import names
from kube.client import KubeClient
from kube.kinds import PODS
from kube.objects import decode_object
from tests.support.gpu import a_gpu_pod
from tests.support.waiting import until_true

PAUSE_S: Final = 0.5
TIMEOUT_S: Final = 60.0  # the promise: no pod waits longer


@dataclass
class Users:
    """Create pods, measure how long each waits for its card, and delete them."""

    client: KubeClient
    scheduler: str = names.SCHEDULER_NAME
    waited_s: dict[str, float] = field(default_factory=dict)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _created_s: dict[str, float] = field(default_factory=dict)

    async def create(self) -> None:
        for number in range(10_000):
            if self.stopped.is_set():
                return
            name = f"user-{number}"
            await self.client.create(PODS, a_gpu_pod(name, mib=1_000, schedulerName=self.scheduler))
            self._created_s[name] = time.monotonic()
            await asyncio.sleep(PAUSE_S)

    async def look(self) -> None:
        while not (self.stopped.is_set() and not self._created_s):
            listed = await self.client.list(PODS, namespace="default")
            for body in map(decode_object, listed.items):
                name = body["metadata"]["name"]
                if not body["spec"].get("nodeName") or name not in self._created_s:
                    continue
                assert names.ASSIGNMENT in body["metadata"]["annotations"], name
                self.waited_s[name] = time.monotonic() - self._created_s.pop(name)
                await self.client.delete(PODS, name, namespace="default", grace_s=0)
            await asyncio.sleep(0.1)

    async def until_placed(self, more: int) -> None:
        """Wait until *more* pods than now have been placed."""
        wanted = len(self.waited_s) + more
        await until_true(
            lambda: len(self.waited_s) >= wanted, what=f"{more} more pods placed", limit_s=90
        )

    async def finish(self) -> None:
        """Stop creating pods, and wait until none waits any more."""
        self.stopped.set()
        await until_true(
            lambda: not self._created_s, what="every pod has its card", limit_s=2 * TIMEOUT_S
        )

    @property
    def figures(self) -> str:
        return f"{len(self.waited_s)} pods placed, the longest waited {self.longest_s:.1f} s"

    @property
    def longest_s(self) -> float:
        return max(self.waited_s.values())


@asynccontextmanager
async def users(
    client: KubeClient, *, scheduler: str = names.SCHEDULER_NAME
) -> AsyncIterator[Users]:
    """Run the users until the block ends."""
    applicants = Users(client=client, scheduler=scheduler)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(applicants.create(), name="create"),
            group.create_task(applicants.look(), name="look"),
        ]
        try:
            yield applicants
        finally:
            for task in tasks:
                task.cancel()
