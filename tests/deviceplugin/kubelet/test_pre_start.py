"""One container start from its slot ids to a CDI spec, or to an error that names the cause."""

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.cards.interface import CardsUnavailableError
from deviceplugin.claims import Claim, PodKey, RuntimeContainers, SlotHolder
from deviceplugin.container.cdi import CdiFolder, CdiSpec, device_name
from deviceplugin.container.cri import RuntimeUnknownError
from deviceplugin.container.device_links import LinkFolder
from deviceplugin.container.injection import SpecStore
from deviceplugin.container.nvidia_cdi import NvidiaCdiSpecs
from deviceplugin.container.spec_builder import ContainerSpecBuilder
from deviceplugin.kubelet.pod_lookup import PodLookup
from deviceplugin.kubelet.pod_resources import PodResources, PodResourcesError
from deviceplugin.kubelet.pre_start import PreStartError, PreStartHandler
from deviceplugin.kubelet.turns import Turns
from deviceplugin.metrics import DevicePluginMetrics
from fracgpu import names
from fracgpu.state.pod_info import PodInfo, decode_pod_info
from kube.client import KubeClient
from kube.errors import KubeError, NotFound, Unavailable
from kube.kinds import Kind
from tests.deviceplugin.builders import (
    NODE,
    FakeCards,
    OneLocation,
    a_card,
    a_container,
    a_holder,
    a_tracker,
    pod_json,
)
from tests.fakes.clock import VirtualClock
from tests.support.waiting import until_true

S1 = frozenset({"s1"})


class FakeKubelet(PodResources):
    """Returns the holders it is given; raises an error given in their place."""

    def __init__(self, *holders: SlotHolder) -> None:
        self.answer: tuple[SlotHolder, ...] | PodResourcesError = holders
        self.lister: PodResources | None = None
        self.asked = 0

    async def holders(self) -> tuple[SlotHolder, ...]:
        self.asked += 1
        if self.lister is not None:
            return await self.lister.holders()
        if isinstance(self.answer, PodResourcesError):
            raise self.answer
        return self.answer


class FakeApi(KubeClient):
    """Returns pods by name; raises an error given in place of a pod."""

    def __init__(self, **pods: bytes | KubeError) -> None:
        self.pods: dict[str, bytes | KubeError] = dict(pods)

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> bytes:
        found = self.pods.get(name)
        if found is None:
            raise NotFound(verb="GET", path=name, status=404, reason="NotFound", message="none")
        if isinstance(found, KubeError):
            raise found
        return found


class FakeRuntime:
    """Says which containers run, or that it does not answer."""

    def __init__(self) -> None:
        self.running: set[tuple[str, str]] | RuntimeUnknownError = set()
        self.exited: set[tuple[str, str, str]] = set()

    async def __call__(self) -> RuntimeContainers:
        if isinstance(self.running, RuntimeUnknownError):
            raise self.running
        return RuntimeContainers(running=frozenset(self.running), exited=frozenset(self.exited))


SILENT = Unavailable(verb="GET", path="/x", status=None, reason="NoAnswer", message="timed out")


