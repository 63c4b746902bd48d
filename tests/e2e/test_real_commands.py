"""``fracgpu plan`` and ``moves`` on a real kube-apiserver, and all commands through kubectl."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.commands import moves, plan
from cli.main import DONE
from fracgpu.cards.card import CardUuid
from kube.access import connect
from kube.client import KubeClient
from kube.kinds import MOVES, PODS
from kube.objects import decode_object
from process.clock import SystemClock
from simulator.envtest.prometheus import RealPrometheus
from tests.support.backfill import Past, steady, wavering, write_blocks
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

    assert code == DONE, captured.err
    answer: dict[str, Any] = json.loads(captured.out)
    assert (answer["mode"], answer["trustedRatio"]) == ("dryRun", 1.0)
    (card,) = answer["hotCards"]
    (move,) = card["moves"]
    (held,) = card["held"]
    assert {move["pod"], held["subject"]} == {"ml/pod-a", "ml/pod-b"}
    assert (card["name"], move["to"]) == ("n1/0", "n2/0")
    assert (await client.list(PODS)).resource_version == before  # nothing was written


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
