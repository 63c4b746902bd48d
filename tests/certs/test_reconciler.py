import asyncio
import base64
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from certs.authority import CertificateInfo, Pair, make_ca, read, read_pair, split
from certs.metrics import CertsMetrics
from certs.reconciler import DesiredCertificates, Leaf, Purpose, Reconciler
from certs.store import ROTATE_KEY, CertStore
from certs.trust.ca_injector import BundleTarget
from certs.work_loop import LookAgain, WorkLoop
from kube.client import KubeClient, PatchType
from kube.errors import Unavailable
from kube.kinds import MUTATING_WEBHOOKS, SECRETS
from kube.transport import ServerVersion
from process.telemetry import Registry, new_registry
from tests.certs.slices import WithReplicas
from tests.certs.tls_harness import https, serving
from tests.certs.tls_harness import now as real_now
from tests.certs.webhooks import BOTH, a_webhook, apply, bundles
from tests.fakes.clock import NOON, VirtualClock

NAMESPACE = "fracgpu-system"
CA, LEAF, CLIENT = "fracgpu-ca", "fracgpu-webhook-tls", "fracgpu-scheduler-client"
NAMES = ("fracgpu-webhook.fracgpu-system.svc", "127.0.0.1")
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
THEIRS = base64.b64encode(make_ca(name="theirs", now=NOON, life=DAY).cert_pem).decode()
WANTED = DesiredCertificates(
    ca_secret=CA,
    leaves={
        LEAF: Leaf(purpose=Purpose.SERVE, names=NAMES),
        CLIENT: Leaf(purpose=Purpose.CALL, names=("fracgpu-scheduler",)),
    },
    services=["fracgpu-webhook"],
    targets=[BundleTarget(kind=kind, name="fracgpu-webhook") for kind in BOTH],
    readers=["fracgpu-scheduler"],
    ca_life=30 * DAY,
    leaf_life=24 * DAY,
    overlap=MINUTE,
    grace=60 * MINUTE,
)


class Harness:
    """One or more reconcilers with one API server, on a virtual clock."""

    def __init__(self, kube: KubeClient, *, start: datetime = NOON) -> None:
        self.kube, self.clock, self.registry = kube, VirtualClock(start), new_registry()
        self.store = CertStore(kube, namespace=NAMESPACE)
        self.loop = self.another(registry=self.registry)

    def another(self, *, client: Any = None, registry: Registry | None = None) -> Reconciler:
        metrics = CertsMetrics(registry or new_registry(), self.clock)
        return Reconciler(
            client or self.kube, self.clock, namespace=NAMESPACE, desired=WANTED, metrics=metrics
        )

    async def settle(self, loop: Reconciler | None = None) -> timedelta:
        """Reconcile without pauses until there is nothing to do; return the next pause."""
        for _ in range(20):
            pause = await (loop or self.loop).run_once()
            if pause >= timedelta(seconds=10):
                return pause
        raise AssertionError("the loop does not come to rest")

    async def pair(self, name: str) -> Pair:
        stored = await self.store.read(name)
        assert stored is not None
        return Pair(cert_pem=stored.data["tls.crt"], key_pem=stored.data["tls.key"])

    async def facts(self, name: str) -> CertificateInfo:
        return read_pair(await self.pair(name))

    async def bundle(self, name: str) -> bytes:
        stored = await self.store.read(name)
        assert stored is not None
        return stored.data["ca.crt"]

    async def ask_for_another(self, name: str) -> None:
        fingerprint = (await self.facts(name)).fingerprint
        patch = {"metadata": {"annotations": {ROTATE_KEY: fingerprint}}}
        await self.kube.patch(SECRETS, name, patch, namespace=NAMESPACE)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
async def cluster(kube: KubeClient) -> Harness:
    for kind in BOTH:
        await apply(kube, kind, a_webhook("a.example.org"), a_webhook("b.example.org"))
    return Harness(kube)