class SlowFolder(CdiFolder):
    """A folder on a slow disk: a write is done long before it returns."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_return = threading.Event()

    def write(self, spec: CdiSpec) -> None:
        super().write(spec)
        assert self.may_return.wait(10)


@dataclass(slots=True)
class Rig:
    pre_start: PreStartHandler
    kubelet: FakeKubelet
    api: FakeApi
    cards: FakeCards
    folder: CdiFolder
    clock: VirtualClock
    registry: CollectorRegistry
    known: dict[PodKey, PodInfo] | None
    runtime: "FakeRuntime"
    prepared: list[Claim] = field(default_factory=list)

    def starts(self, outcome: str) -> float:
        found = self.registry.get_sample_value(
            "fracgpu_deviceplugin_starts_total", {"outcome": outcome}
        )
        return found or 0


def specs(folder: Path) -> list[str]:
    return [file.read_text() for file in folder.glob("*.json")]


def views(**pods: bytes) -> dict[PodKey, PodInfo]:
    return {("ml", name): decode_pod_info(body) for name, body in pods.items()}


async def a_rig(
    folder: Path,
    *,
    known: Mapping[PodKey, PodInfo] | None = None,
    listed: bool = True,
    slow: "SlowFolder | None" = None,
    stores: Sequence[SpecStore] = (),
    turns: Turns | None = None,
) -> Rig:
    both = a_card("GPU-a"), a_card("GPU-b", index=1)
    cards, clock, registry = FakeCards(*both), VirtualClock(), CollectorRegistry()
    tracker = a_tracker(cards, clock)
    await tracker.refresh()
    kubelet, api = FakeKubelet(a_holder()), FakeApi(**{"train-0": pod_json()})
    cdi = slow or CdiFolder(folder)
    prepared: list[Claim] = []
    memory = dict(known or {}) if listed else None
    runtime = FakeRuntime()
    pre_start = PreStartHandler(
        node=NODE,
        tracker=tracker,
        pod_resources=kubelet,
        lookup=PodLookup(api, lambda: memory, timeout_s=1.0),
        containers=runtime,
        builder=ContainerSpecBuilder(NvidiaCdiSpecs([])),
        locations=OneLocation(*(stores or [cdi])),
        clock=clock,
        metrics=DevicePluginMetrics(registry),
        on_prepared=prepared.append,
        turns=turns,
    )
    return Rig(pre_start, kubelet, api, cards, cdi, clock, registry, memory, runtime, prepared)


async def test_a_certain_claim_is_written_noted_and_counted(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)

    claim = await rig.pre_start.prepare(S1)

    assert claim.pod.record.key == "ml/train-0"
    (text,) = specs(tmp_path)
    assert '"NVIDIA_VISIBLE_DEVICES=GPU-a"' in text
    assert '"/dev/nvidia0"' in text
    assert rig.prepared == [claim]
    assert rig.starts("wired") == 1


async def test_a_pod_the_informer_has_not_seen_is_read_from_the_api_server(
    tmp_path: Path,
) -> None:
    rig = await a_rig(tmp_path, known={})

    assert (await rig.pre_start.prepare(S1)).container == "train"


async def test_the_api_servers_pod_wins_over_the_informers_older_one(tmp_path: Path) -> None:
    old = pod_json(assigned={"train": [("GPU-old", 1000)]}, uid="old")
    rig = await a_rig(tmp_path, known=views(**{"train-0": old}))

    claim = await rig.pre_start.prepare(S1)

    assert claim.pod.record.uid == "uid-train-0"
    assert [card.uuid for card in claim.cards] == ["GPU-a"]


async def test_a_verified_container_restarts_while_the_api_server_is_away(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path, known=views(**{"train-0": pod_json()}))
    await rig.pre_start.prepare(S1)
    rig.api.pods["train-0"] = SILENT

    assert (await rig.pre_start.prepare(S1)).container == "train"


async def test_ids_handed_out_again_are_not_verified_while_the_api_server_is_away(
    tmp_path: Path,
) -> None:
    rig = await a_rig(tmp_path, known=views(**{"train-0": pod_json()}))
    await rig.pre_start.prepare(S1)
    rig.api.pods["train-0"] = SILENT

    rig.pre_start.allocated(S1)
    with pytest.raises(PreStartError, match="must wait for the API server"):
        await rig.pre_start.prepare(S1)


@pytest.mark.parametrize("in_informer", [True, False], ids=["known to the informer", "unknown"])
async def test_a_new_container_waits_for_the_api_server(tmp_path: Path, in_informer: bool) -> None:
    rig = await a_rig(tmp_path, known=views(**{"train-0": pod_json()}) if in_informer else {})
    rig.api.pods["train-0"] = SILENT

    with pytest.raises(PreStartError, match=r"cannot read pod ml/train-0.*no answer"):
        await rig.pre_start.prepare(S1)

    assert rig.starts("api_silent") == 1
    assert specs(tmp_path) == []


async def test_ids_handed_out_during_a_start_let_nobody_go(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)

    class LateKubelet(PodResources):
        async def holders(self) -> tuple[SlotHolder, ...]:
            rig.pre_start.allocated(S1)
            return (a_holder(),)

    rig.kubelet.lister = LateKubelet()
    with pytest.raises(PreStartError, match="allocated the slots to another container"):
        await rig.pre_start.prepare(S1)

    assert rig.prepared == []


async def test_an_unlisted_init_container_starts_once_kubelet_has_said_whose_start_it_is(
    tmp_path: Path,
) -> None:
    rig = await a_rig(tmp_path, known={})
    rig.kubelet.answer = ()
    assert rig.known is not None
    assigned = {"prepare": [("GPU-a", 1000)]}
    inits = [a_container("prepare", mib=1000)]

    def learn(**waiting: str) -> None:
        for name in ("one", "two"):
            said = waiting if name == "two" else {}
            body = pod_json(name, assigned=assigned, inits=inits, waiting=said)
            rig.api.pods[name] = body
            rig.known.update(views(**{name: body}))  # type: ignore[union-attr]

    learn()
    with pytest.raises(PreStartError, match=r"^\[fracgpu-ask-") as first:
        await rig.pre_start.prepare(S1)
    learn(prepare=str(first.value))
    claim = await rig.pre_start.prepare(S1)

    assert (claim.pod.record.name, claim.container) == ("two", "prepare")
    with pytest.raises(PreStartError, match=r"^\[fracgpu-ask-") as again:
        await rig.pre_start.prepare(S1)  # the next start may be another container's
    assert str(again.value) != str(first.value)


async def test_a_pod_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path, known=views(**{"train-0": pod_json()}))
    del rig.api.pods["train-0"]

    with pytest.raises(PreStartError, match="no live pod holds s1"):
        await rig.pre_start.prepare(S1)


async def test_before_the_pods_are_listed_nothing_starts(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path, listed=False)

    with pytest.raises(PreStartError, match="not been listed yet"):
        await rig.pre_start.prepare(S1)

    assert rig.starts("pods_unknown") == 1


async def test_a_silent_kubelet_is_a_refusal(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    rig.kubelet.answer = PodResourcesError("kubelet's socket is gone")

    with pytest.raises(PreStartError, match="socket is gone"):
        await rig.pre_start.prepare(S1)

    assert rig.starts("kubelet_silent") == 1


async def test_a_rejection_is_counted_by_its_reason_and_writes_nothing(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    rig.kubelet.answer = ()

    with pytest.raises(PreStartError, match="no live pod holds s1"):
        await rig.pre_start.prepare(S1)

    assert rig.starts("nobody_holds_them") == 1
    assert specs(tmp_path) == []
    assert rig.prepared == []


async def test_a_folder_that_cannot_be_written_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("a file")
    rig = await a_rig(tmp_path / "cdi")

    with pytest.raises(PreStartError, match="cannot write"):
        await rig.pre_start.prepare(S1)

    assert rig.starts("cdi_folder") == 1


async def test_a_leftover_spec_of_these_ids_is_overwritten(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    rig.folder.write(CdiSpec(name=device_name(S1), env={"NVIDIA_VISIBLE_DEVICES": "GPU-wrong"}))

    await rig.pre_start.prepare(S1)

    (text,) = specs(tmp_path)
    assert "GPU-wrong" not in text


def age(folder: Path, clock: VirtualClock, *, by_s: float) -> None:
    """Let the files in *folder* be written this long ago."""
    then_s = clock.now().timestamp() - by_s
    for file in folder.iterdir():
        os.utime(file, (then_s, then_s))


async def test_specs_that_nobody_holds_are_removed_and_held_ones_kept(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    rig.kubelet.answer = (a_holder(), a_holder("other", ids="s2"))
    for ids in ("s2", "s3"):
        rig.folder.write(CdiSpec(name=device_name({ids})))
    age(tmp_path, rig.clock, by_s=121)

    await rig.pre_start.prepare(S1)

    assert rig.folder.names() == {device_name({"s1"}), device_name({"s2"})}


async def test_a_spec_just_written_is_kept_while_the_runtime_may_still_want_it(
    tmp_path: Path,
) -> None:
    rig = await a_rig(tmp_path)
    await rig.pre_start.prepare(S1)
    rig.kubelet.answer = ()  # as for an init container, which kubelet does not list

    await rig.pre_start.clean()
    soon = rig.folder.names()
    age(tmp_path, rig.clock, by_s=121)
    await rig.pre_start.clean()

    assert soon == {device_name(S1)}
    assert rig.folder.names() == frozenset()


async def test_nor_does_the_next_agent_remove_what_the_last_one_has_just_written(
    tmp_path: Path,
) -> None:
    last, following = await a_rig(tmp_path), await a_rig(tmp_path)
    await last.pre_start.prepare(S1)
    following.kubelet.answer = ()  # as for an init container, which kubelet does not list
    age(tmp_path, following.clock, by_s=119)

    await following.pre_start.clean()

    assert following.folder.names() == {device_name(S1)}


async def test_cleaning_without_a_kubelet_leaves_everything(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    rig.folder.write(CdiSpec(name="old"))
    age(tmp_path, rig.clock, by_s=121)
    rig.kubelet.answer = PodResourcesError("gone")

    await rig.pre_start.clean()

    assert rig.folder.names() == {"old"}


async def test_a_driver_that_just_hiccups_does_not_stop_a_start(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path)
    rig.cards.answer = CardsUnavailableError("busy")

    assert (await rig.pre_start.prepare(S1)).container == "train"


async def test_a_start_that_asked_kubelet_earlier_does_not_take_away_what_another_one_writes(
    tmp_path: Path,
) -> None:
    slow = SlowFolder(tmp_path)
    rig = await a_rig(tmp_path, slow=slow)
    name = device_name(S1)

    async with asyncio.TaskGroup() as group:
        start = group.create_task(rig.pre_start.prepare(S1))
        await until_true(lambda: name in slow.names(), what="the spec is written")
        rig.kubelet.answer = ()  # what kubelet answered before it allocated these ids
        age(tmp_path, rig.clock, by_s=121)  # of a clock that was set forward meanwhile
        await rig.pre_start.clean()
        kept = slow.names()
        slow.may_return.set()
        await start

    assert kept == {name}


async def a_rig_with_one_slot_for_two(folder: Path, *, stores: Sequence[SpecStore] = ()) -> Rig:
    """Kubelet lists two live pods with the same id: ``one`` on GPU-a and ``two`` on GPU-b."""
    rig = await a_rig(folder, known={}, stores=stores)
    rig.kubelet.answer = (a_holder("one"), a_holder("two"))
    for name in ("one", "two"):
        learn(rig, name)
    return rig


def learn(rig: Rig, name: str, *, waiting: str = "") -> None:
    """Have the API server say that the pod's container waits, with kubelet's message."""
    card = {"one": "GPU-a", "two": "GPU-b"}[name]
    said = {"train": waiting} if waiting else {}
    body = pod_json(name, assigned={"train": [(card, 1000)]}, waiting=said)
    rig.api.pods[name] = body
    assert rig.known is not None
    rig.known.update(views(**{name: body}))


async def outcome(rig: Rig) -> str:
    """Start a container with the id; return its card, or why it is refused."""
    try:
        claim = await rig.pre_start.prepare(S1)
    except PreStartError as error:
        return str(error)
    return claim.cards[0].uuid


async def test_the_pod_whose_container_runs_is_not_the_one_that_starts(tmp_path: Path) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)

    rig.runtime.running = {("uid-one", "train")}
    second = await outcome(rig)
    rig.runtime.running = {("uid-two", "train")}  # the first one has crashed
    first = await outcome(rig)

    assert [second, first] == ["GPU-b", "GPU-a"]
    (text,) = specs(tmp_path)
    assert '"NVIDIA_VISIBLE_DEVICES=GPU-a"' in text


async def test_the_pod_that_was_refused_meanwhile_is_not_the_one_that_waits(
    tmp_path: Path,
) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)
    async with asyncio.TaskGroup() as group:
        waits = group.create_task(outcome(rig))
        await rig.clock.wait_for_sleepers(1)
        said = await outcome(rig)
        learn(rig, "two", waiting=f"rpc error: {said}")
        await rig.clock.advance(1)

    assert waits.result() == "GPU-a"
    rig.runtime.running = {("uid-one", "train")}
    assert await outcome(rig) == "GPU-b"


async def test_a_refusal_says_nothing_about_a_later_start(tmp_path: Path) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)
    async with asyncio.TaskGroup() as group:
        waits = group.create_task(outcome(rig))
        await rig.clock.wait_for_sleepers(1)
        said = await outcome(rig)
        waits.cancel()  # kubelet is gone
    learn(rig, "two", waiting=f"rpc error: {said}")

    async with asyncio.TaskGroup() as group:
        later = group.create_task(outcome(rig))  # it may be of the pod that was refused
        await rig.clock.wait_for_sleepers(1)
        await rig.clock.advance(25)

    assert waits.cancelled()
    assert "waiting until it is clear" in later.result()
    assert specs(tmp_path) == []


async def test_the_start_of_a_pod_deleted_by_force_never_gets_the_other_ones_card(
    tmp_path: Path,
) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)

    async with asyncio.TaskGroup() as group:
        one = group.create_task(outcome(rig))
        await rig.clock.wait_for_sleepers(1)
        del rig.api.pods["one"]  # kubelet does not know yet
        await rig.clock.advance(16)

    assert "does not know" in one.result()
    assert specs(tmp_path) == []


class HoldsBack(CdiFolder):
    """Writes the first card's spec only when it is told to, as a disk that hangs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.begun, self.go = threading.Event(), threading.Event()

    def write(self, spec: CdiSpec) -> None:
        if spec.env[names.ENV_VISIBLE_DEVICES] == "GPU-a":
            self.begun.set()
            assert self.go.wait(30)
        super().write(spec)


