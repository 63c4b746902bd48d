"""Which wiring this node's agent serves, and how the node goes over to the other one.

A node's pods keep the wiring by which they got their cards until they end. So an agent serves the
one that its pods have, and where the node's label names the other it offers nothing any more: it
says so in the node's condition, takes the capacity or the slice back, and ends once the last holder
is gone. It is started again then, and serves the other wiring. In no moment are both offered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

import structlog

from component.wiring import Wiring, Wirings
from deviceplugin.dra.slices import slice_name
from deviceplugin.node.capacity import NodeState, Switching, counted_mib, read_node_state
from fracgpu import names
from fracgpu.device_claims.claim import decode_claim
from fracgpu.errors import WireError, listed
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient
from kube.errors import KubeError, NotFound
from kube.kinds import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from process.clock import Clock, wait_at_most
from process.lifecycle import EndProcess

log = structlog.get_logger()

_PAUSE_S: Final = 1.0
_LOOK_S: Final = 1.0


def served(wanted: Wiring, holders: Collection[Wiring], *, now: Wiring | None = None) -> Wiring:
    """Return the wiring that an agent is to serve.

    Args:
        wanted: the node's.
        holders: those by which its pods hold cards.
        now: the one that it serves; None for an agent that starts.
    """
    if now in holders:
        return now or wanted
    others = [wiring for wiring in holders if wiring is not wanted]
    return others[0] if others else wanted


def held_by(wiring: Wiring, pods: Mapping[str, PodInfo] | None) -> str | None:
    """Return in words which pods hold cards by a wiring, or None.

    Whoever counts by the other one would give their cards away a second time.
    """

    def holds(pod: PodInfo) -> bool:
        if wiring is Wiring.CLAIMS:
            return bool(pod.device_claim)
        return names.ASSIGNMENT in pod.annotations and not pod.device_claim

    found = sorted(
        pod.record.key for pod in (pods or {}).values() if pod.record.live and holds(pod)
    )
    return f"pods of wiring {wiring.value} still hold cards: {listed(found)}" if found else None


async def choose_wiring(
    client: KubeClient, pod_reader: KubeClient, wirings: Wirings, *, node: str, clock: Clock
) -> Wiring:
    """Return the wiring to serve from now on, once the API server answers and has the node."""
    if not wirings.both:
        return wirings.default
    while True:
        try:
            known = read_node_state(await client.get(NODES, node))
            listing = await pod_reader.list(PODS, field_selector=f"spec.nodeName={node}")
            holders = await _holders(client, map(bytes, listing.items), node)
            holders |= await _offered(client, known, node)
        except KubeError as error:
            log.warning("node_wiring_not_read", node=node, error=str(error))
            await clock.sleep(_PAUSE_S)
            continue
        try:
            wanted = wirings.of(known.labels)
        except ValueError:
            wanted = wirings.default  # of which nothing is offered
        serving = served(wanted, holders)
        log.info("node_wiring", node=node, serving=serving.value, wanted=wanted.value)
        return serving


async def remove_slice(client: KubeClient, node: str, *, clock: Clock) -> None:
    """Remove what an agent left that served claims; return once it is gone."""
    while True:
        try:
            await client.delete(RESOURCE_SLICES, slice_name(node))
        except NotFound:
            return
        except KubeError as error:
            log.warning("slice_not_removed", node=node, error=str(error))
            await clock.sleep(_PAUSE_S)


async def _offered(client: KubeClient, known: NodeState, node: str) -> set[Wiring]:
    """Return what an agent that was killed left offered: pods may be on their way by it."""
    found = {Wiring.DEVICE_PLUGIN} if counted_mib(known) else set()
    where = f"spec.nodeName={node},spec.driver={names.DRA_DRIVER}"
    slices = await client.list(RESOURCE_SLICES, field_selector=where)
    return found | ({Wiring.CLAIMS} if slices.items else set())


async def _holders(client: KubeClient, bodies: Iterable[bytes], node: str) -> set[Wiring]:
    found: set[Wiring] = set()
    for body in bodies:
        pod = decode_pod_info(body)
        alone = {pod.record.uid: pod}
        found |= {wiring for wiring in Wiring if held_by(wiring, alone)}
        if _has_own_claims(pod) and await _holds_by_them(client, pod, node):
            found.add(Wiring.CLAIMS)
    return found


def _has_own_claims(pod: PodInfo) -> bool:
    """Report whether a pod has claims that its user made, of which no grant tells."""
    return pod.record.live and pod.has_device_claims and not pod.device_claim


async def _holds_by_them(client: KubeClient, pod: PodInfo, node: str) -> bool:
    for name in pod.claim_uses:
        if await _is_ours(client, pod.record.namespace, name, node):
            return True
    return False


async def _is_ours(client: KubeClient, namespace: str, name: str, node: str) -> bool:
    try:
        claim = decode_claim(await client.get(RESOURCE_CLAIMS, name, namespace=namespace))
    except (NotFound, WireError):
        return False
    return claim.node == node


class UsersClaims:
    """Which pods hold cards by claims that their users made, for an agent that serves slots.

    Claims do not change once a pod is bound, so those of each pod are read once.

    Args:
        client: reads claims.
        node: this node's name.
    """

    def __init__(self, client: KubeClient, *, node: str) -> None:
        self._client = client
        self._node = node
        self._held: dict[str, bool] = {}  # by the pod's UID

    async def any(self, pods: Mapping[str, PodInfo]) -> bool:
        """Report whether one of *pods*, which are by UID, holds a card so.

        Raises:
            KubeError: a claim cannot be read now.
        """
        having = {uid: pod for uid, pod in pods.items() if _has_own_claims(pod)}
        self._held = {uid: held for uid, held in self._held.items() if uid in having}
        for uid in having.keys() - self._held.keys():
            self._held[uid] = await _holds_by_them(self._client, having[uid], self._node)
        return any(self._held.values())


class NodeWiring:
    """Follows the node's label while the agent runs.

    Args:
        wirings: those of the cluster.
        serving: the one that this agent serves.
        node: the node as last seen, or None.
        pods: its pods by UID, or None while they are not known.
        claims_held: whether claims are held here by these pods, or still by pods that are gone.
        settle_s: how long whoever places pods has to learn that none are to come.
        clock: paces the waits.
        on_change: called when :attr:`switching` is another one.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        wirings: Wirings,
        serving: Wiring,
        node: Callable[[], NodeState | None],
        pods: Callable[[], Mapping[str, PodInfo] | None],
        claims_held: Callable[[Mapping[str, PodInfo]], Awaitable[bool]],
        settle_s: float,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._wirings = wirings
        self._serving = serving
        self._node = node
        self._pods = pods
        self._claims_held = claims_held
        self._settle_s = settle_s
        self._clock = clock
        self._on_change = on_change
        self._announced_s: float | None = None
        self._withdrawn = False
        self._changed = asyncio.Event()

    @property
    def switching(self) -> Switching | None:
        """Why this agent offers no card for its wiring's sake, or None."""
        wanted = self._wanted()
        if wanted is self._serving or wanted is None:
            return None
        if isinstance(wanted, ValueError):
            problem = f"no card is shared: {wanted}"
        else:
            held = held_by(self._serving, self._pods())
            problem = f"the node goes over to wiring {wanted.value}{f'; {held}' if held else ''}"
        return Switching(problem=problem, withdrawn=self._withdrawn)

    def changed(self) -> None:
        """Look now: the node or its pods have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Follow the label until cancelled.

        Raises:
            EndProcess: the other wiring is to be served from now on.
        """
        while True:
            self._changed.clear()
            try:
                await self._look()
            except KubeError as error:
                log.warning("users_claims_not_read", error=str(error))
            await wait_at_most(self._clock, self._changed, limit_s=_LOOK_S)

    def _wanted(self) -> Wiring | ValueError | None:
        node = self._node()
        if node is None:
            return None
        try:
            return self._wirings.of(node.labels)
        except ValueError as error:
            return error

    async def _look(self) -> None:
        node, wanted = self._node(), self._wanted()
        announced = wanted is not self._serving and _takes_no_pods(node)
        if not announced:
            self._announced_s = None
        elif self._announced_s is None:
            self._announced_s = self._clock.monotonic()
        settled = self._announced_s is not None and (
            self._clock.monotonic() - self._announced_s >= self._settle_s
        )
        if settled is not self._withdrawn:
            self._withdrawn = settled
            self._on_change()
        pods = self._pods()
        if pods is None or not isinstance(wanted, Wiring) or not self._wirings.both:
            return
        if not settled and wanted is not self._serving:
            return
        holders = {wiring for wiring in Wiring if held_by(wiring, pods)}
        holders |= {Wiring.CLAIMS} if await self._claims_held(pods) else set()
        other = served(wanted, holders, now=self._serving)
        if other is not self._serving:
            raise EndProcess(f"this node is served by wiring {other.value} from now on")


def _takes_no_pods(node: NodeState | None) -> bool:
    """Report whether the API server says that no pod is to be placed on the node."""
    return node is not None and (
        not node.shares or (node.sharing is not None and not node.sharing.shared)
    )
