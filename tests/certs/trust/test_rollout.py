from datetime import timedelta
from typing import Any

import pytest

from certs.metrics import CertsMetrics
from certs.reconciler import DesiredCertificates, Leaf, Purpose, Reconciler
from certs.settings import CertsSettings
from certs.status import collect_report
from certs.store import ROTATE_KEY, CertStore
from certs.trust.rollout import (
    TRUSTS_KEY,
    named_authority,
    restarted,
    rolled_out,
    rolled_out_everywhere,
)
from kube.client import KubeClient, PatchType
from kube.kinds import DAEMONSETS, DEPLOYMENTS, SECRETS, Kind
from process.telemetry import new_registry
from tests.fakes.clock import VirtualClock

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
    whole = {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 1}
    status = {"observedGeneration": deployment["metadata"]["generation"], **whole, **counts}
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

    async def patch(
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
