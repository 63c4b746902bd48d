"""Allocate and PreStart by either way: a spec that is ready, or an error that names the cause."""

import json
import math
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.claims import Claim, RejectReason, SlotHolder
from deviceplugin.container.cdi import ABSENT, SHARED, CdiFolder, device_name
from deviceplugin.container.interposer import Interposer
from deviceplugin.container.verify_hook import VerifyHook
from deviceplugin.identity.ways import Ways
from deviceplugin.kubelet.pod_resources import PodResources, PodResourcesError
from deviceplugin.kubelet.pre_start import PreStartError, PreStartHandler
from deviceplugin.metrics import DevicePluginMetrics
from deviceplugin.nri.interface import Connection, Status
from fracgpu import names
from fracgpu.state.pod_info import PodInfo
from tests.deviceplugin.builders import (
    NODE,
    VANISHING,
    FakeCards,
    a_card,
    a_holder,
    a_pod,
    a_spec_builder,
    a_tracker,
)
from tests.deviceplugin.container.test_interposer import an_elf_file
from tests.fakes.clock import VirtualClock

S1 = frozenset({"s1"})


class FakeKubelet(PodResources):
    """Returns the holders it is given; raises an error given in their place."""

    def __init__(self, *holders: SlotHolder) -> None:
        self.answer: tuple[SlotHolder, ...] | PodResourcesError = holders
        self.asked = 0

    async def holders(self) -> tuple[SlotHolder, ...]:
        self.asked += 1
        if isinstance(self.answer, PodResourcesError):
            raise self.answer
        return self.answer


class FakeRuntime:
    problem: str | None = None

    async def check(self) -> str | None:
        return self.problem


@dataclass(slots=True)
class Rig:
    pre_start: PreStartHandler
    ways: Ways
    kubelet: FakeKubelet
    runtime: FakeRuntime
    folder: Path
    clock: VirtualClock
    registry: CollectorRegistry
    prepared: list[Claim]
    left: list[None]

    def starts(self, outcome: str) -> float:
        found = self.registry.get_sample_value(
            "fracgpu_deviceplugin_starts_total", {"outcome": outcome}
        )
        return found or 0

    def specs(self) -> dict[str, dict[str, Any]]:
        """Return what each device in the folder gives."""
        found = {}
        for file in self.folder.glob("*.json"):
            (device,) = json.loads(file.read_text())["devices"]
            found[device["name"]] = device["containerEdits"]
        return found

    async def refusal(self, slot_ids: frozenset[str] = S1) -> str:
        with pytest.raises(PreStartError) as caught:
            await self.pre_start.prepare(slot_ids)
        return str(caught.value)


async def a_rig(
    folder: Path,
    *pods: PodInfo,
    nri: bool = True,
    listed: bool = True,
    looks: float = math.inf,
    library: Interposer | None = None,
) -> Rig:
    cards, clock, registry = (
        FakeCards(a_card("GPU-a"), a_card("GPU-b", index=1)),
        VirtualClock(),
        (CollectorRegistry()),
    )
    metrics = DevicePluginMetrics(registry)
    tracker = a_tracker(cards, clock)
    await tracker.refresh()
    tracker.looks = looks
    hook = VerifyHook(Path("/var/lib/fracgpu/bin"))
    ways = Ways(
        hook_problem=lambda: None, clock=clock, record=metrics.identity_is, on_change=lambda: None
    )
    ways.observe(Status(connection=Connection.CONNECTED if nri else Connection.NO_SOCKET))
    here = pods or (a_pod(),)
    kubelet, runtime = FakeKubelet(a_holder()), FakeRuntime()
    prepared, left = list[Claim](), list[None]()
    pre_start = PreStartHandler(
        node=NODE,
        tracker=tracker,
        ways=ways,
        pod_resources=kubelet,
        pods=lambda: {pod.record.uid: pod for pod in here} if listed else None,
        runtime=runtime,
        builder=a_spec_builder(library=library),
        specs=CdiFolder(folder),
        hook=hook,
        clock=clock,
        metrics=metrics,
        on_prepared=lambda claim, _: prepared.append(claim),
        on_left=lambda: left.append(None),
    )
    return Rig(pre_start, ways, kubelet, runtime, folder, clock, registry, prepared, left)


