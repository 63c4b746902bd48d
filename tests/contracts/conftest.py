"""The contract suite runs, unchanged, against the simulator's API server and a real one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kube.access import connect
from kube.client import KubeClient
from kube.kinds import NAMESPACES
from simulator.apiserver.server import ApiServer
from tests.support.real_apiserver import real_api_server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def real_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """One real control plane for the whole session: it takes seconds to start."""
    workdir = tmp_path_factory.mktemp("real-apiserver")
    async with real_api_server(workdir) as api:
        # Only a server that began after the first versions were written can have forgotten them.
        await api.stop_serving()
        await api.serve_again()
        yield api.kubeconfig(workdir / "kubeconfig")


@pytest.fixture
async def simulator_kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    async with ApiServer.start(port=0) as api:
        path = tmp_path / "kubeconfig"
        api.kubeconfig(path)
        yield path


@pytest.fixture(params=["simulator", pytest.param("real", marks=pytest.mark.e2e)])
def api_server(request: pytest.FixtureRequest) -> Path:
    """Return the kubeconfig of an API server under this suite.

    Not async itself: it may set up a fixture that lives on the session's event loop.
    """
    path: Path = request.getfixturevalue(f"{request.param}_kubeconfig")
    return path


@pytest.fixture
async def client(api_server: Path) -> AsyncIterator[KubeClient]:
    async with connect(api_server) as client:
        yield client


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    """A namespace of the test's own: the real server is shared by the whole session."""
    created = await client.create(NAMESPACES, {"metadata": {"generateName": "contract-"}})
    name: str = created["metadata"]["name"]
    return name


@pytest.fixture(params=["simulator", pytest.param("real", marks=pytest.mark.e2e)])
def where(request: pytest.FixtureRequest) -> Path | None:
    """The kubeconfig of the module's ``real_cluster``; None for the simulator."""
    found: Path | None = None
    if request.param == "real":
        found = request.getfixturevalue("real_cluster")
    return found