async def test_from_nothing_all_that_is_wanted_is_made_and_trusted(cluster: Harness) -> None:
    at_first = cluster.loop.problem

    pause = await cluster.settle()

    ca, leaf = await cluster.facts(CA), await cluster.facts(LEAF)
    assert leaf.names == set(NAMES)
    assert leaf.issuer_key_id == ca.key_id
    ca_pem = (await cluster.pair(CA)).cert_pem
    assert await cluster.bundle(CA) == await cluster.bundle(LEAF) == ca_pem
    for kind in BOTH:
        assert await bundles(cluster.kube, kind) == [ca_pem, ca_pem]
    assert (at_first, cluster.loop.problem) == ("not reconciled yet", None)
    assert pause == timedelta(minutes=5)


async def test_what_is_as_wanted_is_not_written_again(cluster: Harness) -> None:
    await cluster.settle()
    before = [await cluster.kube.get(SECRETS, name, namespace=NAMESPACE) for name in (CA, LEAF)]

    await cluster.settle(cluster.another())

    after = [await cluster.kube.get(SECRETS, name, namespace=NAMESPACE) for name in (CA, LEAF)]
    assert after == before


async def test_several_loops_that_start_together_agree_on_one_authority(cluster: Harness) -> None:
    loops = [cluster.another() for _ in range(4)]

    async with asyncio.TaskGroup() as group:
        for loop in loops:
            group.create_task(cluster.settle(loop))

    ca, leaf = await cluster.facts(CA), await cluster.facts(LEAF)
    assert leaf.issuer_key_id == ca.key_id
    ca_pem = (await cluster.pair(CA)).cert_pem
    assert [await bundles(cluster.kube, kind) for kind in BOTH] == [[ca_pem, ca_pem]] * 2


async def test_a_bundle_that_somebody_overwrote_is_restored(cluster: Harness) -> None:
    await cluster.settle()
    ca_pem = (await cluster.pair(CA)).cert_pem
    vandal = [{"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": THEIRS}]
    await cluster.kube.patch(MUTATING_WEBHOOKS, "fracgpu-webhook", vandal, how=PatchType.JSON)

    await cluster.settle()

    assert await bundles(cluster.kube, MUTATING_WEBHOOKS) == [ca_pem, ca_pem]
    configuration = "MutatingWebhookConfiguration/fracgpu-webhook"
    assert cluster.metric("fracgpu_certs_injections_total", configuration=configuration) == 2


async def test_a_new_authority_is_trusted_everywhere_before_it_signs_and_the_old_until_it_ends(
    cluster: Harness,
) -> None:
    await cluster.settle()
    old_ca, old_leaf = await cluster.pair(CA), await cluster.pair(LEAF)
    await cluster.clock.advance((16 * DAY + MINUTE).total_seconds())
    await cluster.settle()
    old_leaf = await cluster.pair(LEAF)
    await cluster.clock.advance((4 * DAY).total_seconds())

    pause = await cluster.settle()

    new_ca = await cluster.pair(CA)
    both = new_ca.cert_pem + old_ca.cert_pem
    assert new_ca != old_ca
    assert [await bundles(cluster.kube, kind) for kind in BOTH] == [[both, both]] * 2
    assert await cluster.bundle(LEAF) == both
    assert await cluster.pair(LEAF) == old_leaf
    assert pause == MINUTE

    await cluster.clock.advance(pause.total_seconds())
    await cluster.settle()

    leaf = await cluster.facts(LEAF)
    assert leaf.issuer_key_id == read(new_ca.cert_pem).key_id
    assert await bundles(cluster.kube, MUTATING_WEBHOOKS) == [both, both]

    await cluster.clock.advance((10 * DAY).total_seconds())
    await cluster.settle()

    assert await bundles(cluster.kube, MUTATING_WEBHOOKS) == [new_ca.cert_pem, new_ca.cert_pem]


