"""Controllers on either API server, and kubelets played by the test."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kube.access import connect
from kube.kinds import NAMESPACES
from process.clock import SystemClock
from simulator.apiserver.server import ApiServer
from simulator.controllers.manager import run_controllers
from tests.simulator.controllers.harness import Harness
from tests.support.real_apiserver import real_api_server

_TLS_CLOSE_S = 0.1


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def real_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """One real control plane for the whole session: it takes seconds to start."""
    workdir = tmp_path_factory.mktemp("real-apiserver")
    async with real_api_server(workdir) as api:
        yield api.kubeconfig(workdir / "kubeconfig")


@pytest.fixture
def simulator_kubeconfig(api: ApiServer, tmp_path: Path) -> Path:
    return api.kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture(params=["simulator", pytest.param("real", marks=pytest.mark.e2e)])
def kubeconfig(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(f"{request.param}_kubeconfig")
    return path


@pytest.fixture
async def harness(kubeconfig: Path) -> AsyncIterator[Harness]:
    """Yield a namespace of its own on either API server, with our controllers running."""
    async with connect(kubeconfig) as kube, asyncio.TaskGroup() as group:
        made = await kube.create(NAMESPACES, {"metadata": {"generateName": "controllers-"}})
        running = group.create_task(run_controllers(kube, SystemClock()), name="controllers")
        yield Harness(kube, made["metadata"]["name"])
        running.cancel()
    # A TLS connection that is cancelled in its handshake closes only some turns of the event loop
    # later (CPython 3.11), without a signal; left open it would be a ResourceWarning.
    await asyncio.sleep(_TLS_CLOSE_S)