def is_closed(edits: dict[str, Any]) -> bool:
    """Report whether a spec gives nothing, and lets no container be created by itself."""
    (mount,) = edits["mounts"]
    return bool(mount["hostPath"] == ABSENT and edits["env"] == [] and len(edits) == 2)


@VANISHING
async def test_a_container_whose_card_vanishes_while_it_starts_is_refused_or_gets_it(
    tmp_path: Path, looks: int
) -> None:
    rig = await a_rig(tmp_path, nri=False, looks=looks)

    with suppress(PreStartError):
        await rig.pre_start.prepare(S1)
        assert [card.uuid for card in rig.prepared[0].cards] == ["GPU-a"]

    assert rig.starts("wired") + rig.starts("card_not_here") == 1


async def test_with_nri_all_slots_share_a_device_that_gives_nothing(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)

    devices = {rig.pre_start.allocate(frozenset({slot})) for slot in ("s1", "s2")}
    await rig.pre_start.prepare(S1)

    assert devices == {SHARED}
    assert rig.specs().keys() == {SHARED}
    assert is_closed(rig.specs()[SHARED])
    assert rig.kubelet.asked == 0
    assert rig.starts("wired") == 0  # that is for the runtime's own question
    assert len(rig.left) == 1


async def test_a_slot_that_an_earlier_agent_allocated_keeps_its_device_and_loses_its_cards(
    tmp_path: Path,
) -> None:
    """Kubelet's checkpoint keeps the name; the container starts with the cards that NRI gives."""
    before = await a_rig(tmp_path, nri=False)
    name = before.pre_start.allocate(S1)
    await before.pre_start.prepare(S1)
    assert before.specs()[name]["deviceNodes"]

    after = await a_rig(tmp_path)
    await after.pre_start.prepare(S1)

    assert after.specs().keys() == {name, SHARED}
    assert all(is_closed(edits) for edits in after.specs().values())


async def test_the_mark_of_an_older_agents_spec_goes_with_it(tmp_path: Path) -> None:
    """So a runtime that remembers the spec makes no container of it."""
    name = device_name(S1)
    mark = tmp_path / f"fracgpu.io-slot_{name}.0123456789abcdef"
    mark.touch()

    await (await a_rig(tmp_path, nri=False)).pre_start.prepare(S1)

    assert not mark.exists()