async def test_an_authority_is_retired_once_every_replica_serves_what_its_successor_signed(
    kube: KubeClient,
) -> None:
    cluster = Harness(kube, start=real_now())
    client = WithReplicas(kube, {})
    cluster.registry = new_registry()
    loop = cluster.another(client=client, registry=cluster.registry)
    await cluster.settle(loop)
    await cluster.ask_for_another(CA)
    old_leaf = await cluster.pair(LEAF)
    await cluster.settle(loop)
    await cluster.clock.advance(61)
    await cluster.settle(loop)
    assert client.urls is not None

    async with https(serving(await cluster.pair(LEAF))) as url:
        client.urls["fracgpu-webhook"] = [url]
        await cluster.settle(loop)
        in_grace = split(await cluster.bundle(CA))
    await cluster.clock.advance(3600)
    async with https(serving(old_leaf)) as url:
        client.urls["fracgpu-webhook"] = [url]
        pause = await cluster.settle(loop)
        while_one_is_late = split(await cluster.bundle(CA))
    async with https(serving(await cluster.pair(LEAF))) as url:
        client.urls["fracgpu-webhook"] = [url]
        await cluster.settle(loop)

    assert (len(in_grace), len(while_one_is_late), pause.total_seconds()) == (2, 2, 10)
    assert (
        await cluster.bundle(CA) == await cluster.bundle(LEAF) == (await cluster.pair(CA)).cert_pem
    )
    assert cluster.metric("fracgpu_certs_trusted_authorities") == 1


@pytest.mark.parametrize("damage", [{"tls.key": "bm8="}, {"tls.crt": "bm8="}, {"tls.crt": None}])
@pytest.mark.parametrize("name", [CA, LEAF])
async def test_a_secret_that_somebody_damaged_is_made_anew(
    cluster: Harness, name: str, damage: dict[str, str | None]
) -> None:
    await cluster.settle()
    await cluster.kube.patch(SECRETS, name, {"data": damage}, namespace=NAMESPACE)

    await cluster.settle()

    ca, leaf = await cluster.facts(CA), await cluster.facts(LEAF)
    await cluster.clock.advance(61)
    await cluster.settle()
    leaf = await cluster.facts(LEAF)
    assert leaf.issuer_key_id == ca.key_id
    assert ca.fingerprint in {read(pem).fingerprint for pem in split(await cluster.bundle(LEAF))}


async def test_a_bundle_of_nonsense_is_replaced_by_one_that_trusts_the_authority(
    cluster: Harness,
) -> None:
    await cluster.settle()
    ca_pem = (await cluster.pair(CA)).cert_pem
    patch = {"data": {"ca.crt": "bm8="}}
    await cluster.kube.patch(SECRETS, CA, patch, namespace=NAMESPACE)

    await cluster.settle()

    assert await cluster.bundle(CA) == ca_pem
    assert (await cluster.pair(CA)).cert_pem == ca_pem


async def test_the_loop_looks_when_told_and_when_something_is_due(cluster: Harness) -> None:
    await cluster.settle()
    # It looks each minute: no more of them than are needed.
    await cluster.clock.advance((16 * DAY).total_seconds() - 1800)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cluster.loop.run())
        await until_problem_free(cluster)
        before = await cluster.facts(LEAF)
        await cluster.clock.advance(900)
        assert await cluster.facts(LEAF) == before

        await cluster.clock.advance(1800)
        await until_changed(cluster, before)

        await cluster.kube.delete(SECRETS, LEAF, namespace=NAMESPACE)
        cluster.loop.wake()
        await until_stored(cluster, LEAF)
        running.cancel()


async def test_seconds_to_expiry_are_measured_at_each_scrape(cluster: Harness) -> None:
    await cluster.settle()

    now_s = cluster.metric("fracgpu_certs_expiry_seconds", certificate=LEAF)
    await cluster.clock.advance(DAY.total_seconds())
    later_s = cluster.metric("fracgpu_certs_expiry_seconds", certificate=LEAF)

    assert cluster.clock.now() == NOON + DAY
    assert now_s == (24 * DAY).total_seconds()
    assert later_s == (23 * DAY).total_seconds()


async def until_problem_free(cluster: Harness) -> None:
    await _wind_until(cluster, lambda: _is(cluster.loop.problem is None))


async def until_stored(cluster: Harness, name: str) -> None:
    await _wind_until(cluster, lambda: _stored(cluster, name))


