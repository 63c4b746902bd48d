"""What the chart installs for the wiring by claims, besides the roles."""

from component.wiring import Wiring
from fracgpu import names
from kube.client import KubeClient
from kube.kinds import CONFIGMAPS, DEVICE_CLASSES, NAMESPACES
from simulator.demo.service_accounts import deployed


async def install_claims(client: KubeClient, wiring: str = "claims") -> None:
    """Create our namespace, the ConfigMap that says the *wiring*, and the classes."""
    await client.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    config = {"name": names.CONFIG_MAP, "namespace": names.SYSTEM_NAMESPACE}
    await client.create(CONFIGMAPS, {"metadata": config, "data": {"wiring": wiring}})
    for device_class in deployed("DeviceClass", Wiring.CLAIMS):
        await client.create(DEVICE_CLASSES, device_class)
