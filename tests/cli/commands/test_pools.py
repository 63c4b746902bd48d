"""``fracgpu pools``: the catalogue of the cluster, in the formats of autoscalers."""

import json
from pathlib import Path

import pytest
import yaml

from cli.commands.pools import main
from cli.main import DONE, FAILED
from kube.kinds import MUTATING_WEBHOOKS, NAMESPACES
from tests.cli.live_cluster import Cli, configure

CATALOGUE = """
a100-80gb:
  models: ["NVIDIA-A100*80GB*"]
  mib: 80999
  pools:
    - name: a100-2
      cards: 2
      slotsPerCard: 8
      labels: {zone: a}
      taints:
        - {key: nvidia.com/gpu, value: present, effect: NoSchedule}
        - {key: spot, effect: NoExecute}
t4: {models: Tesla-T4, mib: 15040, pools: [{name: t4, cards: 1}]}
"""
STARTS = {"key": "startup-taint.cluster-autoscaler.kubernetes.io/fracgpu", "effect": "NoSchedule"}


async def with_catalogue(cli: Cli, text: str) -> None:
    await cli.kube.create(NAMESPACES, {"metadata": {"name": "fracgpu-system"}})
    await configure(cli.kube, pools=text)


async def test_each_pool_is_listed_with_its_class(cli: Cli) -> None:
    await with_catalogue(cli, CATALOGUE)

    assert await cli.call(main) == DONE

    assert [line.split() for line in cli.read().out.splitlines()] == [
        ["CLASS", "POOL", "CARDS", "MIB", "MODELS"],
        ["a100-80gb", "a100-2", "2", "80960", "NVIDIA-A100*80GB*"],
        ["t4", "t4", "1", "15040", "Tesla-T4"],
    ]


async def test_in_the_wrong_namespace_the_command_says_where_fracgpu_runs(cli: Cli) -> None:
    webhook = {
        "name": "pods.fracgpu.io",
        "clientConfig": {"service": {"name": "fracgpu-webhook", "namespace": "gpu"}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    body = {"metadata": {"name": "fracgpu-webhook"}, "webhooks": [webhook]}
    await cli.kube.create(MUTATING_WEBHOOKS, body)

    assert await cli.call(main) == FAILED
    assert cli.read().err.splitlines() == [
        "fracgpu pools: there is no ConfigMap fracgpu-system/fracgpu-config",
        "fracgpu pools: FracGPU runs in namespace gpu: --system-namespace gpu",
    ]
    assert await cli.call(main, "--system-namespace", "gpu") == FAILED
    assert cli.read().err == "fracgpu pools: there is no ConfigMap gpu/fracgpu-config\n"


async def test_json_is_for_programs(cli: Cli) -> None:
    await with_catalogue(cli, CATALOGUE)

    assert await cli.call(main, "--json") == DONE

    first, _ = json.loads(cli.read().out)["pools"]
    assert (first["class"], first["mib"], first["resources"]["fracgpu.io/gpu-slot"]) == (
        "a100-80gb",
        80_960,
        16,
    )


async def test_cluster_autoscaler_is_told_by_tags(cli: Cli) -> None:
    await with_catalogue(cli, CATALOGUE)

    assert await cli.call(main, "--format=cluster-autoscaler") == DONE

    out = cli.read().out
    tag = "k8s.io/cluster-autoscaler/node-template"
    assert yaml.safe_load(out) == {
        "a100-2": {
            f"{tag}/resources/fracgpu.io/gpu-mem": "161920",
            f"{tag}/resources/fracgpu.io/gpu-count": "2",
            f"{tag}/resources/fracgpu.io/gpu-slot": "16",
            f"{tag}/label/zone": "a",
            f"{tag}/label/fracgpu.io/share": "true",
            f"{tag}/label/fracgpu.io/card-class": "a100-80gb",
            f"{tag}/label/fracgpu.io/card-memory": "80960",
            f"{tag}/label/fracgpu.io/card-count": "2",
            f"{tag}/taint/nvidia.com/gpu": "present:NoSchedule",
            f"{tag}/taint/spot": ":NoExecute",
        },
        "t4": {
            f"{tag}/resources/fracgpu.io/gpu-mem": "15040",
            f"{tag}/resources/fracgpu.io/gpu-count": "1",
            f"{tag}/resources/fracgpu.io/gpu-slot": "32",
            f"{tag}/label/fracgpu.io/share": "true",
            f"{tag}/label/fracgpu.io/card-class": "t4",
            f"{tag}/label/fracgpu.io/card-memory": "15040",
            f"{tag}/label/fracgpu.io/card-count": "1",
        },
    }
    assert (
        "--register-with-taints=nvidia.com/gpu=present:NoSchedule,spot=:NoExecute,"
        "startup-taint.cluster-autoscaler.kubernetes.io/fracgpu=:NoSchedule\n" in out
    )


async def test_karpenter_is_told_by_objects(cli: Cli) -> None:
    await with_catalogue(cli, CATALOGUE)

    assert await cli.call(main, "--format=karpenter") == DONE

    pool, overlay, bare, _ = yaml.safe_load_all(cli.read().out)
    assert (pool["kind"], pool["metadata"]["name"]) == ("NodePool", "a100-2")
    template = pool["spec"]["template"]
    assert template["metadata"]["labels"]["fracgpu.io/card-class"] == "a100-80gb"
    assert template["spec"] == {
        "startupTaints": [STARTS],
        "taints": [
            {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
            {"key": "spot", "effect": "NoExecute"},
        ],
    }
    assert overlay["spec"] == {
        "requirements": [{"key": "karpenter.sh/nodepool", "operator": "In", "values": ["a100-2"]}],
        "capacity": {
            "fracgpu.io/gpu-mem": "161920",
            "fracgpu.io/gpu-count": "2",
            "fracgpu.io/gpu-slot": "16",
        },
    }
    assert bare["spec"]["template"]["spec"] == {"startupTaints": [STARTS]}


async def test_a_file_is_read_before_it_is_put_into_the_cluster(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(CATALOGUE)
    assert await cli.call(main, "--file", str(file)) == DONE
    assert "a100-2" in cli.read().out

    file.write_text("a30: {models: A30}")
    assert await cli.call(main, "--file", str(file)) == FAILED
    assert f"fracgpu pools: {file} is not valid: a30 has no mib" in cli.read().err

    assert await cli.call(main, "--file", str(tmp_path / "none")) == FAILED
    assert "cannot read" in cli.read().err


@pytest.mark.parametrize("text", ["", "{}"])
async def test_a_cluster_without_a_catalogue_is_told_so(cli: Cli, text: str) -> None:
    assert await cli.call(main) == FAILED
    assert "there is no ConfigMap fracgpu-system/fracgpu-config" in cli.read().err

    await with_catalogue(cli, text)
    assert await cli.call(main) == FAILED
    assert "names no pool" in cli.read().err
