"""Compares assignments with kubelet, device files and processes."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

import structlog

from deviceplugin.cards.interface import CardHardware, SamplesByCard
from deviceplugin.claims import PodKey, SlotHolder
from deviceplugin.exporter.attribution import Attribution, Owner
from deviceplugin.exporter.visible_devices import VisibleDevices, card_files
from deviceplugin.kubelet.pod_resources import PodResources, PodResourcesError
from deviceplugin.metrics import DevicePluginMetrics
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.k8s.container import ContainerKind
from fracgpu.state.allocation import cards_in
from fracgpu.state.pod_info import PodInfo
from process.clock import Clock

log = structlog.get_logger()

_STARTED: Final = "Running"


class Disagreement(Enum):
    """What contradicts the assignment; the value is a metric label."""

    KUBELET_LACKS = "kubelet_lacks_the_slots"
    KUBELET_HAS = "kubelet_has_slots_of_no_assignment"
    PROCESS_ELSEWHERE = "process_on_another_card"
    CARD_MISSING = "container_lacks_its_card"
    CARD_TOO_MANY = "container_has_another_card"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One disagreement: its kind, and the container or pod concerned."""

    kind: Disagreement
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The state of all sources at one moment.

    Attributes:
        pods: this node's pods as the API server has them.
        holders: kubelet's list.
        readings: the processes on the cards.
        owners: the pod of each process, by pid.
        devices: the cards whose device files each container has, by the container's id.
        findable: the cards whose device files are known.
    """

    pods: Mapping[PodKey, PodInfo]
    holders: Sequence[SlotHolder] = ()
    readings: SamplesByCard = field(default_factory=dict)
    owners: Mapping[int, Owner | None] = field(default_factory=dict)
    devices: Mapping[str, frozenset[CardUuid]] = field(default_factory=dict)
    findable: frozenset[CardUuid] = frozenset()


def compare(evidence: Evidence) -> frozenset[Finding]:
    """Return every disagreement about running containers.

    Pods that are starting or terminating are left out: there the sources cannot agree yet.
    """
    found = [*_kubelet_lacks(evidence), *_kubelet_has(evidence), *_processes(evidence)]
    return frozenset((*found, *_devices(evidence)))


def running(pods: Iterable[PodInfo]) -> Iterable[tuple[PodInfo, str, str]]:
    """Yield the running containers with an assignment: pod, container name and container id."""
    for pod in pods:
        inits = {spec.name for spec in pod.record.containers if spec.kind is ContainerKind.INIT}
        if _settled(pod):
            for container in pod.record.assignment or {}:
                container_id = pod.container_ids.get(container, "")
                if container not in inits and container_id:
                    yield pod, container, container_id


def _devices(evidence: Evidence) -> Iterable[Finding]:
    """Yield where a container's device files differ from its assignment."""
    for pod, container, container_id in running(evidence.pods.values()):
        has = evidence.devices.get(container_id)
        if has is None:
            continue
        assigned = {part.card for part in (pod.record.assignment or {})[container]}
        subject = f"{pod.record.key}/{container}"
        if assigned & evidence.findable - has:
            yield Finding(kind=Disagreement.CARD_MISSING, subject=subject)
        if has - assigned:
            yield Finding(kind=Disagreement.CARD_TOO_MANY, subject=subject)


def _settled(pod: PodInfo) -> bool:
    return pod.record.live and not pod.record.terminating and pod.phase == _STARTED


def _kubelet_lacks(evidence: Evidence) -> Iterable[Finding]:
    listed = {(*holder.key, holder.container): len(holder.slot_ids) for holder in evidence.holders}
    for key, pod in evidence.pods.items():
        if not _settled(pod):
            continue
        inits = {spec.name for spec in pod.record.containers if spec.kind is ContainerKind.INIT}
        for container, slices in (pod.record.assignment or {}).items():
            count = listed.get((*key, container), 0)
            # With a claim, kubelet lists what all containers of it have.
            lacks = count != len(slices) if names.ASSIGNMENT in pod.annotations else not count
            # Kubelet does not list plain init containers.
            if container not in inits and lacks:
                subject = f"{pod.record.key}/{container}"
                yield Finding(kind=Disagreement.KUBELET_LACKS, subject=subject)


