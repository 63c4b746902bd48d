import asyncio
import base64
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest

from certs.authority import Pair, make_ca
from certs.metrics import CertsMetrics
from certs.reconciler import DesiredCertificates, Leaf, Purpose, Reconciler
from certs.settings import CertsSettings
from certs.status import collect_report
from certs.store import ROTATE_KEY, CertStore
from certs.trust.ca_injector import (
    BundleTarget,
    InjectionResult,
    bundle_patch,
    inject,
    inject_all,
)
from certs.trust.rollout import (
    TRUSTS_KEY,
    named_authority,
    restarted,
    rolled_out,
    rolled_out_everywhere,
)
from certs.trust.served_certificates import ServedCertificates
from kube.client import KubeClient, PatchType
from kube.errors import KubeError
from kube.kinds import (
    DAEMONSETS,
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Kind,
)
from process.telemetry import new_registry
from process.tls import ServingTls
from tests.certs.slices import WithReplicas
from tests.certs.tls_harness import a_ca, a_leaf, https
from tests.certs.webhooks import BOTH, a_webhook, apply, bundles
from tests.fakes.clock import NOON, VirtualClock

NAMESPACE, NAME, CA = "fracgpu-system", "fracgpu-scheduler", "fracgpu-ca"


def a_deployment(*, replicas: int = 2) -> dict[str, Any]:
    labels = {"app": "s"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec}


async def roll_out(kube: KubeClient, **counts: int) -> None:
    """Do what the Deployment controller does, or as much of it as *counts* says."""
    deployment = await kube.get_object(DEPLOYMENTS, NAME, namespace=NAMESPACE)
    replicas = {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 1}
    status = {"observedGeneration": deployment["metadata"]["generation"], **replicas, **counts}
    patch = {"status": status}
    await kube.patch(DEPLOYMENTS, NAME, patch, namespace=NAMESPACE, subresource="status")


async def ask(kube: KubeClient, authority: str = "ab12") -> bool:
    return await restarted(kube, NAME, namespace=NAMESPACE, authority=authority)


async def test_the_pods_are_replaced_once_for_each_authority(kube: KubeClient) -> None:
    await kube.create(DEPLOYMENTS, a_deployment())

    answers = [await ask(kube)]
    answers.append(await ask(kube))
    await roll_out(kube)
    answers.append(await ask(kube))
    answers.append(await ask(kube, "cd34"))
    answers.append(await ask(kube, "cd34"))

    assert answers == [False, False, True, False, False]
    assert named_authority(await kube.get_object(DEPLOYMENTS, NAME, namespace=NAMESPACE)) == "cd34"


@pytest.mark.parametrize(
    "counts", [{"updatedReplicas": 1}, {"replicas": 3}, {"observedGeneration": 0}]
)
async def test_as_long_as_a_pod_of_before_may_live_it_is_not_done(
    kube: KubeClient, counts: dict[str, int]
) -> None:
    await kube.create(DEPLOYMENTS, a_deployment())
    await ask(kube)
    await roll_out(kube, **counts)

    assert not await ask(kube)


def test_a_deployment_of_no_replicas_has_nobody_to_restart() -> None:
    deployment = {"metadata": {"generation": 2}, "spec": {"replicas": 0}}

    assert rolled_out({**deployment, "status": {"observedGeneration": 2}})
    assert not rolled_out(deployment)


