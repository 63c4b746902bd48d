"""The embedded control plane says that its parts are simulated, and can be spoken to."""

from pathlib import Path

from kube.access import connect
from kube.kinds import NAMESPACES
from simulator.demo.control_plane import open_control_plane


async def test_the_embedded_control_plane_answers_with_its_kubeconfig(tmp_path: Path) -> None:
    async with (
        open_control_plane(None, tmp_path, extender_port=1) as plane,
        connect(plane.kubeconfig) as kube,
    ):
        assert (await kube.get_object(NAMESPACES, "default"))["metadata"]["name"] == "default"
        assert set(plane.parts.values()) == {"simulated"}


async def test_an_embedded_role_speaks_as_its_service_account(tmp_path: Path) -> None:
    async with (
        open_control_plane(None, tmp_path, extender_port=1) as plane,
        connect(plane.kubeconfig) as admin,
    ):
        path = await plane.kubeconfig_of(admin, "deviceplugin", node="n1")
        async with connect(path) as kube:
            assert (await kube.get_object(NAMESPACES, "default"))["metadata"]["name"] == "default"

    assert "system:serviceaccount:fracgpu-system:fracgpu-deviceplugin" in path.read_text()
