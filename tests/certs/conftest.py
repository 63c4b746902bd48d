import pytest

from kube.client import KubeClient
from kube.kinds import NAMESPACES


@pytest.fixture
async def kube(kube: KubeClient) -> KubeClient:
    """Return the shared client, with the namespace that the installation creates."""
    await kube.create(NAMESPACES, {"metadata": {"name": "fracgpu-system"}})
    return kube
