"""A terminal beside a live cluster."""

from pathlib import Path

import pytest

from kube.client import KubeClient
from simulator.apiserver.server import ApiServer
from tests.cli.live_cluster import Cli


@pytest.fixture
def cli(
    api: ApiServer, kube: KubeClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Cli:
    return Cli(api=api, kube=kube, folder=tmp_path, capsys=capsys)
