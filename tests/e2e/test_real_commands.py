"""All commands through kubectl, on a real kube-apiserver."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from cli.main import DONE
from kube.access import connect
from tests.support.moving import make_cluster
from tests.support.processes import output_of
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
    out, error = await output_of(process, b"", limit_s=90)
    return process.returncode or 0, out.decode(), error.decode()


async def test_kubectl_runs_and_completes_the_plugin(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    async with (
        real_api_server(tmp_path) as api,
        connect(kubeconfig := api.kubeconfig(tmp_path / "kubeconfig")) as client,
    ):
        await make_cluster(client)
        await use_the_plugin(kubeconfig)


async def use_the_plugin(kubeconfig: Path) -> None:
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
