import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from certs.rotate_request import RotationRefused, rotate
from certs.service import build
from certs.settings import CertsSettings
from certs.status import Report, collect_report
from kube.client import KubeClient
from kube.kinds import MUTATING_WEBHOOKS, SECRETS
from process.clock import SystemClock
from simulator.apiserver.server import ApiServer
from tests.certs.webhooks import a_webhook, apply
from tests.support.running_service import running_service
from tests.support.waiting import until, until_true

CLOCK = SystemClock()


@pytest.fixture
async def settings(api: ApiServer, kube: KubeClient, tmp_path: Path) -> CertsSettings:
    await apply(kube, MUTATING_WEBHOOKS, a_webhook("a.example.org"))
    return CertsSettings(
        kubeconfig=str(api.kubeconfig(tmp_path / "kubeconfig")),
        telemetry_host="127.0.0.1",
        telemetry_port=0,
        overlap_s=0.5,
    )


async def report_of(kube: KubeClient, settings: CertsSettings) -> Report:
    return await collect_report(kube, settings, now=CLOCK.now())


async def well(kube: KubeClient, settings: CertsSettings) -> None:
    async def no_problems() -> bool:
        return not (await report_of(kube, settings)).problems

    await until(no_problems, what="every certificate in place")


def fingerprints(report: Report) -> dict[str, str]:
    return {row.secret: row.facts.fingerprint for row in report.rows if row.facts is not None}


async def test_the_leaves_are_made_anew_and_the_authority_stays(
    kube: KubeClient, settings: CertsSettings
) -> None:
    said: list[str] = []
    async with running_service(build(settings), clock=CLOCK):
        await well(kube, settings)
        before = fingerprints(await report_of(kube, settings))
        report = await rotate(
            kube, CLOCK, settings, authority=False, limit_s=100, on_progress=said.append
        )

    assert report is not None
    after = fingerprints(report)
    assert [name for name in before if before[name] == after[name]] == ["fracgpu-ca"]
    assert said[0] == (
        "asked to replace fracgpu-webhook-tls, fracgpu-scheduler-tls, fracgpu-scheduler-client"
    )


async def test_a_new_authority_is_trusted_and_signs_everything_before_the_command_ends(
    kube: KubeClient, settings: CertsSettings
) -> None:
    said: list[str] = []
    unsigned = "fracgpu-webhook-tls is not signed by the new authority yet (and 2 more)"
    async with asyncio.TaskGroup() as group:
        # What is trusted already and signs nothing yet stays so until it was told.
        async with running_service(build(replace(settings, overlap_s=3600)), clock=CLOCK):
            await well(kube, settings)
            before = fingerprints(await report_of(kube, settings))
            rotation = group.create_task(
                rotate(kube, CLOCK, settings, authority=True, limit_s=100, on_progress=said.append)
            )
            await until_true(lambda: unsigned in said, what="the wait for signatures is told")
            assert not rotation.done()
        async with running_service(build(settings), clock=CLOCK):
            report = await rotation

    assert report is not None
    assert not set(before.values()) & set(fingerprints(report).values())
    assert {row.signed_by for row in report.rows[1:]} == {"current"}
    assert report.authorities == 2
    assert said[0] == "asked to replace fracgpu-ca"


async def test_where_nobody_makes_certificates_the_wait_ends_at_its_limit(
    kube: KubeClient, settings: CertsSettings
) -> None:
    async with running_service(build(settings), clock=CLOCK):
        await well(kube, settings)
    said: list[str] = []

    report = await rotate(
        kube, CLOCK, settings, authority=False, limit_s=1, on_progress=said.append
    )

    assert report is None
    assert said[-1] == "fracgpu-webhook-tls is not renewed yet (and 2 more)"


async def test_there_is_nothing_to_rotate_before_there_is_a_certificate(
    kube: KubeClient, settings: CertsSettings
) -> None:
    with pytest.raises(RotationRefused, match="is the certificates role running"):
        await rotate(kube, CLOCK, settings, authority=True, limit_s=1, on_progress=print)


async def test_cert_managers_certificates_are_not_ours_to_rotate(
    kube: KubeClient, settings: CertsSettings
) -> None:
    async with running_service(build(settings), clock=CLOCK):
        await well(kube, settings)
    theirs = {"metadata": {"annotations": {"cert-manager.io/certificate-name": "x"}}}
    await kube.patch(SECRETS, "fracgpu-webhook-tls", theirs, namespace="fracgpu-system")

    with pytest.raises(RotationRefused, match="cmctl renew --all --namespace fracgpu-system"):
        await rotate(kube, CLOCK, settings, authority=False, limit_s=1, on_progress=print)
