"""overlays/nvidia-runtime-class: the agent on nodes whose default runtime is not NVIDIA's."""

from typing import Any

from tests.deploy.test_certificates import built, named

Json = dict[str, Any]
OVERLAY = "overlays/nvidia-runtime-class"


def test_only_the_node_agent_asks_for_nvidias_runtime_and_nothing_else_differs() -> None:
    base, overlay = (
        {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in built(folder)}
        for folder in ("deploy", OVERLAY)
    )
    agent = ("DaemonSet", "fracgpu-deviceplugin")
    pod = overlay[agent]["spec"]["template"]["spec"]

    assert pod.pop("runtimeClassName") == "nvidia"
    assert overlay == base


def test_without_the_overlay_the_agent_runs_in_the_default_runtime() -> None:
    agent = named("deploy", "DaemonSet", "fracgpu-deviceplugin")

    assert "runtimeClassName" not in agent["spec"]["template"]["spec"]
