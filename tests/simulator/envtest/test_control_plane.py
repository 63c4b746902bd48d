import stat
from pathlib import Path

import pytest

from kube.access import connect
from kube.errors import KubeError
from kube.retry import RetryPolicy
from simulator.envtest.control_plane import ControlPlane, ControlPlaneError, find_assets
from tests.support.real_apiserver import real_api_server

FAST = RetryPolicy(attempts=1, first_pause_s=0.05, longest_pause_s=0.2)


def test_a_folder_without_the_binaries_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "etcd").touch()

    with pytest.raises(ControlPlaneError, match=r"lacks kube-apiserver$"):
        find_assets(str(tmp_path))


def test_no_folder_at_all_is_refused() -> None:
    with pytest.raises(ControlPlaneError, match="KUBEBUILDER_ASSETS is not set"):
        find_assets(None)


async def test_a_server_that_ends_at_once_is_an_error_that_names_its_log(tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    for name, text in {"etcd": "exec sleep 60", "kube-apiserver": "echo broken; exit 3"}.items():
        (assets / name).write_text(f"#!/bin/sh\n{text}\n")
        (assets / name).chmod(0o755)

    with pytest.raises(
        ControlPlaneError, match=r"kube-apiserver ended with 3; see .*kube-apiserver.log"
    ):
        async with ControlPlane.start(assets, tmp_path / "work"):
            pass

    assert (tmp_path / "work" / "kube-apiserver.log").read_text() == "broken\n"


@pytest.mark.e2e
async def test_the_kubeconfig_is_for_its_owner_only(tmp_path: Path) -> None:
    async with real_api_server(tmp_path) as api:
        path = api.kubeconfig(tmp_path / "kubeconfig")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "tokens.csv").stat().st_mode) == 0o600
        async with connect(path) as client:
            assert b"gitVersion" in await client.get_path("/version")

    async with connect(path) as client:
        with pytest.raises(KubeError):
            await client.with_retry(FAST).get_path("/version")