@pytest.mark.parametrize("end", ["it is answered", "kubelet gives up"])
async def test_the_next_holder_waits_for_a_write_that_is_under_way(
    tmp_path: Path, end: str
) -> None:
    slow = HoldsBack(tmp_path)
    rig = await a_rig_with_one_slot_for_two(tmp_path, stores=[slow])
    rig.kubelet.answer = (a_holder("one"),)

    async with asyncio.TaskGroup() as group:
        one = group.create_task(outcome(rig))
        await until_true(slow.begun.is_set, what="the write for one")
        rig.pre_start.allocated(S1)
        rig.kubelet.answer = (a_holder("two"),)
        if end == "kubelet gives up":
            one.cancel()
        two = group.create_task(outcome(rig))
        await asyncio.sleep(0)
        slow.go.set()

    assert two.result() == "GPU-b"
    (text,) = specs(tmp_path)
    assert "GPU-b" in text


@pytest.mark.parametrize("silent", [True, False], ids=["the runtime is silent", "nothing runs"])
async def test_a_start_that_stays_unclear_is_refused_before_kubelet_gives_up(
    tmp_path: Path, silent: bool
) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)
    if silent:
        rig.runtime.running = RuntimeUnknownError("no answer")

    async with asyncio.TaskGroup() as group:
        start = group.create_task(outcome(rig))
        await rig.clock.wait_for_sleepers(1)
        await rig.clock.advance(14.5)
        early = start.done()
        await rig.clock.advance(2)

    assert not early
    assert "given s1 to ml/one and ml/two" in start.result()
    assert rig.starts("several_pods_hold_them") == 1
    assert specs(tmp_path) == []
    assert rig.kubelet.asked == 2  # each answer makes kubelet forget what it is about to allocate