def _kubelet_has(evidence: Evidence) -> Iterable[Finding]:
    for holder in evidence.holders:
        pod = evidence.pods.get(holder.key)
        if pod is None or not _settled(pod):
            continue
        if not (pod.record.assignment or {}).get(holder.container, ()):
            subject = f"{pod.record.key}/{holder.container}"
            yield Finding(kind=Disagreement.KUBELET_HAS, subject=subject)


def _processes(evidence: Evidence) -> Iterable[Finding]:
    """Yield the processes of this node's pods on cards that are not assigned to the pod.

    Processes of no pod contradict no assignment; the snapshot of usage counts them.
    """
    by_uid = {pod.record.uid: pod for pod in evidence.pods.values()}
    for card, sample in evidence.readings.items():
        for process in sample.processes:
            owner = evidence.owners.get(process.pid)
            pod = by_uid.get(owner.pod_uid) if owner is not None else None
            if pod is None or not pod.record.live:
                continue
            if card not in cards_in(pod.record.assignment or {}):
                subject = f"{pod.record.key} on {card}"
                yield Finding(kind=Disagreement.PROCESS_ELSEWHERE, subject=subject)


class ConsistencyCheck:
    """Compares periodically; what two checks in a row find is counted and logged.

    A single check may run while a container starts or ends.

    Args:
        pods: this node's pods as last seen, or None before.
        pod_resources: kubelet's list.
        attribution: finds the pods of processes.
        visible_devices: finds the cards that running containers have.
        cards: the node's cards with their device files.
        clock: paces the checks.
        period_s: between two checks.
        metrics: counts what is found.
        dev_root: where the host's ``/dev`` is.
    """

    def __init__(  # noqa: PLR0913 - its parts, all by keyword; made once, in service.py
        self,
        *,
        pods: Callable[[], Mapping[PodKey, PodInfo] | None],
        pod_resources: PodResources,
        attribution: Attribution,
        visible_devices: VisibleDevices,
        cards: Callable[[], Iterable[CardHardware]],
        clock: Clock,
        period_s: float,
        metrics: DevicePluginMetrics,
        dev_root: Path = Path("/dev"),
    ) -> None:
        self._pods = pods
        self._pod_resources = pod_resources
        self._attribution = attribution
        self._visible_devices = visible_devices
        self._cards = cards
        self._dev_root = dev_root
        self._clock = clock
        self._period_s = period_s
        self._metrics = metrics
        self._samples: SamplesByCard = {}
        self._suspected: frozenset[Finding] = frozenset()
        self._confirmed: frozenset[Finding] = frozenset()

    def observe(self, samples: SamplesByCard) -> None:
        """Set the newest samples of the cards."""
        self._samples = samples

    async def run(self) -> None:
        """Compare until cancelled."""
        while True:
            await self._clock.sleep(self._period_s)
            await self.audit()

    async def audit(self) -> None:
        """Compare once; if one source cannot be read, nothing is compared."""
        pods = self._pods()
        if pods is None:
            return
        samples = self._samples
        pids = {process.pid for sample in samples.values() for process in sample.processes}
        files = await asyncio.to_thread(card_files, tuple(self._cards()), dev_root=self._dev_root)
        ids = frozenset(container_id for *_, container_id in running(pods.values()))
        devices = await asyncio.to_thread(self._visible_devices.cards, ids, files)
        self._metrics.containers_not_checked(len(ids - devices.keys()))
        try:
            evidence = Evidence(
                pods=pods,
                holders=await self._pod_resources.holders(),
                readings=samples,
                owners=await asyncio.to_thread(self._attribution.owners, pids),
                devices=devices,
                findable=frozenset(files),
            )
        except PodResourcesError as error:
            self._metrics.consistency_check_failed()
            log.warning("audit_not_done", reason=str(error))
            return
        self._record(compare(evidence))

    def _record(self, found: frozenset[Finding]) -> None:
        confirmed = found & self._suspected
        new = confirmed - self._confirmed
        self._suspected, self._confirmed = found, confirmed
        for finding in sorted(new, key=lambda finding: (finding.kind.value, finding.subject)):
            log.warning("disagreement_found", kind=finding.kind.value, subject=finding.subject)
        self._metrics.consistency_checked(now=_by_kind(confirmed), new=_by_kind(new))


def _by_kind(findings: Iterable[Finding]) -> dict[str, int]:
    counts = {kind.value: 0 for kind in Disagreement}
    for finding in findings:
        counts[finding.kind.value] += 1
    return counts
