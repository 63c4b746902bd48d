"""The key ``wiring`` of the ConfigMap: who counts what pods hold of the cards, and places them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """How a pod's request reaches its node; one for each node, and for each pod.

    With ``DEVICE_PLUGIN`` the scheduler extender chooses the cards, and kubelet counts slots; with
    ``CLAIMS`` the cluster's kube-scheduler allocates ResourceClaims from our shortlists.
    """

    DEVICE_PLUGIN = "devicePlugin"
    CLAIMS = "claims"


DEFAULT_WIRING: Final = Wiring.DEVICE_PLUGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Wirings:
    """The wirings of a cluster.

    Attributes:
        default: that of nodes, and of the pods of namespaces, without a label.
        both: whether a label may name the other one.
    """

    default: Wiring = DEFAULT_WIRING
    both: bool = False

    def serves(self, wiring: Wiring) -> bool:
        """Report whether some node or pod may have it."""
        return self.both or wiring is self.default

    def of(self, labels: Mapping[str, str]) -> Wiring:
        """Return the wiring of a node, or of the new pods of a namespace, with these labels.

        Raises:
            ValueError: the label names none that the cluster has; the message says what was wanted.
        """
        text = labels.get(names.WIRING_LABEL)
        if text is None:
            return self.default
        known = [each for each in Wiring if self.serves(each)]
        for wiring in known:
            if wiring.value == text:
                return wiring
        wanted = " or ".join(wiring.value for wiring in known)
        raise ValueError(
            f"label {names.WIRING_LABEL} is {shorten(text, limit=_MOST_SHOWN)!r}; want {wanted}, "
            f"as the key {WIRING} of ConfigMap {names.CONFIG_MAP} says"
        )


def parse_wirings(text: str) -> Wirings:
    """Parse the value of the key: a wiring, or both with the default first, joined by ``+``.

    Raises:
        ValueError: it is neither; the message says what was wanted.
    """
    one, other = Wiring
    known = {
        one.value: Wirings(default=one),
        other.value: Wirings(default=other),
        f"{one.value}+{other.value}": Wirings(default=one, both=True),
        f"{other.value}+{one.value}": Wirings(default=other, both=True),
    }
    found = known.get(text.strip())
    if found is None:
        raise ValueError(
            f"{WIRING} is {shorten(text, limit=_MOST_SHOWN)!r}; want {' or '.join(known)}"
        )
    return found


async def read_wirings(
    client: KubeClient, *, namespace: str, clock: Clock, name: str = names.CONFIG_MAP
) -> Wirings:
    """Return the wirings that the ConfigMap says; each role calls this once, when it starts.

    A role cannot change its parts while it runs. It waits until the API server answers; without the
    ConfigMap or the key there is the default alone.

    Raises:
        EndProcess: the value is invalid. To guess would have the cards counted by nobody, or twice.
    """
    while (found := await _listed(client, namespace, name)) is None:
        await clock.sleep(_PAUSE_S)
    text = read_data(found[0]).get(WIRING) if found else None
    try:
        wirings = Wirings() if text is None else parse_wirings(text)
    except ValueError as error:
        raise EndProcess(f"ConfigMap {namespace}/{name}: {error}") from error
    _log.info("wiring_read", wiring=wirings.default.value, both=wirings.both)
    return wirings


async def _listed(client: KubeClient, namespace: str, name: str) -> Sequence[bytes] | None:
    only = f"metadata.name={name}"
    try:
        return (await client.list(CONFIGMAPS, namespace=namespace, field_selector=only)).items
    except KubeError as error:
        _log.warning("wiring_not_read", error=str(error))
        return None