async def test_while_the_runtime_does_not_ask_nothing_starts(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    rig.ways.observe(Status(connection=Connection.CLOSED, problem="it restarts"))

    assert "it restarts" in await rig.refusal()

    assert (rig.specs(), rig.starts("identity_unknown"), rig.left) == ({}, 1, [])


async def test_a_runtime_that_reads_no_cdi_specs_starts_nothing(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    rig.runtime.problem = "it reads no CDI specs"

    assert await rig.refusal() == "it reads no CDI specs"


@pytest.mark.parametrize("nri", [True, False])
async def test_before_the_pods_are_listed_nothing_starts(tmp_path: Path, nri: bool) -> None:
    rig = await a_rig(tmp_path, nri=nri, listed=False)

    assert "not been listed" in await rig.refusal()


async def test_without_nri_too_a_pod_that_asks_for_mps_needs_a_daemon_that_answers(
    tmp_path: Path,
) -> None:
    rig = await a_rig(tmp_path, a_pod(annotations={names.ISOLATION: "mps"}), nri=False)
    rig.pre_start.allocate(S1)

    assert "cannot be limited by mps: the MPS daemon of GPU-a does not" in await rig.refusal()
    assert rig.starts("no_outfit") == 1


async def test_without_nri_a_pod_gets_the_first_that_can_limit_it(tmp_path: Path) -> None:
    pod = a_pod(annotations={names.ISOLATION: "interposer, none"})
    library = an_elf_file(tmp_path / "libvgpu.so")
    rig = await a_rig(tmp_path / "cdi", pod, nri=False, library=library)

    name = rig.pre_start.allocate(S1)
    await rig.pre_start.prepare(S1)

    assert "LD_PRELOAD=/usr/local/vgpu/libvgpu.so" in rig.specs()[name]["env"]


async def test_without_nri_a_pod_that_wants_to_be_limited_does_not_start(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path, a_pod(annotations={names.ISOLATION: "kernel"}), nri=False)

    rig.pre_start.allocate(S1)

    assert "wants fracgpu.io/isolation: kernel, which needs NRI" in await rig.refusal()


async def test_without_nri_the_spec_is_that_of_the_listed_container_and_verifies_it(
    tmp_path: Path,
) -> None:
    rig = await a_rig(tmp_path, nri=False)

    name = rig.pre_start.allocate(S1)
    await rig.pre_start.prepare(S1)

    edits = rig.specs()[name]
    assert f"{names.ENV_VISIBLE_DEVICES}=GPU-a" in edits["env"]
    assert edits["deviceNodes"] == [{"path": "/dev/nvidia0"}]
    assert edits["hooks"] == [
        {
            "hookName": "createRuntime",
            "path": "/var/lib/fracgpu/bin/fracgpu-verify",
            "args": ["fracgpu-verify", "uid-train-0", "train"],
        }
    ]
    assert [claim.pod.record.key for claim in rig.prepared] == ["ml/train-0"]
    assert rig.left == []
    assert rig.starts("wired") == 1


async def test_without_nri_two_candidates_are_refused_at_once(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path, a_pod("one"), a_pod("two"), nri=False)
    rig.kubelet.answer = (a_holder("one"), a_holder("two"))

    assert "enable NRI" in await rig.refusal()

    assert (rig.clock.sleeping, rig.specs()) == (0, {})
    assert rig.starts(RejectReason.SEVERAL.value) == 1


async def test_a_pod_admitted_with_nri_does_not_start_once_it_is_off(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    rig.pre_start.allocate(S1)
    rig.ways.observe(Status(connection=Connection.NO_SOCKET, problem="off"))
    await rig.clock.advance(60)

    assert "switch it on again" in await rig.refusal()

    rig.pre_start.allocate(S1)  # to another pod
    await rig.pre_start.prepare(S1)
    assert len(rig.prepared) == 1


async def test_a_silent_kubelet_is_a_refusal(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path, nri=False)
    rig.kubelet.answer = PodResourcesError("kubelet gave no answer in 5 s")

    assert "no answer in 5 s" in await rig.refusal()
    assert rig.starts("kubelet_silent") == 1


@pytest.mark.parametrize("nri", [True, False])
async def test_a_folder_that_cannot_be_written_is_a_refusal(tmp_path: Path, nri: bool) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    rig = await a_rig(blocked / "cdi", nri=nri)

    assert "cannot write" in await rig.refusal()
    assert rig.starts("cdi_folder") == 1


def wrote_an_hour_ago(folder: Path, clock: VirtualClock) -> None:
    for file in folder.iterdir():
        os.utime(file, (0, clock.now().timestamp() - 3600))


async def test_specs_that_nobody_holds_are_removed_and_others_kept(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    for slot in ("s1", "s2"):  # as after a restart: nothing was allocated by this agent
        await rig.pre_start.prepare(frozenset({slot}))
    wrote_an_hour_ago(tmp_path, rig.clock)
    await rig.pre_start.prepare(frozenset({"s3"}))

    await rig.pre_start.clean()

    kept = {device_name({slot}) for slot in ("s1", "s3")}  # held, and just written
    assert rig.specs().keys() == {*kept, SHARED}


async def test_without_kubelets_list_all_specs_stay(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    await rig.pre_start.prepare(S1)
    wrote_an_hour_ago(tmp_path, rig.clock)
    rig.kubelet.answer = PodResourcesError("gone")

    await rig.pre_start.clean()

    assert len(rig.specs()) == 2
