"""``fracgpu plan`` and ``moves`` on a real kube-apiserver, and all commands through kubectl."""

import asyncio
import base64
import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cli.commands import moves, plan
from cli.main import DONE, FAILED
from fracgpu import names
from fracgpu.cards.card import CardUuid
from kube.access import connect
from kube.client import KubeClient, PatchType
from kube.errors import AlreadyExists
from kube.kinds import DEPLOYMENTS, MOVES, NAMESPACES, PODS, SECRETS
from kube.objects import decode_object
from process.clock import SystemClock
from simulator.envtest.prometheus import RealPrometheus
from tests.support.backfill import Past, steady, wavering, write_blocks
from tests.support.examined import shipped
from tests.support.moves import move_body, move_of
from tests.support.moving import NAMESPACE, make_cluster
from tests.support.processes import told_by
from tests.support.real_apiserver import real_api_server
from tests.support.rebalancing import COOL_CARD, HOT_CARD

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

BIN = Path(sys.executable).parent
TARGET = {"job": "fracgpu", "instance": "10.0.0.1:9400"}


async def run_kubectl(kubeconfig: Path, *words: str) -> tuple[int, str, str]:
    """Run kubectl with our programs on its PATH, as a user's shell would."""
    process = await asyncio.create_subprocess_exec(
        "kubectl",
        *words,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "KUBECONFIG": str(kubeconfig)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await told_by(process, b"", limit_s=90)
    return process.returncode or 0, out.decode(), error.decode()


def past(card: CardUuid, busy: float) -> list[Past]:
    labels = {"UUID": card, "pod": "", **TARGET}
    return [
        Past(name="DCGM_FI_DEV_GPU_UTIL", labels=labels, points=wavering(busy)),
        Past(name="DCGM_FI_DEV_FB_FREE", labels=labels, points=steady(16_000)),
    ]


async def a_recorded_hour(client: KubeClient, folder: Path) -> None:
    """Write an hour in which one card was hot, by two pods."""
    listed = await client.list(PODS, namespace=NAMESPACE)
    uids = {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in (decode_object(bytes(raw)) for raw in listed.items)
    }
    pods = [
        Past(
            name="fracgpu_pod_sm_util",
            labels={"UUID": HOT_CARD, "pod_uid": uids[name], **TARGET},
            points=steady(busy),
        )
        for name, busy in (("pod-a", 35), ("pod-b", 55))
    ]
    series = [*past(HOT_CARD, 95), *past(COOL_CARD, 1), *pods]
    write_blocks(folder / "data", series, end_s=SystemClock().now().timestamp() + 30)


async def test_plan_and_moves_and_the_plugin_run_against_a_real_api_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        real_api_server(tmp_path) as api,
        connect(kubeconfig := api.kubeconfig(tmp_path / "kubeconfig")) as client,
    ):
        await make_cluster(client)
        await plan_says_what_would_be_moved(client, kubeconfig, tmp_path, capsys)
        await moves_are_listed_as_the_api_server_has_them(client, kubeconfig, capsys)
        await kubectl_runs_and_completes_the_plugin(kubeconfig)