async def test_a_start_goes_on_as_soon_as_the_other_pod_has_ended(tmp_path: Path) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)
    async with asyncio.TaskGroup() as group:
        start = group.create_task(outcome(rig))
        await rig.clock.wait_for_sleepers(1)
        rig.kubelet.answer = (a_holder("two"),)
        rig.known.update(views(one=pod_json("one", phase="Succeeded")))  # type: ignore[union-attr]
        await rig.clock.advance(1)

    assert start.result() == "GPU-b"


async def test_after_the_end_of_the_other_pod_the_slot_is_the_last_ones(tmp_path: Path) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)
    both, rig.kubelet.answer = rig.kubelet.answer, (a_holder("one"),)
    alone = await outcome(rig)  # kubelet has allocated, and does not list the second one yet
    rig.kubelet.answer, rig.runtime.running = both, {("uid-two", "train")}
    restarted = await outcome(rig)

    rig.kubelet.answer = (a_holder("two"),)

    assert [alone, restarted, await outcome(rig)] == ["GPU-a", "GPU-a", "GPU-b"]


async def test_a_token_answers_one_start_of_a_pod_with_a_shared_slot(tmp_path: Path) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)
    rig.runtime.running = {("uid-one", "train")}
    assigned = {"prepare": [("GPU-a", 1000)], "train": [("GPU-b", 1000)]}
    inits = [a_container("prepare", mib=1000)]
    rig.api.pods["two"] = pod_json("two", assigned=assigned, inits=inits)
    asked = await outcome(rig)
    waiting = {"prepare": asked}
    rig.api.pods["two"] = pod_json("two", assigned=assigned, inits=inits, waiting=waiting)

    prepare, train = await outcome(rig), await outcome(rig)  # the status is an old one by now

    assert prepare == "GPU-a"
    assert train.startswith("[fracgpu-ask-")
    assert train.split()[0] != asked.split()[0]


