"""The custom resource definitions of ``deploy/``, installed before anything uses them."""

import asyncio
from typing import Any, Final

from kube.client import KubeClient
from kube.errors import AlreadyExists
from kube.kinds import CUSTOM_RESOURCE_DEFINITIONS
from simulator.demo.service_accounts import deployed

_LIMIT_S: Final = 30.0
_POLL_S: Final = 0.1


async def install_definitions(kube: KubeClient) -> None:
    """Create every definition of ``deploy/`` and return once the API server serves them.

    Raises:
        TimeoutError: one is not served within 30 s.
    """
    definitions = deployed(CUSTOM_RESOURCE_DEFINITIONS.kind)
    for body in definitions:
        try:
            await kube.create(CUSTOM_RESOURCE_DEFINITIONS, body)
        except AlreadyExists:
            continue
    async with asyncio.timeout(_LIMIT_S):
        for body in definitions:
            name: str = body["metadata"]["name"]
            while not await _is_established(kube, name):  # noqa: ASYNC110 - a request each time
                await asyncio.sleep(_POLL_S)


async def _is_established(kube: KubeClient, name: str) -> bool:
    found = await kube.get_object(CUSTOM_RESOURCE_DEFINITIONS, name)
    conditions: list[dict[str, Any]] = (found.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
