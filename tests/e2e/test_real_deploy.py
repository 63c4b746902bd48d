"""deploy/ on a real control plane: all accepted, with enough permissions for every role."""

import os
import tempfile
from pathlib import Path

import pytest

from process.clock import SystemClock
from simulator.demo.promises import judge
from simulator.demo.rig import RigSettings, open_rig
from simulator.demo.script import Progress, Script, play_within
from simulator.envtest.control_plane import ASSETS_ENV, find_assets
from tests.support.kubectl import DEPLOY, Kubectl
from tests.support.real_apiserver import real_api_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.parametrize("folder", ["deploy", "overlays/nvidia-runtime-class"])
async def test_a_real_api_server_accepts_everything_in_a_dry_run(
    tmp_path: Path, folder: str
) -> None:
    async with real_api_server(tmp_path) as api:
        kubectl = Kubectl.find(api.kubeconfig(tmp_path / "kubeconfig"))
        # A dry run creates no namespace for the other objects.
        await kubectl("create", "namespace", "fracgpu-system")
        place = str(DEPLOY.parent / folder)
        wanted = (await kubectl("kustomize", place)).count("\nkind:")

        said = await kubectl("apply", "-k", place, "--dry-run=server")

    # The first object's `kind:` may open the text.
    assert len(said.splitlines()) in (wanted, wanted + 1)
    assert all(line.endswith("(server dry run)") for line in said.splitlines())


async def test_the_whole_loop_holds_with_the_accounts_rights_and_policies_of_deploy() -> None:
    if not os.environ.get(ASSETS_ENV):
        pytest.skip(f"{ASSETS_ENV} is not set: no real kube-apiserver to test against")
    settings = RigSettings(assets=find_assets(os.environ[ASSETS_ENV]))
    # Sockets are in it, so its path must be short.
    with tempfile.TemporaryDirectory(prefix="fg-", dir="/tmp") as folder:
        async with open_rig(settings, Path(folder), SystemClock()) as rig:
            progress = Progress()
            script = Script(rig, SystemClock(), progress)
            trouble = await play_within(script, 200)
            promises = judge(await script.facts())
            forbidden = [
                line
                for name in rig.supervisor.names()
                for line in rig.supervisor.log_file(name).read_text().splitlines()
                if "answered 403" in line
            ]

    assert trouble == ""
    assert [promise for promise in promises if not promise.held] == []
    assert forbidden == []
