"""A webhook that delays a Binding between admission and the API server's transaction."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kube.client import KubeClient
from kube.kinds import VALIDATING_WEBHOOKS
from tests.support.webhook import an_admission_webhook


class StallingWebhook:
    """A validating webhook for Bindings that delays one pod's review until released.

    Validating webhooks are called after every ValidatingAdmissionPolicy has passed (Source:
    pkg/kubeapiserver/options/plugins.go, AllOrderedPlugins).
    """

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self.asked = asyncio.Event()
        self._go_on = asyncio.Event()

    def release(self) -> None:
        self._go_on.set()

    async def review(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["name"] == self._pod:
            self.asked.set()
            await self._go_on.wait()
        return {"allowed": True}


@asynccontextmanager
async def stalling_webhook(client: KubeClient, pod: str) -> AsyncIterator[StallingWebhook]:
    """Serve and register one; the API server waits for 30 s."""
    stalling = StallingWebhook(pod)
    async with an_admission_webhook() as served:
        served.answer = stalling.review
        body = served.configuration("stall", "pods/binding")
        await client.create(VALIDATING_WEBHOOKS, body)
        try:
            yield stalling
        finally:
            stalling.release()
            await client.delete(VALIDATING_WEBHOOKS, "stall")