async def test_ids_given_to_a_third_pod_meanwhile_let_nobody_go(tmp_path: Path) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)
    async with asyncio.TaskGroup() as group:
        start = group.create_task(outcome(rig))
        await rig.clock.wait_for_sleepers(1)
        rig.pre_start.allocated(S1)
        rig.runtime.running = {("uid-one", "train")}
        await rig.clock.advance(1)

    assert "allocated the slots to another container" in start.result()
    assert specs(tmp_path) == []


@pytest.mark.parametrize("with_cdi", [False, True])
async def test_two_pods_never_share_a_folder_that_a_running_container_sees(
    tmp_path: Path, *, with_cdi: bool
) -> None:
    folder = LinkFolder(tmp_path / "links", dev_root=tmp_path)
    cdi = CdiFolder(tmp_path / "cdi")
    rig = await a_rig_with_one_slot_for_two(
        tmp_path, stores=[cdi, folder] if with_cdi else [folder]
    )
    rig.runtime.running = {("uid-one", "train")}

    assert "delete one of them" in await outcome(rig)
    assert cdi.names() == folder.names() == frozenset()


async def test_a_pod_that_is_alone_explains_all_earlier_allocations(tmp_path: Path) -> None:
    rig = await a_rig(tmp_path, known={})
    rig.kubelet.answer = (a_holder("one"),)
    learn(rig, "one")
    for _ in range(2):  # kubelet was restarted before it noted the first
        rig.pre_start.allocated(S1)
    first = await outcome(rig)
    other = pod_json("two", inits=[a_container("prepare", mib=1000)], containers=[{"name": "a"}])
    rig.api.pods["two"] = other
    assert rig.known is not None
    rig.known.update(views(two=other))

    async with asyncio.timeout(10):  # it would wait for the other's init container
        assert [first, await outcome(rig)] == ["GPU-a", "GPU-a"]


