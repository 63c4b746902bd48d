from pathlib import Path

from kube.access import connect
from kube.kinds import MOVES
from simulator.apiserver.server import ApiServer
from simulator.demo.definitions import install_definitions


async def test_moves_are_served_once_the_definitions_are_installed(tmp_path: Path) -> None:
    async with (
        ApiServer.start() as api,
        connect(api.kubeconfig(tmp_path / "kubeconfig")) as kube,
    ):
        await install_definitions(kube)
        await install_definitions(kube)  # as in a second run on the same cluster

        assert (await kube.list(MOVES)).items == []
