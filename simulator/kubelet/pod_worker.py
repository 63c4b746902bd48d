"""One pod on a simulated kubelet: its admission, its containers, and its end."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import structlog

from fracgpu import names
from kube.client import KubeClient
from kube.errors import Conflict, KubeError, NotFound
from kube.events import EventLevel, EventRecorder, Regarding
from kube.kinds import PODS
from process.clock import Clock
from simulator.kubelet.claim_manager import ClaimError, ClaimManager
from simulator.kubelet.container_runtime import (
    ContainerLoad,
    ContainerRuntime,
    CreatedContainer,
    RuntimeFailedError,
)
from simulator.kubelet.device_manager import DeviceAllocation, DeviceError, DeviceManager
from simulator.kubelet.pod_status import KubeletPod, number, pod_status

log = structlog.get_logger()

# Annotations of a pod: the share of a card's time (0..1) that it would use alone, the MiB that it
# wants, and the seconds after which it has ended.
BUSY_KEY: Final = "simulator.fracgpu.io/busy"
USED_KEY: Final = "simulator.fracgpu.io/used-mib"
DURATION_KEY: Final = "simulator.fracgpu.io/duration-s"

_API_PAUSE_S: Final = 0.5
_USED_SHARE: Final = 0.9  # of its slice, where the pod has no annotation


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTiming:
    """Durations on this node, in seconds.

    Attributes:
        start_delay_s: from a container's creation until it runs.
        init_run_s: how long an init container runs.
        grace_s: how long containers take to stop.
        backoff_s: first pause after a failed start; it doubles up to *longest_backoff_s*.
        prepare_again_s: pause after claims could not be prepared.
    """

    start_delay_s: float = 1.0
    init_run_s: float = 0.2
    grace_s: float = 0.5
    backoff_s: float = 1.0
    longest_backoff_s: float = 10.0
    prepare_again_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """What the pod workers of one kubelet share."""

    client: KubeClient
    clock: Clock
    events: EventRecorder
    devices: DeviceManager
    claims: ClaimManager
    runtime: ContainerRuntime
    timing: PodTiming
    node: str


def visible_cards(created: CreatedContainer) -> tuple[str, ...]:
    """Return the UUIDs of the cards that a container sees."""
    text = created.env.get(names.ENV_CARDS, "")
    return tuple(uuid for uuid in text.split(",") if uuid)


class PodWorker:
    """Runs one pod from its binding to its end.

    Args:
        pod: the pod as first observed.
        parts: what this kubelet's workers share.
    """

    def __init__(self, pod: KubeletPod, parts: WorkerParts) -> None:
        self.pod = pod
        self.created: dict[str, CreatedContainer] = {}
        self.ended = False
        self._parts = parts
        self._grants: dict[str, list[DeviceAllocation]] = {}
        self._states: dict[str, dict[str, Any]] = {}
        self._restarts: dict[str, int] = {}
        self._gone = False
        self._ending = asyncio.Event()
        self._started_at = ""
        if pod.terminating:
            self._ending.set()

    def update(self, pod: KubeletPod, *, gone: bool) -> None:
        """Update the pod from the API server; *gone* means that it was deleted."""
        self._gone = self._gone or gone
        if gone or pod.terminating:
            self._ending.set()

    async def run(self) -> None:
        """Run the pod until it is gone."""
        try:
            async with asyncio.TaskGroup() as group:
                life = group.create_task(self._live(), name=f"live_{self.pod.name}")
                await self._ending.wait()
                life.cancel()
            if not self._gone:
                await self._parts.clock.sleep(self._parts.timing.grace_s)
        finally:
            self._stop_containers()
        await self._parts.claims.unprepare(self.pod.uid)
        await self._let_go()

    async def restart(self, container: str) -> None:
        """Stop *container* and start it again."""
        self._parts.runtime.stop(self.pod.key(container))
        self._restarts[container] = self._restarts.get(container, 0) + 1
        await self._start(container)
        await self._report("Running")

    async def _live(self) -> None:
        self._started_at = self._stamp()
        if not await self._admit():
            return
        await self._report("Pending")
        await self._prepare()
        for plan in self.pod.containers:
            if plan.init:
                await self._start(plan.name)
                await self._parts.clock.sleep(self._parts.timing.init_run_s)
                self._parts.runtime.stop(self.pod.key(plan.name))
                self._states[plan.name] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
            elif plan.sidecar:
                await self._start(plan.name)
        async with asyncio.TaskGroup() as group:
            for plan in self.pod.containers:
                if not plan.init and not plan.sidecar:
                    group.create_task(self._start(plan.name), name=f"start_{plan.name}")
        await self._report("Running")
        duration_s = number(self.pod.annotations.get(DURATION_KEY))
        if duration_s is not None:
            await self._parts.clock.sleep(duration_s)
            await self._end("Succeeded")

    async def _end(self, phase: str, *, reason: str = "", message: str = "") -> None:
        self._stop_containers()
        for plan in self.pod.containers:
            self._states[plan.name] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        self.ended = True
        self._parts.devices.retire(self.pod.uid)
        await self._parts.claims.unprepare(self.pod.uid)
        await self._report(phase, reason=reason, message=message)

    # -- admission -----------------------------------------------------------------------------

    async def _admit(self) -> bool:
        """Allocate devices, container by container; a pod that cannot have them fails."""
        reusable: dict[str, set[str]] = {}
        devices = self._parts.devices
        try:
            for plan in self.pod.containers:
                for resource, count in plan.wants.items():
                    if devices.manages(resource):
                        spare = reusable.setdefault(resource, set())
                        grant = await devices.allocate(
                            self.pod.key(plan.name),
                            resource=resource,
                            count=count,
                            reusable=spare,
                        )
                        # A finished init container's devices are reused; a sidecar's stay in use.
                        (spare.update if plan.init else spare.difference_update)(grant.ids)
                        self._grants.setdefault(plan.name, []).append(grant)
        except DeviceError as error:
            reason = "UnexpectedAdmissionError"
            log.warning("pod_not_admitted", pod=self.pod.name, reason=str(error))
            await self._event(EventLevel.WARNING, reason, str(error))
            await self._end("Failed", reason=reason, message=str(error))
            return False
        return True

    async def _prepare(self) -> None:
        """Have the pod's claims prepared, however often it takes."""
        while True:
            try:
                await self._parts.claims.prepare(self.pod)
            except ClaimError as error:
                log.warning("claims_not_prepared", pod=self.pod.name, reason=str(error))
                note = f"Failed to prepare dynamic resources: {error}"
                await self._event(EventLevel.WARNING, "FailedPrepareDynamicResources", note)
                await self._parts.clock.sleep(self._parts.timing.prepare_again_s)
            else:
                return

    # -- containers ----------------------------------------------------------------------------

    async def _start(self, container: str) -> None:
        """Start one container, retrying with backoff."""
        timing = self._parts.timing
        pause_s = timing.backoff_s
        self._states[container] = {"waiting": {"reason": "ContainerCreating"}}
        while (created := await self._try(container)) is None:
            await self._parts.clock.sleep(pause_s)
            pause_s = min(timing.longest_backoff_s, pause_s * 2)
        self.created[container] = created
        await self._parts.clock.sleep(timing.start_delay_s)
        pid = self._parts.runtime.start(
            self.pod.key(container),
            self._load(container, created),
            container_id=created.id,
            cgroup=created.cgroup,
        )
        self._states[container] = {"running": {"startedAt": self._stamp()}}
        log.info("container_started", pod=self.pod.name, container=container, pid=pid)

    async def _try(self, container: str) -> CreatedContainer | None:
        try:
            return await self._create(container)
        except DeviceError as error:
            await self._refused(container, "CreateContainerConfigError", str(error))
        except RuntimeFailedError as error:
            await self._refused(container, "CreateContainerError", str(error))
        return None

    async def _create(self, container: str) -> CreatedContainer:
        grants = self._grants.get(container, [])
        for grant in grants:
            await self._parts.devices.pre_start(grant)
        env = {key: value for grant in grants for key, value in grant.env.items()}
        cdi_devices = [name for grant in grants for name in grant.cdi_devices]
        for _claim, devices in self._parts.claims.of(self.pod, container):
            cdi_devices += (name for device in devices for name in device.cdi_devices)
        return await self._parts.runtime.create(self.pod.sandbox, container, cdi_devices, env=env)

    async def _refused(self, container: str, reason: str, text: str) -> None:
        log.warning("container_not_started", pod=self.pod.name, container=container, reason=text)
        self._states[container] = {"waiting": {"reason": reason, "message": text}}
        await self._event(EventLevel.WARNING, "Failed", f"Error: {text}")
        await self._report("Pending")

    def _load(self, container: str, created: CreatedContainer) -> ContainerLoad | None:
        cards = visible_cards(created)
        if not cards:
            return None
        first = next(
            plan.name for plan in self.pod.containers if plan.claims or plan.name in self._grants
        )
        notes = self.pod.annotations
        busy_ratio = number(notes.get(BUSY_KEY)) if container == first else None
        used_mib = number(notes.get(USED_KEY))
        if used_mib is None:
            slice_mib = number(created.env.get(names.ENV_MEM_MIB, "").split(",")[0])
            used_mib = (slice_mib or 0) * _USED_SHARE
        return ContainerLoad(cards=cards, used_mib=int(used_mib), busy_ratio=busy_ratio or 0.0)

    def _stop_containers(self) -> None:
        for plan in self.pod.containers:
            self._parts.runtime.stop(self.pod.key(plan.name))

    # -- status ---------------------------------------------------------------------------------

    async def _report(self, phase: str, *, reason: str = "", message: str = "") -> None:
        """Write the pod's status, retrying through an API outage."""
        status = pod_status(
            self.pod,
            phase=phase,
            started_at=self._started_at,
            states=self._states,
            restarts=self._restarts,
        )
        if reason:
            status |= {"reason": reason, "message": message}
        # With the UID it is a Conflict if the name now belongs to another pod.
        patch = {"metadata": {"uid": self.pod.uid}, "status": status}
        while True:
            try:
                await self._parts.client.patch(
                    PODS,
                    self.pod.name,
                    patch,
                    namespace=self.pod.namespace,
                    subresource="status",
                )
            except (NotFound, Conflict):
                return
            except KubeError as error:
                log.warning("pod_status_not_written", pod=self.pod.name, error=str(error))
            else:
                return
            await self._parts.clock.sleep(_API_PAUSE_S)

    async def _event(self, level: EventLevel, reason: str, note: str) -> None:
        regarding = Regarding.pod(self.pod)
        await self._parts.events.emit(regarding, reason=reason, note=note, level=level)

    async def _let_go(self) -> None:
        """Delete the pod from the API server: none of its containers runs any more."""
        while not self._gone:
            try:
                await self._parts.client.delete(
                    PODS,
                    self.pod.name,
                    namespace=self.pod.namespace,
                    uid=self.pod.uid,
                    grace_s=0,
                )
            except (NotFound, Conflict):
                return
            except KubeError as error:
                log.warning("pod_not_removed", pod=self.pod.name, error=str(error))
            else:
                return
            await self._parts.clock.sleep(_API_PAUSE_S)

    def _stamp(self) -> str:
        return self._parts.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