async def test_a_pod_whose_container_never_starts_again_is_not_waited_for(tmp_path: Path) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)
    body = pod_json("one", restarts="Never", ended={"train": 0}, phase="Running")
    rig.api.pods["one"] = body
    assert rig.known is not None
    rig.known.update(views(one=body))
    rig.runtime.exited = {("uid-one", "train", "id-train")}

    assert await outcome(rig) == "GPU-b"


async def test_what_the_informer_says_is_not_enough_to_let_a_start_go_on(tmp_path: Path) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)
    rig.known.update(views(one=pod_json("one", phase="Succeeded")))  # type: ignore[union-attr]
    async with asyncio.TaskGroup() as group:
        start = group.create_task(outcome(rig))
        await rig.clock.wait_for_sleepers(1)
        await rig.clock.advance(16)

    assert "given s1 to ml/one and ml/two" in start.result()
    assert rig.kubelet.asked == 6  # at the start, after 0, 1, 3 and 7 s, and at the end


async def test_a_pod_deleted_by_force_is_waited_for_until_kubelet_drops_it(tmp_path: Path) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)
    del rig.api.pods["one"]
    del rig.known[("ml", "one")]  # type: ignore[union-attr]
    async with asyncio.TaskGroup() as group:
        start = group.create_task(outcome(rig))
        await rig.clock.wait_for_sleepers(1)
        await rig.clock.advance(2)
        waits = not start.done()
        rig.kubelet.answer = (a_holder("two"),)
        await rig.clock.advance(2)

    assert waits
    assert start.result() == "GPU-b"


