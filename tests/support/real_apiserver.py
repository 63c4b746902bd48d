"""The real kube-apiserver for tests, where KUBEBUILDER_ASSETS names one; else a reason to skip."""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from simulator.envtest.control_plane import ASSETS_ENV, ControlPlane, ControlPlaneError, find_assets
from simulator.envtest.scheduler_configuration import stock_configuration

# For kube-controller-manager, where nobody renews the leases of nodes.
WITHOUT_NODES: Final = "--controllers=*,-node-lifecycle-controller"


@asynccontextmanager
async def real_api_server(
    workdir: Path,
    *,
    flags: Mapping[str, str | None] | None = None,
    users: Mapping[str, str] | None = None,
) -> AsyncIterator[ControlPlane]:
    """Start a control plane with its state in *workdir*, or skip the test with the reason.

    The *flags* and *users* are those of :meth:`simulator.envtest.control_plane.ControlPlane.start`.
    """
    value = os.environ.get(ASSETS_ENV)
    if not value:
        pytest.skip(f"{ASSETS_ENV} is not set: no real kube-apiserver to test against")
    # From here on a missing binary is an error, not a reason to skip.
    try:
        assets = find_assets(value)
    except ControlPlaneError as error:
        pytest.fail(str(error))
    async with ControlPlane.start(assets, workdir, flags=flags, users=users) as api:
        yield api


async def start_stock_scheduler(
    api: ControlPlane, kubeconfig: Path, *, gates: str = "", **connection: Any
) -> None:
    """Start kube-scheduler with a configuration that says only where the API server is.

    Args:
        api: the control plane.
        kubeconfig: for kube-scheduler, as the control plane wrote it.
        gates: feature gates.
        connection: further fields of ``clientConnection``.
    """
    configuration = stock_configuration(kubeconfig=kubeconfig)
    configuration["clientConnection"] |= connection
    config = api.workdir / "kube-scheduler.json"
    config.write_text(json.dumps(configuration))
    await api.start_scheduler(config, *([f"--feature-gates={gates}"] if gates else []))
