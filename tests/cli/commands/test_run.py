import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.commands.run import ROLES, BadPart, device_plugin_parts, main, usage
from cli.main import CALLED_WRONG, DONE, FAILED
from kube.client import KubeClient
from kube.kinds import NAMESPACES
from simulator.apiserver.server import ApiServer

ROOT = Path(__file__).parents[3]


def test_help_lists_every_role(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == DONE

    out = capsys.readouterr().out
    assert out == usage() + "\n"
    for name, role in ROLES.items():
        assert f"  {name} " in out
        assert role.summary in out


def test_no_role_and_an_unknown_role_are_called_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == CALLED_WRONG
    assert main(["driver"]) == CALLED_WRONG

    assert (
        "fracgpu: unknown role 'driver'; want one of: webhook, scheduler" in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", ROLES)
def test_every_role_tells_its_flags_and_variables(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == DONE

    out = capsys.readouterr().out
    assert out.startswith(f"usage: fracgpu run {name} [flags]\n")
    assert f"FRACGPU_{name.upper()}_KUBECONFIG" in out


def test_all_mistakes_in_flags_are_told_at_once_and_are_exit_code_two(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["certs", "--telemetry-prot=1", "--log-level=loud"]) == CALLED_WRONG

    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "fracgpu: --telemetry-prot is not a flag here; did you mean --telemetry-port?",
        "fracgpu: --log-level is 'loud'; want one of debug, info, warning, error",
    ]


@dataclass
class Settings:
    cards: str


@pytest.mark.parametrize("source", ["", "simulated", "simulated:", "NVML", "file:x"])
def test_cards_come_from_a_vendor_or_from_a_simulation_and_nowhere_else(source: str) -> None:
    with pytest.raises(BadPart, match="want 'auto', 'nvml', 'amd' or 'simulated:FILE'"):
        device_plugin_parts(Settings(cards=source))


async def run_certs(*flags: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "cli", "run", "certs", "--telemetry-port=0", *flags]
    environ = {key: text for key, text in os.environ.items() if not key.startswith("FRACGPU_")}
    return await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=PIPE, stderr=PIPE, env=environ
    )


async def test_a_role_runs_as_a_process_until_it_is_told_to_stop(
    api: ApiServer, kube: KubeClient, tmp_path: Path
) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": "fracgpu-system"}})
    config = api.kubeconfig(tmp_path / "kubeconfig")
    role = await run_certs(f"--kubeconfig={config}")
    assert role.stderr is not None

    events: list[dict[str, Any]] = []
    async with asyncio.timeout(30):
        while not events or events[-1]["event"] != "certificate_renewed":
            events.append(json.loads(await role.stderr.readline()))
        role.send_signal(signal.SIGTERM)
        _, rest = await role.communicate()

    events += [json.loads(line) for line in rest.splitlines()]
    assert role.returncode == DONE
    assert events[0]["event"] == "settings_loaded"
    assert events[0]["kubeconfig"] == str(config)
    assert events[-1]["event"] == "service_stopped"


async def test_a_role_that_cannot_start_is_exit_code_one_and_one_line(tmp_path: Path) -> None:
    role = await run_certs(f"--kubeconfig={tmp_path / 'none'}")
    async with asyncio.timeout(30):
        _, errors = await role.communicate()

    assert role.returncode == FAILED
    last = json.loads(errors.splitlines()[-1])
    assert last["event"] == "process_ended"
    assert str(tmp_path / "none") in last["reason"]
