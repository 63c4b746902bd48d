"""``fracgpu doctor`` against a live API server: what it prints, and its exit codes."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from cli.commands.doctor import exit_code, main
from cli.main import CALLED_WRONG, DONE, FAILED, UNKNOWN
from cli.main import main as fracgpu
from fracgpu.doctor.checkup import CHECKS, examine
from fracgpu.doctor.facts import Unread
from kube.kinds import NODES
from simulator.demo.definitions import install_definitions
from tests.cli.live_cluster import Cli
from tests.support.examined import a_node, healthy


def test_the_exit_code_says_found_unknown_or_neither() -> None:
    assert exit_code(examine(healthy())) == DONE
    assert exit_code(examine(healthy(nodes=Unread("may not")))) == UNKNOWN
    assert exit_code(examine(healthy(nodes=Unread("may not"), definitions=()))) == FAILED


async def test_what_is_wrong_is_told_with_its_cure(cli: Cli) -> None:
    await install_definitions(cli.kube)
    await cli.kube.create(NODES, a_node())

    assert await cli.call(main, "--no-probe") == FAILED

    captured = cli.read()
    assert captured.out.startswith("error (fix this first): FracGPU is not installed")
    assert captured.out.splitlines()[1].startswith("  cure: docs/install.md")
    assert "  so: node gpu-1 has the label fracgpu.io/share=true and no agent" in captured.out
    assert "not checked: The API server reaches the webhook: --no-probe was given" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("output", ["json", "yaml"])
async def test_programs_get_every_check(cli: Cli, output: str) -> None:
    assert await cli.call(main, "-o", output) == FAILED

    captured = cli.read()
    answer = json.loads(captured.out) if output == "json" else yaml.safe_load(captured.out)
    assert [check["name"] for check in answer["checks"]] == [check.name for check in CHECKS]
    assert "FracGPU is not installed in this cluster" in captured.err


async def test_one_check_may_be_made_alone(cli: Cli) -> None:
    await install_definitions(cli.kube)

    assert await cli.call(main, "--check", "nodes", "-o", "name") == FAILED
    assert cli.read().out == "check/nodes\n"

    await cli.kube.create(NODES, a_node())
    assert await cli.call(main, "--check", "nodes") == DONE


async def test_an_api_server_that_does_not_answer_leaves_everything_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nowhere")

    assert await asyncio.to_thread(main, ["--kubeconfig", missing]) == UNKNOWN

    assert capsys.readouterr().err.startswith("fracgpu doctor: no kubeconfig at")


def test_a_check_that_does_not_exist_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert fracgpu(["doctor", "--check", "dance"]) == CALLED_WRONG

    assert "webhook-registered" in capsys.readouterr().err
