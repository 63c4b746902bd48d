"""The audit proves each promised limit, puts right what it can, and names the rest."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.cards.interface import GroupLimits
from deviceplugin.enforcement.audit import LimitAudit
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.nri.interface import Adjustment, Container
from fracgpu import names
from fracgpu.cards.card import CardUuid
from fracgpu.state.pod_info import PodInfo
from fracgpu.units import Mib
from kube.errors import Conflict
from kube.events import EventLevel
from kube.kinds import Kind
from tests.deviceplugin.builders import a_pod, a_resized_pod
from tests.deviceplugin.enforcement.builders import (
    TWO,
    LimitedNode,
    a_limited_container,
    a_limited_node,
)
from tests.fakes.clock import VirtualClock
from tests.fakes.events import RecordedEvents

A, B = CardUuid("GPU-a"), CardUuid("GPU-b")
POD = a_pod(assigned={"train": [("GPU-a", 1000), ("GPU-b", 300)]})
OTHER = a_pod("other", assigned={"train": [("GPU-a", 200)]})
STRANGER = Container(
    id="web", sandbox_id="s", name="web", cgroups_path="/kubepods/burstable/podx/web"
)
NONE = GroupLimits(guaranteed_mib=Mib(0), limit_mib=None)


@dataclass
class Rig:
    """A node whose containers run with their limits, and its audit."""

    node: LimitedNode
    audit: LimitAudit
    events: RecordedEvents
    registry: CollectorRegistry
    running: dict[str, tuple[str, Container]]
    pods: dict[str, PodInfo] | None
    named: bool = True
    confirmed: list[dict[str, Any]] = field(default_factory=list)
    refuses: bool = False

    async def patch(
        self, kind: Kind, name: str, patch: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]:
        if self.refuses:
            raise Conflict(verb="PATCH", path=name, status=409, reason="Conflict", message="")
        self.confirmed.append({"name": name, "namespace": namespace, **patch["metadata"]})
        return {}

    def resize(self, mib: int, *, applied: int | None = None) -> PodInfo:
        """Grant ``OTHER`` another size than its 200 MiB."""
        pod = a_resized_pod(mib, was=200, applied=applied, name="other")
        assert self.pods is not None
        self.pods[pod.record.uid] = pod
        return pod

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"fracgpu_enforcement_{name}", labels)

    def start(self, pod: PodInfo) -> Container:
        """Let a container begin as the runtime does."""
        container = a_limited_container(pod)
        self.node.driver.make(self.group(container))
        self.node.limiter.hold_back(container, Adjustment())
        self.node.limiter.prove(container, self.node.limiter.limits_of(container, pod))
        self.running[container.id] = (pod.record.uid, container)
        return container

    def group(self, container: Container) -> str:
        return self.node.group(container.cgroups_path)

    def kept(self, group: str, card: CardUuid = A) -> int:
        return self.node.driver.read(card, self.node.group(group)).guaranteed_mib

    def stands(self, container: Container, card: CardUuid = A) -> Mib | None:
        return self.node.driver.read(card, self.group(container)).limit_mib


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    node, events, registry = a_limited_node(tmp_path), RecordedEvents(), CollectorRegistry()
    running: dict[str, tuple[str, Container]] = {}
    pods: dict[str, PodInfo] | None = {pod.record.uid: pod for pod in (POD, OTHER)}
    running["web"] = ("uid-x", STRANGER)
    node.driver.make(node.group(STRANGER.cgroups_path))
    rig = Rig(node, None, events, registry, running, pods)  # type: ignore[arg-type] # set below

    def known() -> Mapping[str, PodInfo] | None:
        return rig.pods

    rig.audit = LimitAudit(
        running=lambda: dict(running) if rig.named else None,
        pods=known,
        cards=lambda: [card.uuid for card in TWO],
        limiter=node.limiter,
        recorder=events,
        metrics=DevicePluginMetrics(registry),
        clock=VirtualClock(),
        period_s=60,
        writer=rig,
    )
    yield rig
    calm = {"ResizeApplied"}
    said = zip(events.events, events.levels, strict=True)
    assert all(level is EventLevel.WARNING for event, level in said if event[1] not in calm)


async def test_on_a_healthy_node_all_is_proved_and_nothing_is_said(rig: Rig) -> None:
    rig.start(POD)
    rig.start(OTHER)

    await rig.audit.audit()

    assert (rig.value("promised"), rig.value("unproven")) == (3, 0)
    assert rig.value("repairs_total", what="limit") == 0
    assert rig.value("repairs_total", what="reservation") == 0
    assert rig.events.events == []


async def test_a_limit_that_somebody_took_away_is_set_again_counted_and_named(rig: Rig) -> None:
    container = rig.start(POD)
    rig.node.driver.set(B, rig.group(container), NONE)

    await rig.audit.audit()

    assert rig.stands(container, B) == 300
    assert (rig.value("unproven"), rig.value("repairs_total", what="limit")) == (0, 1)
    ((pod, reason, note),) = rig.events.events
    assert (pod, reason) == ("Pod/train-0", "LimitRestored")
    assert "GPU-b has no limit, not of 300 MiB" in note
    await rig.audit.audit()
    assert len(rig.events.events) == 1


@pytest.mark.parametrize("how", ["lost", "trouble", "use"])
async def test_what_cannot_be_set_again_is_unproven_until_it_can(rig: Rig, how: str) -> None:
    container = rig.start(OTHER)
    rig.node.driver.set(A, rig.group(container), NONE)
    if how == "lost":
        rig.node.driver.lost = 2
    elif how == "trouble":
        rig.node.driver.troubles[A] = "it does not answer"
    else:
        rig.node.driver.used_mib[A, rig.group(container)] = 201

    await rig.audit.audit()
    await rig.audit.audit()

    assert (rig.value("promised"), rig.value("unproven")) == (1, 1)
    assert [reason for _, reason, _ in rig.events.events] == ["LimitNotProved"]
    rig.node.driver.lost = 0
    rig.node.driver.troubles.clear()
    rig.node.driver.used_mib.clear()
    await rig.audit.audit()
    assert (rig.value("unproven"), rig.stands(container)) == (0, 200)


async def test_while_the_pods_are_unknown_a_promised_limit_is_unproven(rig: Rig) -> None:
    """Another agent started the container; its gate says that it was promised limits."""
    rig.start(OTHER)
    rig.pods = None

    await rig.audit.audit()

    assert (rig.value("promised"), rig.value("unproven")) == (1, 1)


async def test_a_container_that_an_agent_without_limits_started_was_promised_none(rig: Rig) -> None:
    container = a_limited_container(OTHER, held_back=False)
    rig.node.driver.make(rig.group(container))
    rig.running[container.id] = (OTHER.record.uid, container)

    await rig.audit.audit()

    assert (rig.value("promised"), rig.value("unproven")) == (0, 0)
    assert rig.stands(container) is None


async def test_a_container_that_ends_meanwhile_is_not_unproven(rig: Rig) -> None:
    container = rig.start(OTHER)
    rig.node.driver.remove(rig.group(container))

    await rig.audit.audit()

    assert rig.value("unproven") == 0
    assert rig.events.events == []


async def test_the_limit_of_a_container_that_has_ended_is_not_set_again(rig: Rig) -> None:
    container = rig.start(OTHER)
    rig.node.limiter.release(container)

    await rig.audit.audit()

    assert rig.stands(container) is None
    assert rig.value("repairs_total", what="limit") == 0


@pytest.mark.parametrize("mib", [900, 50])
async def test_a_granted_size_is_applied_read_back_and_confirmed(rig: Rig, mib: int) -> None:
    container = rig.start(OTHER)
    pod = rig.resize(mib)

    await rig.audit.audit()

    assert rig.stands(container) == mib
    assert rig.kept("/kubepods") == mib
    granted = {"train": [{"card": "GPU-a", "mib": mib}]}
    (said,) = rig.confirmed
    assert json.loads(said["annotations"][names.APPLIED]) == granted
    # The scheduler may have granted another size since.
    assert (said["uid"], said["resourceVersion"]) == (pod.record.uid, pod.record.resource_version)
    assert [reason for _, reason, _ in rig.events.events] == ["ResizeApplied"]
    assert (rig.value("unproven"), rig.value("repairs_total", what="limit")) == (0, 0)


async def test_a_size_below_present_use_waits_and_the_limit_before_stays_proved(rig: Rig) -> None:
    container = rig.start(OTHER)
    rig.node.driver.used_mib[A, rig.group(container)] = 150
    rig.resize(100)

    for _ in range(3):
        await rig.audit.audit()

    assert rig.stands(container) == 200
    assert rig.confirmed == []
    assert rig.value("unproven") == 0
    ((_, reason, note),) = rig.events.events
    assert reason == "ResizeNotApplied"
    assert "more than that is in use" in note

    rig.node.driver.used_mib.clear()
    await rig.audit.audit()
    assert rig.stands(container) == 100
    assert len(rig.confirmed) == 1


async def test_another_size_before_the_last_one_was_confirmed_leaves_a_limit(rig: Rig) -> None:
    container = rig.start(OTHER)
    smaller = GroupLimits(guaranteed_mib=Mib(150), limit_mib=Mib(150))
    rig.node.driver.set(A, rig.group(container), smaller)
    rig.node.driver.used_mib[A, rig.group(container)] = 120
    rig.resize(100)

    for _ in range(3):
        await rig.audit.audit()

    assert rig.stands(container) == 150
    assert rig.value("unproven") == 0

    rig.node.driver.used_mib.clear()
    await rig.audit.audit()
    assert rig.stands(container) == 100


async def test_a_limit_that_was_lost_while_it_is_resized_is_named_and_set(rig: Rig) -> None:
    container = rig.start(OTHER)
    rig.node.driver.set(A, rig.group(container), NONE)
    rig.resize(100)

    await rig.audit.audit()

    assert rig.stands(container) == 100
    assert [reason for _, reason, _ in rig.events.events] == ["LimitRestored", "ResizeApplied"]


async def test_nothing_is_confirmed_of_a_container_that_does_not_run_or_just_begins(
    rig: Rig,
) -> None:
    rig.resize(900)
    await rig.audit.audit()
    assert rig.confirmed == []

    container = a_limited_container(OTHER)
    rig.node.driver.make(rig.group(container))
    rig.node.limiter.hold_back(container, Adjustment())
    rig.running[container.id] = (OTHER.record.uid, container)
    # Its start sets what was granted before, while the audit looks.
    rig.node.limiter.release(container)
    rig.node.driver.set(
        A, rig.group(container), GroupLimits(guaranteed_mib=Mib(900), limit_mib=Mib(900))
    )
    await rig.audit.audit()
    assert rig.confirmed == []


async def test_a_confirmation_that_came_too_late_is_repeated(rig: Rig) -> None:
    rig.start(OTHER)
    rig.resize(900)
    rig.refuses = True
    await rig.audit.audit()
    rig.refuses = False

    await rig.audit.audit()
    assert len(rig.confirmed) == 1

    rig.resize(900, applied=900)
    await rig.audit.audit()
    assert len(rig.confirmed) == 1


async def test_what_removed_cgroups_left_above_is_repaired(rig: Rig) -> None:
    """The end of a container was not told, as while the agent is away."""
    gone, stays = rig.start(OTHER), rig.start(POD)
    del rig.running[gone.id]
    rig.node.driver.remove(rig.group(gone))
    assert rig.kept("/kubepods") == 1200

    await rig.audit.audit()

    assert rig.kept("/kubepods") == rig.kept("/kubepods/burstable") == 1000
    assert rig.kept("/kubepods", B) == 300
    assert rig.value("repairs_total", what="reservation") not in (None, 0)
    del rig.running[stays.id]
    rig.node.driver.remove(rig.group(stays))
    await rig.audit.audit()
    assert rig.kept("/kubepods") == rig.kept("/kubepods", B) == 0


async def test_what_the_last_container_of_the_node_left_is_repaired_too(rig: Rig) -> None:
    """Also where the agent runs in no container, and its own keeps no tree of cgroups in sight."""
    gone = rig.start(OTHER)
    rig.running.clear()
    rig.node.driver.remove(rig.group(gone))

    await rig.audit.audit()

    assert rig.kept("/kubepods") == rig.kept("/kubepods/burstable") == 0


async def test_before_the_runtime_has_named_its_containers_nothing_is_repaired(rig: Rig) -> None:
    rig.start(OTHER)
    rig.named = False

    await rig.audit.audit()

    assert rig.kept("/kubepods") == 200
    assert rig.value("repairs_total", what="reservation") == 0


async def test_what_others_keep_for_their_containers_is_not_taken_away(rig: Rig) -> None:
    rig.start(OTHER)
    theirs = GroupLimits(guaranteed_mib=Mib(70), limit_mib=None)
    rig.node.driver.set(A, rig.group(STRANGER), theirs)

    await rig.audit.audit()

    assert rig.kept("/kubepods") == 270
    assert rig.value("repairs_total", what="reservation") == 0


async def test_a_limit_of_a_cgroup_above_stays_when_what_it_keeps_is_repaired(rig: Rig) -> None:
    rig.start(OTHER)
    above = rig.node.group("/kubepods/burstable")
    rig.node.driver.set(A, above, GroupLimits(guaranteed_mib=Mib(900), limit_mib=Mib(5000)))

    await rig.audit.audit()

    assert rig.node.driver.read(A, above) == GroupLimits(
        guaranteed_mib=Mib(200), limit_mib=Mib(5000)
    )


async def test_a_container_that_begins_during_a_repair_puts_it_off(rig: Rig) -> None:
    gone = rig.start(OTHER)
    del rig.running[gone.id]
    rig.node.driver.remove(rig.group(gone))
    first = rig.start(POD)
    again = a_pod("again", assigned={"train": [("GPU-a", 200)]})
    assert rig.pods is not None
    rig.pods[again.record.uid] = again
    waiting = [again]

    def begin(card: CardUuid, group: str) -> None:
        if group == rig.group(gone).rpartition("/")[0]:
            while waiting:
                rig.start(waiting.pop())

    rig.node.driver.on_read = begin
    await rig.audit.audit()
    assert rig.kept("/kubepods") == 1400  # 200 of them are left by the first

    await rig.audit.audit()
    assert rig.kept("/kubepods") == 1200
    assert rig.stands(first) == 1000


@pytest.mark.parametrize(
    ("wanted", "how", "stopped"),
    [
        ("kernel", "lost", True),
        ("best", "lost", False),
        # The driver does not answer; what it was told to limit may well be limited.
        ("kernel", "trouble", False),
    ],
)
async def test_a_container_without_the_limit_that_its_pod_insists_on_is_ended(
    rig: Rig, wanted: str, how: str, stopped: bool
) -> None:
    pod = a_pod(annotations={names.ISOLATION: wanted})
    assert rig.pods is not None
    rig.pods[pod.record.uid] = pod
    container = rig.start(pod)
    kill = Path(rig.group(container)) / "cgroup.kill"
    kill.touch()
    rig.node.driver.set(A, rig.group(container), NONE)
    rig.node.driver.lost = 99 if how == "lost" else 0
    if how == "trouble":
        rig.node.driver.troubles[A] = "it does not answer"

    await rig.audit.audit()
    assert kill.read_text() == ""  # once may be a passing fault
    await rig.audit.audit()

    assert kill.read_text() == ("1" if stopped else "")
    reasons = [reason for _, reason, _ in rig.events.events]
    assert reasons == ["LimitNotProved", *(["UnlimitedContainerStopped"] if stopped else [])]


async def test_a_container_that_cannot_be_ended_stays_unproven(rig: Rig) -> None:
    pod = a_pod(annotations={names.ISOLATION: "kernel"})
    assert rig.pods is not None
    rig.pods[pod.record.uid] = pod
    container = rig.start(pod)
    rig.node.driver.set(A, rig.group(container), NONE)
    rig.node.driver.lost = 99

    await rig.audit.audit()
    await rig.audit.audit()

    assert [reason for _, reason, _ in rig.events.events] == ["LimitNotProved"]
    assert rig.value("unproven") == 1