async def plan_says_what_would_be_moved(
    client: KubeClient, kubeconfig: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await a_recorded_hour(client, folder / "prometheus")
    before = (await client.list(PODS)).resource_version
    async with RealPrometheus.start(folder / "prometheus", {}) as prometheus:
        words = ["--kubeconfig", str(kubeconfig), "--prometheus-url", prometheus.url, "-o", "json"]
        capsys.readouterr()
        code = await asyncio.to_thread(plan.main, words)
        captured = capsys.readouterr()

        after = (await client.list(PODS)).resource_version
        by_itself = await plan_without_a_flag(client, kubeconfig, prometheus.url, capsys)

    assert code == DONE, captured.err
    answer: dict[str, Any] = json.loads(captured.out)
    assert [card["name"] for card in by_itself["hotCards"]] == ["n1/0"]
    assert (answer["mode"], answer["trustedRatio"]) == ("dryRun", 1.0)
    (card,) = answer["hotCards"]
    (move,) = card["moves"]
    (held,) = card["held"]
    assert {move["pod"], held["subject"]} == {"ml/pod-a", "ml/pod-b"}
    assert (card["name"], move["to"]) == ("n1/0", "n2/0")
    assert after == before  # nothing was written


async def plan_without_a_flag(
    client: KubeClient, kubeconfig: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """Return the plan with the Prometheus at *url*, which the rebalancer's Deployment names."""
    words = ["--kubeconfig", str(kubeconfig), "-o", "json"]
    capsys.readouterr()
    assert await asyncio.to_thread(plan.main, words) == FAILED
    where = f"Deployment {names.SYSTEM_NAMESPACE}/fracgpu-rebalancer"
    assert f"no --prometheus-url, and there is no {where}" in capsys.readouterr().err

    with suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    (body,) = (b for b in shipped("Deployment") if b["metadata"]["name"] == "fracgpu-rebalancer")
    await client.create(DEPLOYMENTS, body)
    assert await asyncio.to_thread(plan.main, words) == FAILED
    # As installed it is a Service, which is asked through the API server; this cluster has none.
    error = capsys.readouterr().err
    assert "asked through the API server" in error
    assert "kubectl -n monitoring port-forward service/prometheus-operated 9090:9090" in error

    args = [*body["spec"]["template"]["spec"]["containers"][0]["args"], f"--prometheus-url={url}"]
    change = [{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": args}]
    await client.patch(
        DEPLOYMENTS,
        "fracgpu-rebalancer",
        change,
        namespace=names.SYSTEM_NAMESPACE,
        how=PatchType.JSON,
    )
    token = base64.b64encode(b"of-the-secret").decode()
    secret = {"metadata": {"name": "fracgpu-prometheus"}, "data": {"token": token}}
    await client.create(SECRETS, secret, namespace=names.SYSTEM_NAMESPACE)
    code = await asyncio.to_thread(plan.main, words)
    captured = capsys.readouterr()
    assert code == DONE, captured.err
    answer: dict[str, Any] = json.loads(captured.out)
    return answer


async def moves_are_listed_as_the_api_server_has_them(
    client: KubeClient, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await client.create(MOVES, move_body(move_of("move-1")))

    async def said(*words: str) -> str:
        capsys.readouterr()
        argv = ["--kubeconfig", str(kubeconfig), *words]
        assert await asyncio.to_thread(moves.main, argv) == DONE
        return capsys.readouterr().out

    (move,) = json.loads(await said("-o", "json"))
    assert move["spec"]["pod"]["name"] == "web-1"
    head, row = (await said()).splitlines()
    assert (head.split()[0], row.split()[:2]) == ("NAME", ["move-1", "team-a/web-1"])
    assert await said("-o", "name") == "move.fracgpu.io/move-1\n"
    assert await said("-n", "elsewhere", "-o", "name") == ""
    assert (await said("web-1")).startswith("team-a/web-1: ")


async def kubectl_runs_and_completes_the_plugin(kubeconfig: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    code, out, error = await run_kubectl(kubeconfig, "fracgpu", "cards", "-o", "name")
    assert (code, error) == (DONE, "")
    assert sorted(out.splitlines()) == sorted(f"card/{uuid}" for uuid in (COOL_CARD, HOT_CARD))

    code, out, _ = await run_kubectl(kubeconfig, "plugin", "list")
    assert code == DONE
    assert str(BIN / "kubectl-fracgpu") in out

    # What kubectl's own completion scripts ask at a press of Tab.
    code, out, _ = await run_kubectl(kubeconfig, "__complete", "fracgpu", "cards", "-o", "ya")
    assert code == DONE
    assert out.splitlines() == ["yaml", ":4"]
