"""The key ``wiring`` of the ConfigMap: who counts what pods hold of the cards, and places them."""

from collections.abc import Sequence
from enum import Enum
from typing import Final

import structlog

from component.config_keys import WIRING
from component.config_watcher import read_data
from fracgpu import names
from fracgpu.errors import shorten
from kube.client import KubeClient
from kube.errors import KubeError
from kube.kinds import CONFIGMAPS
from process.clock import Clock
from process.lifecycle import EndProcess

_log = structlog.get_logger()

_PAUSE_S: Final = 1.0
_MOST_SHOWN: Final = 60


class Wiring(Enum):
    """How a pod's request reaches its node; one for the whole cluster.

    With ``DEVICE_PLUGIN`` the scheduler extender chooses the cards, and kubelet counts slots; with
    ``CLAIMS`` the cluster's kube-scheduler allocates ResourceClaims from our shortlists.
    """

    DEVICE_PLUGIN = "devicePlugin"
    CLAIMS = "claims"


DEFAULT_WIRING: Final = Wiring.DEVICE_PLUGIN


def parse_wiring(text: str) -> Wiring:
    """Parse the value of the key.

    Raises:
        ValueError: the value is none of the two; the message says what was wanted.
    """
    for wiring in Wiring:
        if wiring.value == text.strip():
            return wiring
    known = " or ".join(wiring.value for wiring in Wiring)
    raise ValueError(f"{WIRING} is {shorten(text, limit=_MOST_SHOWN)!r}; want {known}")


async def read_wiring(client: KubeClient, *, namespace: str, clock: Clock) -> Wiring:
    """Return the wiring that the ConfigMap says; each role calls this once, when it starts.

    A role cannot change from one wiring to the other while it runs. It waits until the API server
    answers; without the ConfigMap or the key the wiring is the default.

    Raises:
        EndProcess: the value is invalid. To guess would have the cards counted by nobody, or twice.
    """
    while (found := await _listed(client, namespace)) is None:
        await clock.sleep(_PAUSE_S)
    text = read_data(found[0]).get(WIRING) if found else None
    try:
        wiring = DEFAULT_WIRING if text is None else parse_wiring(text)
    except ValueError as error:
        raise EndProcess(f"ConfigMap {namespace}/{names.CONFIG_MAP}: {error}") from error
    _log.info("wiring_read", wiring=wiring.value)
    return wiring


async def _listed(client: KubeClient, namespace: str) -> Sequence[bytes] | None:
    only = f"metadata.name={names.CONFIG_MAP}"
    try:
        return (await client.list(CONFIGMAPS, namespace=namespace, field_selector=only)).items
    except KubeError as error:
        _log.warning("wiring_not_read", error=str(error))
        return None