async def until_changed(cluster: Harness, before: CertificateInfo) -> None:
    async def changed() -> bool:
        return await cluster.facts(LEAF) != before

    await _wind_until(cluster, changed)


async def _is(answer: bool) -> bool:
    return answer


async def _stored(cluster: Harness, name: str) -> bool:
    return await cluster.store.read(name) is not None


async def _wind_until(cluster: Harness, condition: Callable[[], Any]) -> None:
    """Let virtual seconds pass, as the loop's short pauses need, until *condition* holds."""
    async with asyncio.timeout(20):
        while not await condition():
            await cluster.clock.advance(1)


class Scripted(WorkLoop):
    """Does in each pass what the script says."""

    def __init__(
        self, *script: Exception | timedelta, server_ahead: timedelta | None = None
    ) -> None:
        self.clock, self.registry = VirtualClock(), new_registry()
        self.server_ahead = server_ahead

        async def server() -> ServerVersion:
            ahead = self.server_ahead
            return ServerVersion(
                git_version="", time=None if ahead is None else self.clock.now() + ahead
            )

        super().__init__(self.clock, CertsMetrics(self.registry, self.clock), server=server)
        self.script = list(script)
        self.times: list[datetime] = []

    async def _go_round(self, now: datetime) -> timedelta:
        self.times.append(now)
        act = self.script.pop(0)
        if isinstance(act, Exception):
            raise act
        self.problem = None
        return act


SILENCE = Unavailable(verb="GET", path="/x", status=None, reason="Timeout", message="silence")
HOUR = timedelta(hours=1)


async def test_after_a_write_it_looks_again_ever_more_patiently() -> None:
    loop = Scripted(*[LookAgain()] * 10, HOUR, LookAgain())

    pauses = [await loop.run_once() for _ in range(12)]

    seconds = [pause.total_seconds() for pause in pauses]
    assert seconds[:8] == [0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12]
    assert seconds[8:] == [5.12, 5.12, 3600, 0.04]


async def test_silence_of_the_api_server_is_a_problem_until_a_round_succeeds() -> None:
    loop = Scripted(SILENCE, HOUR)

    assert await loop.run_once() == timedelta(seconds=5)
    problem = loop.problem
    assert await loop.run_once() == HOUR

    assert (problem, loop.problem) == (str(SILENCE), None)
    failures = loop.registry.get_sample_value("fracgpu_certs_failures_total", {"reason": "Timeout"})
    assert failures == 1


async def test_it_goes_round_when_time_is_up_and_when_told_to_look() -> None:
    loop = Scripted(HOUR, HOUR, HOUR)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(loop.run())
        await loop.clock.advance(3601)
        loop.wake()
        await loop.clock.advance(1)
        running.cancel()

    assert loop.times == [NOON, NOON + HOUR, NOON + timedelta(seconds=3601)]


@pytest.mark.parametrize(
    ("server_ahead", "said"),
    [
        (-timedelta(hours=47), "is 2820 minutes ahead of the API server's"),
        (-5 * MINUTE - timedelta(seconds=30), "ahead of the API server's"),
        (2 * DAY, "is 2880 minutes behind the API server's"),
    ],
)
async def test_with_a_clock_that_is_wrong_nothing_is_issued_until_it_is_right(
    server_ahead: timedelta, said: str
) -> None:
    loop = Scripted(HOUR, server_ahead=server_ahead)

    assert await loop.run_once() == timedelta(seconds=5)
    problem = loop.problem or ""
    loop.server_ahead = 3 * MINUTE
    assert await loop.run_once() == HOUR

    assert said in problem
    assert "NTP" in problem
    assert loop.problem is None


@pytest.mark.parametrize("server_ahead", [None, -3 * MINUTE, timedelta(0), timedelta(hours=23)])
async def test_a_clock_that_differs_a_little_or_cannot_be_compared_is_no_problem(
    server_ahead: timedelta | None,
) -> None:
    assert await Scripted(HOUR, server_ahead=server_ahead).run_once() == HOUR
