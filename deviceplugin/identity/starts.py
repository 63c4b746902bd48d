"""Answers the runtime, which says by NRI whose container it creates: its cards, or a refusal."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import structlog

from deviceplugin.claims import Claim, NodeClaims, Rejected, RejectReason, claim_of
from deviceplugin.container.adjustment import adjustment_of
from deviceplugin.container.cdi import ABSENT, MARK_PATH, Mount
from deviceplugin.container.compute_units import Units, is_part, read_units
from deviceplugin.container.spec_builder import ContainerSpecBuilder, SpecBuildError
from deviceplugin.enforcement.interface import EnforcementError, Limit
from deviceplugin.enforcement.limiter import Limiter
from deviceplugin.enforcement.promises import chosen_isolation
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.node.inventory import Inventory, InventoryTracker
from deviceplugin.nri.interface import (
    Adjustment,
    Container,
    ContainerState,
    Handler,
    PodSandbox,
    Refused,
    Unified,
)
from fracgpu import names
from fracgpu.request.language import wanted_isolation
from fracgpu.request.need import Isolation
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock

_T = TypeVar("_T")

log = structlog.get_logger()

_NO_CARDS: Final = Adjustment()
# After this long the runtime does not ask any more: kubelet has failed or died in between.
_ASKED_S: Final = 5.0


def has_our_device(container: Container) -> bool:
    """Report whether kubelet was given one of our devices for a container."""
    return any(mount.destination == MARK_PATH for mount in container.mounts) or any(
        name.startswith(f"{names.CDI_KIND}=") for name in container.cdi_devices
    )


def decide(
    sandbox: PodSandbox, container: Container, node_claims: NodeClaims
) -> Claim | Rejected | None:
    """Return what a container may have; None for a container that asks for no card.

    ============================================  =============================================
    the container that the runtime names          result
    ============================================  =============================================
    neither has our device nor is assigned cards  None: it is none of ours
    its pod has not reached us, or is gone        UNKNOWN_POD
    its pod's assignment in the API server        DIFFERS: nobody changes an assignment
    differs from that in the sandbox
    its mount is of a spec that gives cards       OLD_SPEC: an older agent's, which the runtime
                                                  remembers, and which may be another pod's
    anything else                                 :func:`claim_of`: node, size, sums, health
    ============================================  =============================================
    """
    pod = node_claims.pods.get(sandbox.uid)
    key = f"{sandbox.namespace}/{sandbox.name}"
    if not has_our_device(container) and not _is_assigned(pod, container.name):
        return None
    if pod is None:
        text = f"the agent does not know pod {key} with UID {sandbox.uid} from the API server yet"
        return Rejected(reason=RejectReason.UNKNOWN_POD, text=text)
    if sandbox.annotations.get(names.ASSIGNMENT) != pod.annotations.get(names.ASSIGNMENT):
        text = f"{names.ASSIGNMENT} of {key} is another one in the API server than in its sandbox"
        return Rejected(reason=RejectReason.DIFFERS, text=text)
    sources = {mount.source for mount in container.mounts if mount.destination == MARK_PATH}
    if sources - {ABSENT}:
        text = f"the runtime uses an old CDI spec for container {container.name} of {key}"
        return Rejected(reason=RejectReason.OLD_SPEC, text=text)
    return claim_of(container.name, pod, node_claims)


def _is_assigned(pod: PodInfo | None, container: str) -> bool:
    return pod is not None and bool((pod.record.assignment or {}).get(container))


class ContainerStarts(Handler):
    """Answers from memory: the pods that the informer has, and the cards as last listed.

    Kubelet tries a container again that was refused when it was to be created, whatever the pod's
    restart policy: no process of it has run.

    Args:
        node: this node's name.
        tracker: the node's inventory.
        pods: this node's pods by UID; None until they have been listed.
        builder: builds what a container gets.
        limiter: limits what it uses.
        clock: for durations.
        metrics: counts starts by outcome.
        on_started: called with the claim of each container that may start, and what enforces its
            share, in the plugin's thread.
        dev_root: where the host's ``/dev`` is.
    """

    def __init__(  # noqa: PLR0913 - the parts of a start; made once, in service.py
        self,
        *,
        node: str,
        tracker: InventoryTracker,
        pods: Callable[[], Mapping[str, PodInfo] | None],
        builder: ContainerSpecBuilder,
        limiter: Limiter,
        clock: Clock,
        metrics: DevicePluginMetrics,
        on_started: Callable[[Claim, str], None],
        dev_root: Path = Path("/dev"),
    ) -> None:
        self._node = node
        self._tracker = tracker
        self._pods = pods
        self._builder = builder
        self._limiter = limiter
        self._clock = clock
        self._metrics = metrics
        self._on_started = on_started
        self._dev_root = dev_root
        self._containers: Mapping[str, tuple[str, str]] = {}
        self._running: Mapping[str, tuple[str, Container]] = {}
        self._named = False
        # Of containers that have not ended: UID of the pod, name, and what their variable says.
        self._units: Mapping[str, tuple[str, str, Units]] = {}
        self._expected: deque[float] = deque(maxlen=1024)

    def expect(self) -> None:
        """Note that the runtime will ask for one more container, or for one once more."""
        self._expected.append(self._clock.monotonic())

    @property
    def unasked(self) -> bool:
        """Whether the runtime has still to ask for a container that kubelet may start."""
        oldest_s = self._clock.monotonic() - _ASKED_S
        return any(at_s > oldest_s for at_s in tuple(self._expected))

    def _asked(self) -> None:
        with suppress(IndexError):
            # Any will do: which one kubelet had asked about is not known, only how many.
            while self._expected.popleft() < self._clock.monotonic() - _ASKED_S:
                pass

    @property
    def containers(self) -> Mapping[str, tuple[str, str]]:
        """The node's containers: id → UID of the pod and cgroup path, as the runtime named them."""
        return self._containers

    @property
    def running(self) -> Mapping[str, tuple[str, Container]] | None:
        """The node's running containers: id → UID of the pod, and the container.

        None until the runtime has named them.
        """
        return self._running if self._named else None

    def synchronize(self, pods: Sequence[PodSandbox], containers: Sequence[Container]) -> Unified:
        uids = {pod.id: pod.uid for pod in pods}
        self._containers = {
            container.id: (uids.get(container.sandbox_id, ""), container.cgroups_path)
            for container in containers
        }
        self._running = {
            container.id: (uids.get(container.sandbox_id, ""), container)
            for container in containers
            if container.state in (ContainerState.RUNNING, ContainerState.PAUSED)
        }
        self._named = True
        self._units = {
            container.id: (uids.get(container.sandbox_id, ""), container.name, units)
            for container in containers
            if container.state is not ContainerState.STOPPED and (units := _units(container))
        }
        self._limiter.keep_only(self._containers)
        return {}

    def create_container(self, pod: PodSandbox, container: Container) -> Adjustment:
        if has_our_device(container):
            self._asked()
        adjustment = self._answer(pod, container)
        if text := adjustment.env.get(names.ENV_COMPUTE_UNITS):
            given = (pod.uid, container.name, read_units(text))
            self._units = {**self._units, container.id: given}
        self._containers = {**self._containers, container.id: (pod.uid, container.cgroups_path)}
        return adjustment

    def start_container(self, pod: PodSandbox, container: Container) -> None:
        """Set the container's limits and prove them; its cards it has since it was created."""
        mounts = (Mount(host_path=m.source, path=m.destination) for m in container.mounts)
        if (why := self._builder.why_not_any_more(mounts)) is not None:
            raise self._refused(pod, container, "limit_not_proved", why)
        try:
            limits = self._limits(pod, container)
            if limits:
                self._asked()
            # Before its limits are set, so that an audit counts what is kept for it.
            self._running = {**self._running, container.id: (pod.uid, container)}
            while limits:
                self._limiter.prove(container, limits)
                log.info("limits_stand", **_limited(pod, container, limits))
                # The pod may have been resized meanwhile: an audit did not look at the container.
                proved, limits = limits, self._limits(pod, container)
                if limits == proved:
                    break
        except EnforcementError as error:
            self.stop_container(pod, container)
            text = f"its limits do not stand: {error}"
            raise self._refused(pod, container, "limit_not_proved", text) from error

    def stop_container(self, pod: PodSandbox, container: Container) -> None:  # noqa: ARG002
        self._running = without(self._running, container.id)
        self._units = without(self._units, container.id)
        self._limiter.release(container)

    def remove_container(self, pod: PodSandbox, container: Container) -> None:  # noqa: ARG002
        self._limiter.forget(container.id)
        self._running = without(self._running, container.id)
        self._units = without(self._units, container.id)
        self._containers = without(self._containers, container.id)

    def _answer(self, pod: PodSandbox, container: Container) -> Adjustment:
        began_s = self._clock.monotonic()
        pods, inventory = self._pods(), self._tracker.inventory
        if pods is None:
            if has_our_device(container):
                raise self._refused(pod, container, "pods_unknown", "its pods are not listed yet")
            return _NO_CARDS
        claims = NodeClaims(node=self._node, cards=inventory.by_uuid(), pods=pods)
        claim = decide(pod, container, claims)
        if claim is None:
            return _NO_CARDS
        if isinstance(claim, Rejected):
            raise self._refused(pod, container, claim.reason.value, claim.text)
        adjustment, by = self._outfitted(pod, container, claim, inventory)
        self._metrics.started("wired")
        self._metrics.start_took(self._clock.monotonic() - began_s)
        isolation = by.value
        log.info("container_wired", **wired(claim, isolation))
        self._on_started(claim, isolation)
        return adjustment

    def _outfitted(
        self, pod: PodSandbox, container: Container, claim: Claim, inventory: Inventory
    ) -> tuple[Adjustment, Isolation]:
        """Return what a container gets, and what limits it.

        The cards of *claim* are of *inventory*: the tracker's may have others by now.

        Raises:
            Refused: it cannot have that.
        """
        try:
            return self._outfit(container, claim, inventory)
        except SpecBuildError as error:
            raise self._refused(pod, container, "no_outfit", str(error)) from error
        except EnforcementError as error:
            raise self._refused(pod, container, "limit_not_proved", str(error)) from error

    def _outfit(
        self, container: Container, claim: Claim, inventory: Inventory
    ) -> tuple[Adjustment, Isolation]:
        """Return what a container gets, and what limits it.

        Raises:
            SpecBuildError: something that it needs is missing.
            EnforcementError: it cannot be limited as its pod wants.
        """
        by = chosen_isolation(
            wanted_isolation(claim.pod.annotations),
            lambda each: self._why_not(each, claim, inventory),
        )
        spec = self._builder.build(container.name, claim, inventory, by=by, taken=self._taken())
        adjustment = adjustment_of(spec, dev_root=self._dev_root)
        if by not in (Isolation.KERNEL, Isolation.BEST):
            return adjustment, by
        promised, isolation = self._limiter.promise(claim.pod, claim.slices)
        if promised:
            adjustment = self._limiter.hold_back(container, adjustment)
            self.expect()  # its start, which needs the agent too
        return adjustment, isolation

    def _taken(self) -> list[Units]:
        """Return the compute units that containers were given, of cards of which they ask a part.

        Any container may have such a variable of its own.
        """
        pods = self._pods() or {}
        found: list[Units] = []
        for uid, name, units in self._units.values():
            limits = pods[uid].record.limits if uid in pods else None
            cards = [part.card for part in (limits or {}).get(name, ()) if is_part(part.cores)]
            found.append({card: units[card] for card in cards if card in units})
        return found

    def _why_not(self, isolation: Isolation, claim: Claim, inventory: Inventory) -> str | None:
        if isolation is not Isolation.KERNEL:
            return self._builder.why_not(isolation, inventory.hardware(claim.cards))
        return self._limiter.why_not_all(claim.slices)

    def _limits(self, sandbox: PodSandbox, container: Container) -> tuple[Limit, ...]:
        """Return the limits that a container is promised.

        Raises:
            EnforcementError: it was promised some, and they are not known.
        """
        return self._limiter.limits_of(container, (self._pods() or {}).get(sandbox.uid))

    def _refused(self, pod: PodSandbox, container: Container, outcome: str, text: str) -> Refused:
        log.warning(
            "container_refused", uid=pod.uid, container=container.name, outcome=outcome, reason=text
        )
        self._metrics.started(outcome)
        return Refused(text)


def _units(container: Container) -> Units:
    """Return the compute units that a container's variable says."""
    given = (line.partition("=") for line in container.env)
    texts = (value for name, _, value in given if name == names.ENV_COMPUTE_UNITS)
    return read_units(next(texts, ""))


def without(containers: Mapping[str, _T], container: str) -> Mapping[str, _T]:
    """Return *containers* without one."""
    return {known: each for known, each in containers.items() if known != container}


def _limited(
    pod: PodSandbox, container: Container, limits: Sequence[Limit]
) -> Mapping[str, object]:
    return {
        "pod": f"{pod.namespace}/{pod.name}",
        "uid": pod.uid,
        "container": container.name,
        "cgroup": container.cgroups_path,
        "cards": [limit.card for limit in limits],
        "mib": [limit.limit_mib for limit in limits],
    }


def wired(claim: Claim, isolation: str) -> dict[str, object]:
    """Return the fields of the log event of a container that may start."""
    return {
        "pod": claim.pod.record.key,
        "uid": claim.pod.record.uid,
        "container": claim.container,
        "cards": [part.card for part in claim.slices],
        "mib": [part.mib for part in claim.slices],
        "isolation": isolation,
    }
