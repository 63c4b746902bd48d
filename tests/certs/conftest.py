import pytest

from kube.client import KubeClient
from kube.kinds import NAMESPACES


@pytest.fixture
async def kube(kube: KubeClient) -> KubeClient:
    """The client everybody uses, and the namespace that installing us makes."""
    await kube.create(NAMESPACES, {"metadata": {"name": "fracgpu-system"}})
    return kube
