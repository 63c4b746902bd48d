from pathlib import Path

from certs.reconciler import Leaf, Purpose
from certs.service import build, desired_of
from certs.settings import CertsSettings
from certs.store import CertStore
from kube.client import KubeClient
from kube.kinds import MUTATING_WEBHOOKS, SECRETS
from process.clock import SystemClock
from process.lifecycle import run_until_stopped
from simulator.apiserver.server import ApiServer
from tests.certs.tls_harness import a_ca, a_leaf
from tests.certs.webhooks import a_webhook, apply, bundles
from tests.support.running_service import running_service
from tests.support.waiting import until

NAMESPACE = "fracgpu-system"


def test_a_service_is_called_by_its_cluster_names_and_by_the_extra_ones() -> None:
    settings = CertsSettings(
        services=("hook",), clients=("Caller",), extra_names=("127.0.0.1", "HOST", "0::1")
    )

    assert desired_of(settings).leaves == {
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
    targets = desired_of(CertsSettings(webhook_configurations=("one", "two"))).targets

    assert [str(target) for target in targets] == [
        "MutatingWebhookConfiguration/one",
        "ValidatingWebhookConfiguration/one",
        "MutatingWebhookConfiguration/two",
        "ValidatingWebhookConfiguration/two",
    ]


def settings(api: ApiServer, folder: Path, **changed: float | str) -> CertsSettings:
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
    async with running_service(build(settings(api, tmp_path))):
        await until(lambda: exists(kube), what="the serving Secret")
        await apply(kube, MUTATING_WEBHOOKS, a_webhook("a.example.org"))
        await until(lambda: injected(kube), what="the bundle in the new configuration")
        await kube.delete(SECRETS, "fracgpu-webhook-tls", namespace=NAMESPACE)
        await until(lambda: exists(kube), what="the Secret again")


async def test_where_cert_manager_makes_them_the_role_only_has_them_trusted(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    await apply(kube, MUTATING_WEBHOOKS, a_webhook("a.example.org"))
    ca = a_ca()
    leaf = a_leaf(ca)
    theirs = settings(api, tmp_path, mode="cert-manager")

    async with running_service(build(theirs)):
        store = CertStore(kube, namespace=NAMESPACE)
        data = {"tls.crt": leaf.cert_pem, "tls.key": leaf.key_pem, "ca.crt": ca.cert_pem}
        assert await store.write("fracgpu-webhook-tls", data, over=None)
        await until(lambda: injected(kube), what="their bundle in the configuration")

    assert await bundles(kube, MUTATING_WEBHOOKS) == [ca.cert_pem]
    assert len((await kube.list(SECRETS, namespace=NAMESPACE)).items) == 1


async def test_without_a_usable_kubeconfig_the_role_ends_with_one(tmp_path: Path) -> None:
    settings = CertsSettings(kubeconfig=str(tmp_path / "none"), telemetry_port=0)

    assert await run_until_stopped(build(settings), SystemClock()) == 1


async def exists(kube: KubeClient) -> bool:
    listed = await kube.list(SECRETS, namespace=NAMESPACE)
    return len(listed.items) == 2


async def injected(kube: KubeClient) -> bool:
    return await bundles(kube, MUTATING_WEBHOOKS) != [None]