@pytest.mark.parametrize(
    ("status", "done"),
    [
        ({"desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "numberReady": 3}, True),
        ({"desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "numberReady": 2}, False),
        ({"desiredNumberScheduled": 3, "updatedNumberScheduled": 2, "numberReady": 3}, False),
        ({"desiredNumberScheduled": 0}, True),
    ],
)
def test_of_a_daemon_set_every_node_must_be_done(status: dict[str, int], *, done: bool) -> None:
    body = {"metadata": {"generation": 2}}

    assert rolled_out_everywhere({**body, "status": {**status, "observedGeneration": 2}}) is done
    assert not rolled_out_everywhere({**body, "status": {**status, "observedGeneration": 1}})
    assert not rolled_out_everywhere(body)


class OneDaemonSet(KubeClient):
    """A client of an API server that has one DaemonSet."""

    def __init__(self) -> None:
        self.body: dict[str, Any] = {
            "metadata": {"generation": 1},
            "spec": {"template": {}},
            "status": {},
        }

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        assert (kind, name, namespace) == (DAEMONSETS, NAME, NAMESPACE)
        return self.body

    async def patch(  # noqa: PLR0913 - as the base
        self,
        kind: Kind,
        name: str,
        patch: Any,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        how: PatchType = PatchType.MERGE,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        assert (kind, name, namespace, how) == (DAEMONSETS, NAME, NAMESPACE, PatchType.MERGE)
        self.body["spec"]["template"] |= patch["spec"]["template"]
        self.body["metadata"]["generation"] += 1
        return self.body


async def test_a_daemon_set_is_replaced_once_and_awaited_node_by_node() -> None:
    client = OneDaemonSet()

    async def answer() -> bool:
        return await restarted(client, NAME, namespace=NAMESPACE, authority="ab12", kind=DAEMONSETS)

    answers = [await answer(), await answer()]
    client.body["status"] = {
        "observedGeneration": 2,
        "desiredNumberScheduled": 1,
        "updatedNumberScheduled": 1,
        "numberReady": 1,
    }
    answers.append(await answer())

    assert answers == [False, False, True]
    assert client.body["metadata"]["generation"] == 2
    assert named_authority(client.body) == "ab12"


async def test_without_such_a_deployment_there_is_nobody_to_restart(kube: KubeClient) -> None:
    assert await ask(kube)


SECRET = f"{NAME}-client"
WANTED = DesiredCertificates(
    ca_secret=CA,
    leaves={SECRET: Leaf(purpose=Purpose.CALL, names=(NAME,))},
    services=[],
    targets=[],
    readers=[NAME],
    ca_life=timedelta(days=30),
    leaf_life=timedelta(days=24),
    overlap=timedelta(0),
    grace=timedelta(hours=1),
)


SETTINGS = CertsSettings(services=(), clients=(NAME,), webhook_configurations=())


@pytest.mark.parametrize(
    ("ready", "named", "restarts"),
    [
        (0, {}, 0),  # they wait for the Secret that they mount
        (1, {}, 1),  # somebody deleted the Secrets below running pods
        (0, {TRUSTS_KEY: "ab12"}, 1),
    ],
)
async def test_pods_that_wait_for_their_first_certificate_are_not_restarted_for_it(
    kube: KubeClient, ready: int, named: dict[str, str], restarts: int
) -> None:
    clock = VirtualClock()
    metrics = CertsMetrics(new_registry(), clock)
    loop = Reconciler(kube, clock, namespace=NAMESPACE, desired=WANTED, metrics=metrics)
    deployment = a_deployment()
    deployment["metadata"]["annotations"] = named
    await kube.create(DEPLOYMENTS, deployment)
    await roll_out(kube, readyReplicas=ready)
    before = await kube.get_object(DEPLOYMENTS, NAME, namespace=NAMESPACE)

    for _ in range(8):
        await loop.run_once()

    after = await kube.get_object(DEPLOYMENTS, NAME, namespace=NAMESPACE)
    facts = (await collect_report(kube, SETTINGS, now=clock.now())).rows[0].facts
    assert facts is not None
    assert named_authority(after) == facts.fingerprint
    assert (after["spec"] != before["spec"]) == bool(restarts)
    assert await ask(kube, facts.fingerprint) == (not restarts)


async def test_a_new_authority_signs_nothing_before_the_readers_have_restarted(
    kube: KubeClient,
) -> None:
    clock = VirtualClock()
    registry = new_registry()
    metrics = CertsMetrics(registry, clock)
    loop = Reconciler(kube, clock, namespace=NAMESPACE, desired=WANTED, metrics=metrics)

    async def signed_by() -> str:
        for _ in range(6):
            await loop.run_once()
        return (await collect_report(kube, SETTINGS, now=clock.now())).rows[1].signed_by

    await kube.create(DEPLOYMENTS, a_deployment())
    await signed_by()
    await roll_out(kube)
    first = await signed_by()
    facts = (await collect_report(kube, SETTINGS, now=clock.now())).rows[0].facts
    assert facts is not None
    wish = {"metadata": {"annotations": {ROTATE_KEY: facts.fingerprint}}}
    await kube.patch(SECRETS, CA, wish, namespace=NAMESPACE)

    before_restart = await signed_by()
    stored = await CertStore(kube, namespace=NAMESPACE).read(SECRET)
    awaited = [registry.get_sample_value("fracgpu_certs_awaited_restarts")]
    await roll_out(kube)

    assert (first, before_restart, await signed_by()) == ("current", "older", "current")
    awaited.append(registry.get_sample_value("fracgpu_certs_awaited_restarts"))
    assert awaited == [1, 0]
    assert stored is not None
    assert stored.data["ca.crt"].count(b"BEGIN CERTIFICATE") == 2
    deployment = await kube.get_object(DEPLOYMENTS, NAME, namespace=NAMESPACE)
    now_current = (await collect_report(kube, SETTINGS, now=clock.now())).rows[0].facts
    assert now_current is not None
    assert deployment["spec"]["template"]["metadata"]["annotations"] == {
        TRUSTS_KEY: now_current.fingerprint
    }


OLD, NEW = a_ca(), a_ca()


def serving(ca: Pair, *, mutual: bool = False) -> ServingTls:
    leaf = a_leaf(ca, "a-service.svc")  # which is not the address a replica is reached at
    tls = ServingTls(require_client_certificate=mutual)
    client_ca = ca.cert_pem if mutual else None
    tls.replace(cert_pem=leaf.cert_pem, key_pem=leaf.key_pem, client_ca_pem=client_ca)
    return tls


async def all_serve_what_new_signed(urls: dict[str, list[str]] | None) -> bool:
    replicas = ServedCertificates(WithReplicas(None, urls), namespace="x")
    return await replicas.all_serve(["a"], trusting=NEW.cert_pem)


@pytest.mark.parametrize(
    ("signers", "answer"), [([NEW], True), ([NEW, NEW], True), ([NEW, OLD], False), ([], False)]
)
async def test_every_replica_must_show_what_the_new_authority_signed(
    signers: list[Pair], answer: bool
) -> None:
    async with AsyncExitStack() as servers:
        urls = [await servers.enter_async_context(https(serving(ca))) for ca in signers]

        assert await all_serve_what_new_signed({"a": urls}) is answer


async def test_a_replica_that_asks_for_a_client_certificate_is_looked_at_as_well() -> None:
    for ca, answer in ((NEW, True), (OLD, False)):
        async with https(serving(ca, mutual=True)) as url:
            assert await all_serve_what_new_signed({"a": [url]}) is answer


async def test_every_service_counts() -> None:
    async with https(serving(NEW)) as new, https(serving(OLD)) as old:
        replicas = ServedCertificates(WithReplicas(None, {"a": [new], "b": [old]}), namespace="x")

        assert not await replicas.all_serve(["a", "b"], trusting=NEW.cert_pem)


async def test_a_replica_that_cannot_be_reached_may_serve_anything() -> None:
    async with https(serving(NEW)) as gone:
        pass

    assert not await all_serve_what_new_signed({"a": [gone]})


async def test_a_replica_that_speaks_no_tls_may_serve_anything() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert not await all_serve_what_new_signed({"a": [f"127.0.0.1:{port}"]})


async def test_without_endpoint_slices_nobody_can_tell() -> None:
    assert not await all_serve_what_new_signed(None)
    assert not await all_serve_what_new_signed({})


PEM = make_ca(name="ours", now=NOON, life=timedelta(days=1)).cert_pem
THEIRS = make_ca(name="theirs", now=NOON, life=timedelta(days=1)).cert_pem
TEXT = base64.b64encode(PEM).decode()


def target(kind: Kind = MUTATING_WEBHOOKS) -> BundleTarget:
    return BundleTarget(kind=kind, name="fracgpu-webhook")


def test_only_webhooks_without_the_bundle_are_patched_each_behind_a_test_of_its_name() -> None:
    configuration = {
        "webhooks": [
            a_webhook("a.example.org"),
            a_webhook("b.example.org", ca_bundle=PEM),
            a_webhook("c.example.org", ca_bundle=THEIRS),
        ]
    }

    assert bundle_patch(configuration, bundle_pem=PEM) == [
        {"op": "test", "path": "/webhooks/0/name", "value": "a.example.org"},
        {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": TEXT},
        {"op": "test", "path": "/webhooks/2/name", "value": "c.example.org"},
        {"op": "add", "path": "/webhooks/2/clientConfig/caBundle", "value": TEXT},
    ]


@pytest.mark.parametrize("configuration", [{}, {"webhooks": None}, {"webhooks": []}])
def test_a_configuration_without_webhooks_needs_no_patch(configuration: dict[str, Any]) -> None:
    assert bundle_patch(configuration, bundle_pem=PEM) == []


@pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.plural)
async def test_the_bundle_gets_in_once_and_is_then_left_alone(kube: KubeClient, kind: Kind) -> None:
    await apply(kube, kind, a_webhook("a.example.org"), a_webhook("b.example.org"))

    first = await inject(kube, target(kind), bundle_pem=PEM)
    version = (await kube.get_object(kind, "fracgpu-webhook"))["metadata"]["resourceVersion"]
    second = await inject(kube, target(kind), bundle_pem=PEM)

    assert (first, second) == (InjectionResult.PATCHED, InjectionResult.CURRENT)
    assert await bundles(kube, kind) == [PEM, PEM]
    after = await kube.get_object(kind, "fracgpu-webhook")
    assert after["metadata"]["resourceVersion"] == version


async def test_a_configuration_that_does_not_exist_is_no_trouble(kube: KubeClient) -> None:
    assert await inject(kube, target(), bundle_pem=PEM) is InjectionResult.ABSENT


class Reordering(KubeClient):
    """The real client, but the webhooks are reversed between our read and our patch."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        observed = await self._kube.get_object(kind, name)
        reverse = [{"op": "replace", "path": "/webhooks", "value": observed["webhooks"][::-1]}]
        await self._kube.patch(kind, name, reverse, how=PatchType.JSON)
        return observed

    async def patch(self, *args: Any, **fields: Any) -> dict[str, Any]:
        return await self._kube.patch(*args, **fields)


async def test_a_list_that_was_reordered_meanwhile_is_not_patched_in_the_wrong_place(
    kube: KubeClient,
) -> None:
    theirs = a_webhook("b.example.org", ca_bundle=PEM)
    await apply(kube, MUTATING_WEBHOOKS, a_webhook("a.example.org"), theirs)

    outcome = await inject(Reordering(kube), target(), bundle_pem=PEM)

    assert outcome is InjectionResult.MOVED
    assert await bundles(kube, MUTATING_WEBHOOKS) == [PEM, None]


class Refusing(KubeClient):
    """The real client of an account that may read configurations and not change them."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    async def get_object(
        self, kind: Kind, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        return await self._kube.get_object(kind, name)

    async def patch(self, *args: Any, **fields: Any) -> dict[str, Any]:
        raise KubeError(verb="PATCH", path="/", status=403, reason="Forbidden", message="no")


async def valid(client: KubeClient) -> dict[str, float | None]:
    """Inject into both configurations once; return which of them count as valid."""
    registry = new_registry()
    metrics = CertsMetrics(registry, VirtualClock())
    targets = [target(kind) for kind in BOTH]
    with suppress(KubeError):
        await inject_all(client, targets, bundle_pem=PEM, metrics=metrics)
    name = "fracgpu_certs_webhook_configuration_valid"
    return {
        each.kind.kind.removesuffix("WebhookConfiguration"): registry.get_sample_value(
            name, {"configuration": str(each)}
        )
        for each in targets
    }


async def test_a_configuration_is_valid_that_has_webhooks_which_all_trust_us(
    kube: KubeClient,
) -> None:
    await apply(kube, MUTATING_WEBHOOKS, a_webhook("a.example.org", ca_bundle=THEIRS))
    assert await valid(Refusing(kube)) == {"Mutating": 0, "Validating": None}
    assert await valid(kube) == {"Mutating": 1, "Validating": 0}

    await apply(kube, VALIDATING_WEBHOOKS)
    assert await valid(kube) == {"Mutating": 1, "Validating": 0}
