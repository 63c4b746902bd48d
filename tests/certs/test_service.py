import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from certs.authority import read
from certs.loop import Leaf, Purpose
from certs.service import build, wanted_of
from certs.settings import CertsSettings
from kube.client import KubeClient
from kube.informer import Change, ChangeType, Informer
from kube.kinds import MUTATING_WEBHOOKS, SECRETS
from process.clock import SystemClock
from process.lifecycle import run_until_stopped
from process.tls import ServingTls, read_secret
from simulator.apiserver import ApiServer
from tests.certs.tls_world import https, trusting
from tests.certs.webhooks import a_webhook, apply, bundles
from tests.support.waiting import until, until_true

NAMESPACE = "fracgpu-system"


def test_a_service_is_called_by_its_cluster_names_and_by_the_extra_ones() -> None:
    settings = CertsSettings(
        services=("hook",), clients=("Caller",), extra_names=("127.0.0.1", "HOST", "0::1")
    )

    assert wanted_of(settings).leaves == {
        "hook-tls": Leaf(
            purpose=Purpose.SERVE,
            names=(
                "hook.fracgpu-system.svc",
                "hook.fracgpu-system.svc.cluster.local",
                "hook.fracgpu-system",
                "hook",
                "127.0.0.1",
                "host",
                "::1",
            ),
        ),
        "Caller-client": Leaf(purpose=Purpose.CALL, names=("caller",)),
    }


def test_both_kinds_of_webhook_configurations_get_the_bundle() -> None:
    targets = wanted_of(CertsSettings(webhook_configurations=("one", "two"))).targets

    assert [str(target) for target in targets] == [
        "MutatingWebhookConfiguration/one",
        "ValidatingWebhookConfiguration/one",
        "MutatingWebhookConfiguration/two",
        "ValidatingWebhookConfiguration/two",
    ]


@asynccontextmanager
async def running(settings: CertsSettings) -> AsyncIterator[None]:
    """The role as ``fracgpu run certs`` runs it, in this process."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        run = group.create_task(run_until_stopped(build(settings), SystemClock(), stop=stop))
        try:
            yield
        finally:
            stop.set()
    assert run.result() == 0


def settings(api: ApiServer, folder: Path, **changed: float) -> CertsSettings:
    return CertsSettings(
        kubeconfig=str(api.kubeconfig(folder / "kubeconfig")),
        telemetry_host="127.0.0.1",
        telemetry_port=0,
        services=("fracgpu-webhook",),
        clients=(),
        extra_names=("127.0.0.1",),
        **changed,  # type: ignore[arg-type]
    )


async def test_the_role_acts_on_what_appears_while_it_runs(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    async with running(settings(api, tmp_path)):
        await until(lambda: exists(kube), what="the serving Secret")
        await apply(kube, MUTATING_WEBHOOKS, a_webhook("a.example.org"))
        await until(lambda: injected(kube), what="the bundle in the new configuration")
        await kube.delete(SECRETS, "fracgpu-webhook-tls", namespace=NAMESPACE)
        await until(lambda: exists(kube), what="the Secret again")


async def test_without_a_usable_kubeconfig_the_role_ends_with_one(tmp_path: Path) -> None:
    settings = CertsSettings(kubeconfig=str(tmp_path / "none"), telemetry_port=0)

    assert await run_until_stopped(build(settings), SystemClock()) == 1


@dataclass
class Traffic:
    """Callers that trust only what the webhook configuration says, as the API server does."""

    url: str
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    trust: ssl.SSLContext | None = None
    answered: int = 0
    failures: list[str] = field(default_factory=list)

    async def keep_alive(self) -> None:
        """One connection for all requests; it outlives the certificate it began with."""
        connector = aiohttp.TCPConnector(limit=1, ssl=self.trust or False)
        async with aiohttp.ClientSession(connector=connector) as session:
            await self._ask_until_stopped(session)

    async def newcomers(self) -> None:
        """A new connection, and so a handshake, for each request."""
        while not self.stop.is_set():
            connector = aiohttp.TCPConnector(force_close=True, ssl=self.trust or False)
            async with aiohttp.ClientSession(connector=connector) as session:
                await self._ask(session)

    async def _ask_until_stopped(self, session: aiohttp.ClientSession) -> None:
        while not self.stop.is_set():
            await self._ask(session)

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        try:
            async with session.get(self.url) as response:
                assert await response.text() == "ok"
                self.answered += 1
        except aiohttp.ClientError as error:
            self.failures.append(repr(error))
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_authority_and_leaf_are_rotated_twice_under_traffic_without_one_failed_request(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    await apply(kube, MUTATING_WEBHOOKS, a_webhook("a.example.org"))
    tls = ServingTls()
    authorities: set[str] = set()
    leaves: set[str] = set()

    def on_secret(change: Change[dict[str, bytes]]) -> None:
        if change.type is not ChangeType.DELETED:
            tls.apply_secret(change.object)
            leaf = read(change.object["tls.crt"])
            leaves.add(leaf.fingerprint)
            authorities.add(leaf.issuer_key_id)

    follow = Informer(
        kube, SECRETS, decode=read_secret, namespace=NAMESPACE,
        field_selector="metadata.name=fracgpu-webhook-tls", on_change=on_secret,
    )  # fmt: skip
    short = settings(api, tmp_path, ca_life_s=6, serving_life_s=4, overlap_s=1)
    async with https(tls) as url, running(short), asyncio.TaskGroup() as group:
        following = group.create_task(follow.run())
        await until_true(lambda: tls.loaded, what="a first certificate")
        traffic = Traffic(url=url)
        trusting_it = group.create_task(keep_trusting(kube, traffic))
        await until_true(lambda: traffic.trust is not None, what="a bundle to trust")
        callers = [group.create_task(traffic.keep_alive())]
        callers += [group.create_task(traffic.newcomers()) for _ in range(2)]

        await until_true(lambda: len(authorities) >= 3, what="two rotations", limit_s=60)
        traffic.stop.set()
        await asyncio.wait(callers)
        following.cancel()
        trusting_it.cancel()

    assert traffic.failures == []
    assert traffic.answered > 100
    assert len(leaves) > len(authorities)


async def keep_trusting(kube: KubeClient, traffic: Traffic) -> None:
    """Trust what the configuration says, half a second late."""
    while True:
        (bundle,) = await bundles(kube, MUTATING_WEBHOOKS)
        if bundle is not None:
            if traffic.trust is not None:
                await asyncio.sleep(0.5)
            traffic.trust = trusting(bundle)
        await asyncio.sleep(0.05)


async def exists(kube: KubeClient) -> bool:
    listed = await kube.list(SECRETS, namespace=NAMESPACE)
    return len(listed.items) == 2


async def injected(kube: KubeClient) -> bool:
    return await bundles(kube, MUTATING_WEBHOOKS) != [None]
