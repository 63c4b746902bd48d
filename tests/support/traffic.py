"""Steady requests to a webhook from clients that trust only the CA in its configuration."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from certs.authority import read
from kube.client import KubeClient
from kube.kinds import MUTATING_WEBHOOKS
from tests.certs.tls_harness import served, trusting
from tests.certs.webhooks import bundles
from tests.support.waiting import until_true
from tests.webhook.builders import a_pod, a_review

_PAUSE_S: Final = 0.02
_REVIEW: Final = json.dumps(a_review(a_pod(memory="1Gi"), namespace="default")).encode()


@dataclass
class Traffic:
    """The requests, their answers, and the certificates.

    Attributes:
        url: of the webhook.
        answered: requests with a response, by kind of client.
        failures: error texts; a denied request is a failure too.
        leaves: fingerprints of the certificates that new connections were shown.
        issuers: who signed those.
        longest_s: duration of the longest request, in seconds.
    """

    url: str
    trust: ssl.SSLContext | None = None
    answered: dict[str, int] = field(default_factory=lambda: {"kept": 0, "new": 0})
    failures: list[str] = field(default_factory=list)
    leaves: set[str] = field(default_factory=set)
    issuers: set[str] = field(default_factory=set)
    longest_s: float = 0.0
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def kept(self) -> None:
        """One client whose connection outlives the certificate with which it began."""
        connector = aiohttp.TCPConnector(limit=1, ssl=self._context())
        async with aiohttp.ClientSession(connector=connector) as session:
            while not self.stopped.is_set():
                await self._ask(session, "kept")

    async def new(self) -> None:
        """One client with a new connection, and so a handshake, for each request."""
        while not self.stopped.is_set():
            connector = aiohttp.TCPConnector(force_close=True, ssl=self._context())
            async with aiohttp.ClientSession(connector=connector) as session:
                await self._ask(session, "new")

    async def _ask(self, session: aiohttp.ClientSession, kind: str) -> None:
        began_s = time.perf_counter()
        try:
            async with session.post(self.url, data=_REVIEW) as response:
                answer = json.loads(await response.read())
            if response.status == 200 and answer["response"]["allowed"]:
                self.answered[kind] += 1
            else:
                self.failures.append(f"{kind}: {response.status} {answer}")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self.failures.append(f"{kind}: {error!r}")
        self.longest_s = max(self.longest_s, time.perf_counter() - began_s)
        await asyncio.sleep(_PAUSE_S)

    async def look_at_certificates(self) -> None:
        """Record the certificate of a new connection, several times a second."""
        while True:
            shown = await served(self.url.removesuffix("/mutate"))
            facts = read(ssl.DER_cert_to_PEM_cert(shown).encode())
            self.leaves.add(facts.fingerprint)
            self.issuers.add(facts.issuer_key_id)
            await asyncio.sleep(0.2)

    def _context(self) -> ssl.SSLContext:
        assert self.trust is not None, "start callers only once there is something to trust"
        return self.trust

    async def keep_trusting(self, kube: KubeClient) -> None:
        """Trust the CA in the configuration, as an API server that watches it does."""
        known: bytes | None = None
        while True:
            bundle = (await bundles(kube, MUTATING_WEBHOOKS))[0]
            if bundle and bundle != known:
                known, self.trust = bundle, trusting(bundle)
            await asyncio.sleep(0.1)

    @property
    def figures(self) -> str:
        return (
            f"{self.answered['kept']} requests over open connections and {self.answered['new']} "
            f"over new ones, {len(self.failures)} failed; {len(self.leaves)} certificates of "
            f"{len(self.issuers)} authorities were served; the longest took "
            f"{self.longest_s * 1000:.0f} ms"
        )


@asynccontextmanager
async def flowing(traffic: Traffic, kube: KubeClient) -> AsyncIterator[None]:
    """Run one client with an open connection and two with new ones, all sending requests."""
    callers: Sequence[Any] = (traffic.kept, traffic.new, traffic.new)
    async with asyncio.TaskGroup() as group:
        trusting_on = group.create_task(traffic.keep_trusting(kube), name="trust")
        await until_true(lambda: traffic.trust is not None, what="a bundle to trust")
        looking = group.create_task(traffic.look_at_certificates(), name="look")
        asking = [group.create_task(caller(), name="caller") for caller in callers]
        try:
            yield
        finally:
            traffic.stopped.set()
            await asyncio.wait(asking)
            trusting_on.cancel()
            looking.cancel()