async def test_an_unlisted_init_container_with_the_same_id_never_gets_the_listed_pods_card(
    tmp_path: Path,
) -> None:
    rig = await a_rig_with_one_slot_for_two(tmp_path)
    rig.kubelet.answer = (a_holder("one"),)

    def init_pod(waiting: str = "") -> None:
        body = pod_json(
            "two",
            assigned={"prepare": [("GPU-b", 1000)]},
            inits=[a_container("prepare", mib=1000)],
            containers=[{"name": "train"}],
            waiting={"prepare": waiting} if waiting else {},
        )
        rig.api.pods["two"] = body
        rig.known.update(views(two=body))  # type: ignore[union-attr]

    init_pod()
    rig.pre_start.allocated(S1)
    first = await outcome(rig)
    rig.runtime.running = {("uid-one", "train")}
    rig.pre_start.allocated(S1)  # for the second pod, while the first one has it
    asked = await outcome(rig)
    init_pod(waiting=asked)
    second = await outcome(rig)
    init_pod()
    rig.runtime.running = {("uid-two", "prepare")}  # the first one's container has crashed
    again = await outcome(rig)

    assert asked.startswith("[fracgpu-ask-")
    assert [first, second, again] == ["GPU-a", "GPU-b", "GPU-a"]


async def test_a_start_behind_one_whose_disk_hangs_is_refused_after_a_while(tmp_path: Path) -> None:
    slow = HoldsBack(tmp_path)
    rig = await a_rig(tmp_path, stores=[slow], turns=Turns(limit_s=0.01))
    async with asyncio.TaskGroup() as group:
        first = group.create_task(outcome(rig))
        await until_true(slow.begun.is_set, what="the first write")
        second = await outcome(rig)
        slow.go.set()

    assert "an earlier start of these slots is still being prepared" in second
    assert rig.starts("busy") == 1
    assert first.result() == "GPU-a"
